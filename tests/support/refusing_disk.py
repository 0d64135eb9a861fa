"""A disk that refuses reads or writes while a test wants it to."""

from __future__ import annotations

import errno
import os
from typing import Any

from support.stores import ProcessFileSystem, UnsyncedFileSystem


class RefusingDisk(ProcessFileSystem):
    """The disk as one process sees it; `refuses_reads` and `refuses_writes` break it."""

    def __init__(self) -> None:
        """Refuse nothing yet."""
        super().__init__(UnsyncedFileSystem())
        self.refuses_reads = False
        self.refuses_writes = False

    def before_call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Refuse a call that reads or writes."""
        super().before_call(name, arguments)
        if self.refuses_reads and name == "pread":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.refuses_writes and name == "pwritev":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
