"""
Make `client.py`, the client for threads, of `aio.py`, the client for asyncio.

    python tools/make_client.py

A test verifies that the file which is checked in is what this makes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).resolve().parents[1] / "src" / "volcache_client"
SOURCE: Final = CLIENT / "aio.py"
MADE: Final = CLIENT / "client.py"

# In their order: what is written for tasks, and what stands for it with threads.
_REPLACED: Final = (
    (r"The client for asyncio. `tools/make_client.py` makes `client.py` of this file.",
     "The client for threads; made by `tools/make_client.py` of `aio.py`: edit that."),
    (r"used by all tasks of one event loop", "used by all threads of a process"),
    (r"by one task at a time", "by one thread at a time"),
    (r"is closed, or is used from another event loop", "is closed"),
    (r"Awaitable\[V\] \| V\b", "V"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsync(Client|Reader|Iterator)\b", r"\1"),
    (r"\bAsyncCachedFunction\b", "SyncCachedFunction"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bTaskClient\b", "ThreadClient"),
    (r"\btask_client\b", "thread_client"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
)  # fmt: skip


def convert(text: str) -> str:
    """Return the client for threads for the text of that for asyncio."""
    for pattern, replacement in _REPLACED:
        text, count = re.subn(pattern, replacement, text)
        if not count:
            raise ValueError(f"{SOURCE}: nothing matches {pattern}")
    for options in (("check", "--select=I,F401", "--fix"), ("format",)):
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
    MADE.write_text(convert(SOURCE.read_text("utf-8")), "utf-8")
