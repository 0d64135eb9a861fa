"""
Files to work with, and how much room a folder takes while others write into it.

`python_files` finds some thousand real files on any machine that runs the tests.
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
        limit: Take so many, spread evenly over the list; None takes all.
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
    Take larger files, again and again under other keys, until they add up.

    Args:
        total_bytes: What the files together have at least.
        file_bytes_min: Take no smaller ones.
        limit: Take so many different ones.
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
    """Add up the lengths of the files in a folder that may change meanwhile."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


class Peak:
    """The most that a folder has held, in bytes, as often as it was looked at."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it need not exist yet."""
        self._folder = folder
        self.bytes = 0

    def look(self) -> None:
        """Look at the folder."""
        self.bytes = max(self.bytes, folder_bytes(self._folder))

    def look_until(self, is_ended: threading.Event) -> None:
        """Look at it again and again, a last time at the end."""
        while not is_ended.wait(SAMPLE_SECONDS):
            self.look()
        self.look()


@contextmanager
def peak_of(folder: Path) -> Iterator[Peak]:
    """Watch a folder's length while the context is open."""
    peak = Peak(folder)
    with in_background(peak.look_until):
        yield peak
