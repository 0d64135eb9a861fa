"""
Make `client.pyi`, the types of `Client`, of those of `AsyncClient`.

    python tools/make_client.py

A test verifies that the file which is checked in is what this makes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).resolve().parents[1] / "src" / "volcache_client"
SOURCE: Final = CLIENT / "methods.py"
ASYNC: Final = CLIENT / "aio.py"
MADE: Final = CLIENT / "client.pyi"

# In their order: what is written for tasks, and what stands for it with threads.
_REPLACED: Final = (
    (r"The methods of `AsyncClient`; `client.py` makes those of `Client` of them.",
     "Made by `tools/make_client.py` of `methods.py`: edit that."),
    (r"used by all tasks of one event loop", "used by all threads of a process"),
    (r"by one task at a time", "by one thread at a time"),
    (r"is closed, or is used from another event loop", "is closed"),
    (r"Awaitable\[V\] \| V\b", "V"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsyncMethods\(BaseClient\[", "Client(ThreadClient["),
    (r"\bAsync(Client|Reader|Iterator)\b", r"\1"),
    (r"\bAsyncCachedFunction\b", "SyncCachedFunction"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"(from volcache_client.)base import BaseClient, BaseReader",
     r"\1base import BaseReader\n\1thread_client import ThreadClient"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
)  # fmt: skip


class _Types(ast.NodeTransformer):
    """Leaves signatures and docstrings."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Replace the body."""
        has_doc = ast.get_docstring(node) is not None
        node.body = node.body[:1] if has_doc else [ast.Expr(ast.Constant(...))]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Leave out what implements overloads."""
        self.generic_visit(node)
        overloaded: set[str] = set()
        for part in [one for one in node.body if isinstance(one, ast.FunctionDef)]:
            if "overload" in map(ast.unparse, part.decorator_list):
                overloaded.add(part.name)
            elif part.name in overloaded:
                node.body.remove(part)
        return node

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """Leave out the condition: a file of types has none."""
        return [self.visit(one) for one in node.body]


def made() -> str:
    """Return the types of the client for threads."""
    text, other = (file.read_text("utf-8") for file in (SOURCE, ASYNC))
    for pattern, replacement in _REPLACED:
        text, count = re.subn(pattern, replacement, text)
        if not count:
            raise ValueError(f"{SOURCE}: nothing matches {pattern}")
    tree = ast.parse(text)
    like = ast.parse(re.sub(r"\bAsyncClient\b", "Client", other))
    tree.body[2:2] = [
        one for one in like.body[2:] if isinstance(one, ast.ImportFrom | ast.If)
    ]
    own, signature = (
        next(one for one in reversed(found.body) if isinstance(one, ast.ClassDef))
        for found in (tree, like)
    )
    own.body[1:1] = [one for one in signature.body if isinstance(one, ast.If)]
    text = ast.unparse(ast.fix_missing_locations(_Types().visit(tree)))
    for options in (
        ("check", "--select=I,F401,F811,PYI020,PYI044", "--fix"),
        ("format",),
    ):
        text = _ruff(text, *options)
    return text


def _ruff(text: str, *options: str) -> str:
    command = [sys.executable, "-m", "ruff", *options, "--quiet"]
    name = f"--stdin-filename={MADE}"
    done = subprocess.run(  # noqa: S603 - ruff, with these options.
        [*command, name, "-"], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    MADE.write_text(made(), "utf-8")
