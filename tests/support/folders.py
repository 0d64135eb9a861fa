"""
Real files to store, and the size of a folder while others write into it.

`python_files` finds a few thousand files on any machine that runs the tests.
"""

from __future__ import annotations

import itertools
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.background import in_background
from support.uploads import SourceFile

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

SAMPLE_SECONDS: Final = 0.01
FILE_BYTES_MAX: Final = 1 << 20  # The default of `max_value_size`.


def python_files(limit: int | None = None) -> list[SourceFile]:
    """
    List the files of at most 1 MiB below the folders of Python's library.

    Args:
        limit: How many, spread evenly over the list; None returns all.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(sysconfig.get_path(name)) for name in names}
    found = {
        path.relative_to(path.anchor).as_posix(): path
        for folder in sorted(folders)
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size <= FILE_BYTES_MAX
    }
    files = [SourceFile(key=key, path=found[key]) for key in sorted(found)]
    if limit is None or limit >= len(files):
        return files
    return [files[number * len(files) // limit] for number in range(limit)]


def files_of_total(
    total_bytes: int, *, file_bytes_min: int, limit: int
) -> list[SourceFile]:
    """
    Return large files, repeatedly under other keys, up to a total size.

    Args:
        total_bytes: Minimum size of all files together.
        file_bytes_min: Minimum size of each file.
        limit: Maximum number of different files.
    """
    sizes = {file: file.path.stat().st_size for file in python_files()}
    large = [file for file, length in sizes.items() if length >= file_bytes_min]
    chosen: list[SourceFile] = []
    for number in itertools.count():
        for file in large[:limit]:
            if total_bytes <= 0:
                return chosen
            chosen.append(SourceFile(key=f"{number}/{file.key}", path=file.path))
            total_bytes -= sizes[file]
    return chosen


def folder_bytes(folder: Path) -> int:
    """Return the size of the files in a folder, which may change meanwhile."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


class Peak:
    """The largest size of a folder, in bytes, at the moments it was measured."""

    def __init__(self, folder: Path) -> None:
        """Measure nothing yet; the folder need not exist."""
        self._folder = folder
        self.bytes = 0

    def measure(self) -> None:
        """Measure the folder."""
        self.bytes = max(self.bytes, folder_bytes(self._folder))

    def measure_until(self, is_ended: threading.Event) -> None:
        """Measure it repeatedly, and once more at the end."""
        while not is_ended.wait(SAMPLE_SECONDS):
            self.measure()
        self.measure()


@contextmanager
def peak_of(folder: Path) -> Iterator[Peak]:
    """Measure a folder until the context ends."""
    peak = Peak(folder)
    with in_background(peak.measure_until):
        yield peak
