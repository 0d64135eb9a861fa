"""
Regular expressions that can take more than linear time, found by their structure.

Two unbounded repeats that can match the same text, one after the other, let a pattern that
fails try every place between them: quadratic time. Within a repeat, exponential time.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from itertools import combinations, product
from pathlib import Path
from re import _compiler, _parser  # type: ignore[attr-defined]
from re import _constants as sre
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

_UNBOUNDED: Final = 1000  # So many repetitions count as any number.
_FUNCTIONS: Final = {
    *("compile", "match", "fullmatch", "search", "split", "findall", "finditer"),
    *("sub", "subn"),
}

Characters = frozenset[int]


class _Piece(NamedTuple):
    """A part of a pattern; all its characters are among the first 256."""

    characters: Characters
    is_optional: bool = False
    # For an unbounded repeat: what is repeated, in each way, as the parts it needs.
    loops: tuple[tuple[Characters, ...], ...] = ()


_Way = list[_Piece]


class SlowPatternError(AssertionError):
    """A pattern can take more than linear time."""


def require_linear(pattern: str | bytes, flags: int = 0) -> None:
    """Raise `SlowPatternError` if a pattern has the structure that is slow."""
    tree = _parser.parse(pattern, flags)
    for way in _ways(tree):
        _check(way)


def _check(way: _Way) -> None:
    for at, first in enumerate(way):
        common = first.characters if first.loops else Characters()
        for second in way[at + 1 :]:
            if any(all(part & common for part in loop) for loop in second.loops):
                shown = "".join(map(chr, sorted(common & second.characters)))
                raise SlowPatternError(f"two repeats match {shown!r}")
            if not second.is_optional:
                common &= second.characters


def _ways(tree: Any) -> list[_Way]:
    """Return the ways through a pattern; check what is repeated."""
    parts: list[list[_Way]] = []
    for kind, value in tree:
        if kind in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
            parts.append(_repeated(*value))
        elif kind is sre.SUBPATTERN:
            parts.append(_ways(value[3]))
        elif kind is sre.BRANCH:
            parts.append([way for one in value[1] for way in _ways(one)])
        elif kind not in {sre.AT, sre.ASSERT, sre.ASSERT_NOT}:
            parts.append([[_Piece(_characters((kind, value), tree))]])
    return [[piece for way in chosen for piece in way] for chosen in product(*parts)]


def _repeated(least: int, most: int, body: Any) -> list[_Way]:
    inner = _ways(body)
    if most > 1:
        for one, two in product(inner, inner):
            _check([*one, *two])
    if most < _UNBOUNDED:
        return inner if least else [[], *inner]
    for one, two in combinations(inner, 2):
        if len(one) == len(two) and all(
            a[0] & b[0] for a, b in zip(one, two, strict=True)
        ):
            raise SlowPatternError("two alternatives of a repeat match the same")
    everything = _union(piece.characters for way in inner for piece in way)
    loops = tuple(
        tuple(piece.characters for piece in way if not piece.is_optional)
        or (_union(piece.characters for piece in way),)
        for way in inner
    )
    return [[_Piece(everything, not least, loops)]]


def _union(sets: Iterable[Characters]) -> Characters:
    return Characters().union(*sets)


def _characters(element: tuple[Any, Any], tree: Any) -> Characters:
    """Return which characters an element of a pattern matches."""
    found = _compiler.compile(_parser.SubPattern(tree.state, [element]))
    return Characters(code for code in range(256) if found.fullmatch(chr(code)))


def patterns_of(package: str) -> Iterator[tuple[str, str | bytes, int]]:
    """
    Yield every pattern in the source of a package: place, pattern and flags.

    The first argument of each call of `re` is evaluated in its module.
    """
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        if info.name.endswith((".__main__", "._native")):
            continue
        module = importlib.import_module(info.name)
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr in _FUNCTIONS
            ):
                yield f"{info.name}:{node.lineno}", *_evaluated(node, module)


def _evaluated(node: ast.Call, module: ModuleType) -> tuple[str | bytes, int]:
    # Names of a function: its arguments stand for any text without a repeat.
    names = {**vars(module), "tag": b"tag", "name": "name"}
    first, *more = [
        eval(compile(ast.Expression(one), "", "eval"), names)  # noqa: S307
        for one in node.args
        if one is node.args[0] or "re." in ast.unparse(one)
    ]
    return first, int(more[0]) if more else 0
