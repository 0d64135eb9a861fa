"""
Changes of one function of a module, described by what it does and not by its text.

A change is found by an expression, or by the statement that calls or sets something, so
that it survives other code around it, another layout and another place of the function.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef


class NotFoundError(LookupError):
    """A function, or the place of a change in it, is not there exactly once."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a function; `apply` returns in how many places it was made."""

    text: str
    apply: Callable[[Function], int]


def changed(source: str, function: str, *changes: Change) -> str:
    """
    Return the source of a module with one of its functions changed.

    Args:
        source: Of the module.
        function: Its name, in a class with that: `Class.function`.
        changes: Made one after the other.

    Raises:
        NotFoundError: There is no such function, or a change was not made exactly once.
    """
    tree = ast.parse(source)
    found = _find(tree, function)
    for change in changes:
        count = change.apply(found)
        if count != 1:
            raise NotFoundError(f"{function}: {change.text}: found {count} times")
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def replace(expression: str, by: str) -> Change:
    """Put another expression in the place of one."""
    wanted = ast.unparse(_expression(expression))

    def matches(node: ast.expr) -> bool:
        return ast.unparse(node) == wanted

    return Change(f"replace {expression}", lambda found: _replace(found, matches, by))


def replace_call(name: str, by: str) -> Change:
    """Put another expression in the place of a call, whatever its arguments are."""

    def matches(node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func) == name

    return Change(f"replace the call of {name}", lambda f: _replace(f, matches, by))


def remove(name: str) -> Change:
    """Remove the statement that calls `name`, or sets it."""

    def apply(function: Function) -> int:
        places = list(_statements(function, name))
        for block, statement in places:
            block[block.index(statement)] = ast.Pass()
        return len(places)

    return Change(f"remove the statement with {name}", apply)


def move(name: str, before: str) -> Change:
    """Move the statement that calls or sets `name` before another one of its block."""

    def apply(function: Function) -> int:
        places = list(_statements(function, name))
        count = 0
        for block, statement in places:
            targets = [s for b, s in _statements(function, before) if b is block]
            for target in targets:
                if block.index(target) < block.index(statement):
                    block.remove(statement)
                    block.insert(block.index(target), statement)
                    count += 1
        return count

    return Change(f"move {name} before {before}", apply)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _find(tree: ast.Module, path: str) -> Function:
    """Return a function by its name, or by its class and its name."""
    inside: list[ast.Module | ast.ClassDef | Function] = [tree]
    for name in path.split("."):
        inside = [
            node
            for parent in inside
            for node in parent.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        ]
    if len(inside) != 1 or not isinstance(inside[0], Function):
        raise NotFoundError(f"{path}: found {len(inside)} times")
    return inside[0]


def _replace(function: Function, matches: Callable[[ast.expr], bool], by: str) -> int:
    replacer = _Replacer(matches, _expression(by))
    replacer.visit(function)
    return replacer.count


class _Replacer(ast.NodeTransformer):
    """Replaces expressions; does not look into those it has replaced."""

    def __init__(self, matches: Callable[[ast.expr], bool], by: ast.expr) -> None:
        self._matches = matches
        self._by = by
        self.count = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and self._matches(node):
            self.count += 1
            return self._by
        return self.generic_visit(node)


def _statements(
    function: Function, name: str
) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    """Yield the simple statements that call or set `name`, each with its block."""
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for statement in list(block):
                if not hasattr(statement, "body") and name in _names(statement):
                    yield block, statement


def _names(statement: ast.stmt) -> set[str]:
    """Return what a statement calls and sets."""
    names = {
        ast.unparse(node.func)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    }
    if isinstance(statement, ast.Assign):
        names |= {ast.unparse(target) for target in statement.targets}
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        names.add(ast.unparse(statement.target))
    return names
