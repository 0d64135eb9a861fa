"""Changes of the text of one function of a file, in Python or in C."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path


class NotFoundError(LookupError):
    """A function, or the text of a change in it, is not there exactly once."""


def changed(path: Path, function: str, *changes: tuple[str, ...]) -> str:
    """
    Return the source of a file with one of its functions changed.

    Args:
        path: Of the file. In C, functions begin and end at the start of a line.
        function: Its name, in a class with that: `Class.function`.
        changes: Each a text and what takes its place; made one after the other. A space
            in the text stands for any spaces and ends of lines.

    Raises:
        NotFoundError: The function is not defined exactly once, or a text is not in it
            exactly once, or would stay as it is.
    """
    source = path.read_text()
    found = list((_in_python if path.suffix == ".py" else _in_c)(source, function))
    if len(found) != 1:
        raise NotFoundError(f"{function}: found {len(found)} times")
    [(begin, end)] = found
    body = source[begin:end]
    for text, by in changes:
        parts = re.split(r"\s+".join(map(re.escape, text.split())), body)
        if len(parts) != 2 or text == by:
            raise NotFoundError(f"{function}: {text}: found {len(parts) - 1} times")
        body = by.join(parts)
    return source[:begin] + body + source[end:]


def _in_c(source: str, function: str) -> Iterator[tuple[int, int]]:
    pattern = rf"^[A-Za-z_][^;{{}}#]*\b{function}\([^;{{}}]*\)\s*\{{.*?^\}}"
    for found in re.finditer(pattern, source, re.MULTILINE | re.DOTALL):
        yield found.span()


def _in_python(source: str, function: str) -> Iterator[tuple[int, int]]:
    inside: list[ast.AST] = [ast.parse(source)]
    for name in function.split("."):
        children = (
            child for parent in inside for child in ast.iter_child_nodes(parent)
        )
        inside = [one for one in children if getattr(one, "name", "") == name]
    lines = source.splitlines(keepends=True)
    for one in inside:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            begin = len("".join(lines[: one.lineno - 1]))
            yield begin, begin + len("".join(lines[one.lineno - 1 : one.end_lineno]))
