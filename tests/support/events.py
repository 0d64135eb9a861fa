"""The events that the package can log, from the log calls in its source."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).parents[2] / "src" / "volcache"
EVENT: Final = re.compile(r"[a-z]+\.[a-z_]+( [a-z_]+=\S+)*")
_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
}
# Functions that log an event they are passed, and the level.
_HELPERS: Final = {"_log_some": "error"}


class Event(NamedTuple):
    """One log call."""

    template: str
    level: str
    where: str

    @property
    def name(self) -> str:
        """The event's name."""
        return self.template.split(" ", 1)[0]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields, in order."""
        return tuple(word.split("=")[0] for word in self.template.split(" ")[1:])


def logged_events() -> list[Event]:
    """Return every log call of the package; its message must be a literal."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        helpers = [
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and function.name in _HELPERS
            for node in ast.walk(function)
        ]
        for node in ast.walk(tree):
            level = _level_of(node)
            if level is None or node in helpers:
                continue
            assert isinstance(node, ast.Call)
            where = f"{path.relative_to(SOURCE)}:{node.lineno}"
            text = node.args[0]
            assert isinstance(text, ast.Constant), where
            found.append(Event(str(text.value), level, where))
    return found


def _level_of(node: ast.AST) -> str | None:
    """Return the level of a log call, None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if isinstance(called, ast.Name):
        return _HELPERS.get(called.id)
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return None
    return _LEVELS.get(called.attr) if called.value.id == "_logger" else None
