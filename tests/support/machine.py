"""The disk of a real server process: reads and syncs that fail or are slow."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# What `Machine.fail_reads_of` takes for the files of the whole machine.
ALL_FILES: Final = "/"

_SOURCE: Final = Path(__file__).with_name("machine.c")


class Machine:
    """A machine whose files can become unreadable or slow."""

    def __init__(self, folder: Path) -> None:
        """Compile the library that the server preloads."""
        folder.mkdir(parents=True, exist_ok=True)
        self._unreadable = folder / "unreadable"
        self._slow = folder / "slow"
        self._slow_number = 0
        self._syncs = folder / "syncs"
        self._count = folder / "count"
        self._reads = folder / "reads"
        self._library = folder / "machine.so"
        options = ("-shared", "-fPIC", "-o", self._library, _SOURCE, "-ldl")
        subprocess.run(("gcc", *options), check=True)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the server must be started with."""
        return {
            "LD_PRELOAD": str(self._library),
            "READS_FAIL_OF": str(self._unreadable),
            "SLOW_DISK": str(self._slow),
            "SYNCS": str(self._syncs),
            "COUNT_OF_SYNCS": str(self._count),
            "COUNT_OF_READS": str(self._reads),
        }

    @property
    def syncs(self) -> int:
        """How many syncs of volumes have begun."""
        return self._count.stat().st_size if self._count.exists() else 0

    @property
    def slow_reads(self) -> int:
        """How many reads have begun to wait for a slow disk."""
        return self._reads.stat().st_size if self._reads.exists() else 0

    @contextmanager
    def held_syncs(self) -> Iterator[None]:
        """Let syncs of volumes wait for the end of the block."""
        self._syncs.write_text("hold")
        yield
        self._syncs.unlink(missing_ok=True)

    @contextmanager
    def failing_syncs(self) -> Iterator[None]:
        """Let syncs of volumes fail in the block; also those that wait already."""
        new = self._syncs.with_suffix(".new")
        new.write_text("fail")
        new.replace(self._syncs)
        yield
        self._syncs.unlink(missing_ok=True)

    def fail_reads_of(self, part: str) -> None:
        """Make reads fail of the files whose path contains a text."""
        self._unreadable.write_text(part)

    def slow_down(self, part: str, seconds: float, *, is_late: bool = False) -> None:
        """
        Let the files be on a slow disk, and not in memory, whose path contains a text.

        Args:
            part: The text.
            seconds: What a read takes whose pages were not read since this call; it ends
                earlier when this is called again.
            is_late: The time passes after the bytes were read, not before.
        """
        self._slow_number += 1
        order = "after" if is_late else "before"
        milliseconds = round(seconds * 1000)
        new = self._slow.with_suffix(".new")
        new.write_text(f"{self._slow_number} {milliseconds} {order} {part}")
        new.replace(self._slow)

    def hide_memory_of(self, part: str) -> None:
        """
        Let files be on a file system that cannot tell what of them is in memory.

        Args:
            part: A part of their paths.
        """
        self._slow.write_text(f"0 0 unknown {part}")

    def recover(self) -> None:
        """Make all reads work again."""
        self._unreadable.unlink()
