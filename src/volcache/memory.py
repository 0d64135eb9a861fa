"""How much memory there is, and how much of it is for the bodies of requests."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY_MEMORY_MIN: Final = 64 << 20
_SHARE: Final = 4
# Of both versions: the prefix of a line of /proc/self/cgroup, the folder, and the file.
_CGROUPS: Final = (
    ("0::", "", "memory.max"),
    (":memory:", "memory", "memory.limit_in_bytes"),
)


def default_body_memory() -> int:
    """Return a quarter of the memory of the machine or container, at least 64 MiB."""
    return max(memory_bytes() // _SHARE, BODY_MEMORY_MIN)


def memory_bytes(root: Path = Path("/")) -> int:
    """
    Return the memory of the machine, or of the control group if that is less.

    Args:
        root: Contains `proc` and `sys`.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control group of this process, and of those above it."""
    lines: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    for line in lines:
        for mark, folder, name in _CGROUPS:
            _, found, path = line.partition(mark)
            if not found:
                continue
            group = PurePosixPath(path)
            for one in (group, *group.parents):
                file = root / "sys/fs/cgroup" / folder / str(one).lstrip("/") / name
                # Without a limit there is no file, or it contains the word "max".
                with suppress(OSError, ValueError):
                    yield int(file.read_text("ascii"))
