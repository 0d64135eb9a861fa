"""Making the kernel write files to the disk, and forget what it keeps of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
EVERYTHING: Final = "3"  # Pages, and what is known of names and inodes.


def can_drop_everything() -> bool:
    """Tell whether this process may drop the caches of the whole machine."""
    return os.geteuid() == 0 and os.access(DROP_CACHES, os.W_OK)


def forget_files(folder: Path) -> None:
    """Write everything to the disk and forget the pages of the files below a folder."""
    os.sync()  # Once: to do it file by file takes seconds when there are many.
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def forget(folder: Path, *, everything: bool) -> None:
    """
    Make reads below a folder come from the disk.

    Args:
        folder: Whose files are to be cold.
        everything: Drop the caches of the machine; otherwise only the pages of these
            files, so that names and inodes stay known.

    """
    if everything:
        os.sync()
        DROP_CACHES.write_text(EVERYTHING, encoding="ascii")
    else:
        forget_files(folder)
