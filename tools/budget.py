"""
Check that the code stays within the budgets of budget.toml, and print what exceeds one.

Code lines of Python are those with a token that is neither a comment nor part of a
docstring; of C and Cython, those that are neither blank nor a comment.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
BUDGETS: Final = ROOT / "tools" / "budget.toml"
_LAYOUT: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT),
    *(tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_C_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CYTHON_COMMENT: Final = re.compile(r'"""[\s\S]*?"""|#[^\n]*')
_CYTHON_IMPORT: Final = re.compile(
    r"^\s*(?:from\s+(\S+)\s+c?import\b|c?import\s+(.+)|include\s+[\"'](.+)[\"'])",
    re.MULTILINE,
)
CORE: Final = ROOT / "src" / "volcache" / "store" / "_core"
MADE: Final = ("core.pxd", "front.pxd")  # By tools/make_pxd.py.


class Module:
    """A module of Python: the lines that count, and its syntax tree."""

    def __init__(self, path: Path, root: Path = ROOT) -> None:
        """
        Read a file.

        Raises:
            SyntaxError: It cannot be parsed.
        """
        text = path.read_text(encoding="utf-8")
        self.path = path.relative_to(root).as_posix()
        self.tree = ast.parse(text)
        lines = {
            line
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type not in _LAYOUT
            for line in range(token.start[0], token.end[0] + 1)
        }
        self.lines = lines.difference(*map(_docstring, ast.walk(self.tree)))

    def sizes(self) -> Iterator[tuple[str, str, int]]:
        """Yield kind, name and size of the module, its classes and its functions."""
        yield "module", self.path, len(self.lines)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, _FUNCTIONS)]
                yield "methods", f"{self.path}:{node.name}", len(methods)
                yield "fields", f"{self.path}:{node.name}", len(_fields(node))
            elif isinstance(node, _FUNCTIONS):
                inside = range(node.lineno, (node.end_lineno or 0) + 1)
                size = len(self.lines.intersection(inside))
                yield "function", f"{self.path}:{node.name}", size


def _docstring(node: ast.AST) -> range:
    """Return the lines of the docstring of a module, class or function."""
    if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)) and node.body:
        first = node.body[0]
        if ast.get_docstring(node, clean=False) is not None:
            return range(first.lineno, (first.end_lineno or 0) + 1)
    return range(0)


def _fields(node: ast.ClassDef) -> set[str]:
    """Return the attributes that a class declares, or sets on itself."""
    declared = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return declared | {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }


def native_lines(path: Path) -> int:
    """Count the code lines of a file in C or Cython."""
    comment = _C_COMMENT if path.suffix in {".c", ".h"} else _CYTHON_COMMENT
    text = comment.sub("", path.read_text(encoding="utf-8"))
    return sum(bool(line.strip()) for line in text.splitlines())


def part_sizes(parts: dict[str, Any], modules: list[Module]) -> Iterator[str]:
    """Yield the parts of src and tests that are above their goal, and have grown."""
    for name, part in parts.items():
        size = sum(
            len(module.lines)
            for module in modules
            if module.path.startswith(tuple(part.get("python", ())))
        )
        for pattern in part.get("native", ()):
            paths = (path for path in ROOT.glob(pattern) if path.name not in MADE)
            size += sum(map(native_lines, paths))
        if size > max(part["goal"], part["lines"]):
            had = f"it had {part['lines']}, its goal is {part['goal']}"
            yield f"{name}: {size} code lines; {had}"


def object_sizes(limits: dict[str, Any], modules: list[Module]) -> Iterator[str]:
    """Yield modules, classes and functions that are larger than the limit or their own."""
    for module in modules:
        if module.path.startswith("src/"):
            for kind, name, size in module.sizes():
                limit = limits[kind]["larger"].get(name, limits[kind]["limit"])
                if size > limit:
                    yield f"{name}: {kind} of size {size}, the budget is {limit}"


def doubled_names(allowed: dict[str, int], modules: list[Module]) -> Iterator[str]:
    """Yield names that more classes have than the budget allows."""
    names: Counter[str] = Counter()
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        if module.path.startswith("src/"):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    names[node.name] += 1
                    places[node.name].append(module.path)
    for name, number in names.items():
        if number > allowed.get(name, 1):
            yield f"class {name} is defined in {', '.join(places[name])}"


def cython_imports(allowed: list[str], folder: Path = CORE) -> Iterator[str]:
    """Yield what Cython code imports or includes besides what is allowed."""
    prefixes = tuple(f"{name}." for name in allowed)
    for path in sorted({*folder.glob("*.pyx"), *folder.glob("*.px[di]")}):
        for groups in _CYTHON_IMPORT.findall(path.read_text("utf-8")):
            for name in "".join(groups).partition("#")[0].split(","):
                if not f"{name.split()[0]}.".startswith(prefixes):
                    yield f"{path.name} imports {name.split()[0]}"


def main() -> str:
    """Return what exceeds its budget, a line for each; empty if nothing does."""
    budgets = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))
    paths = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py")]
    modules = [Module(path) for path in sorted(paths)]
    found = [
        *part_sizes(budgets["part"], modules),
        *object_sizes(budgets["size"], modules),
        *doubled_names(budgets["classes"], modules),
        *cython_imports(budgets["cython"]["imports"]),
    ]
    return "\n".join(f"over budget: {line}" for line in found)


if __name__ == "__main__":
    sys.exit(main() or 0)
