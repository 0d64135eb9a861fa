"""
A file that lines are appended to without waiting for its disk.

Lines are kept in memory; a thread writes them, `FLUSH_SECONDS` later at the latest. What
the disk refuses is tried again. When more than `KEPT_MAX` is waiting, lines are left out
and counted: a disk that hangs costs neither a request's time nor all the memory.

There is no lock. One thread adds, one writes; each counts up numbers of its own, and the
writer takes from the beginning of a list to whose end the other appends.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_logger: Final = logging.getLogger(__name__)
FLUSH_SECONDS: Final = 0.5
KEPT_MAX: Final = 16 << 20  # Bytes.
_END_SECONDS: Final = 5.0  # A disk that hangs must not hold the end of the process.
_MODE: Final = 0o666  # The umask decides, as for the log of events.
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class LogWriter:
    """Appends lines to a file; to the next one of that name when it was moved away."""

    def __init__(self, path: str, *, kept_max: int = KEPT_MAX) -> None:
        """
        Open at once, and begin to write.

        Args:
            path: Created when missing.
            kept_max: How many bytes may wait to be written.

        Raises:
            OSError: It cannot be opened.
        """
        self._path = Path(path)
        self._kept_max = kept_max
        self._fd = os.open(path, _FLAGS, _MODE)
        self._lines: list[str] = []
        self._added = 0  # Bytes, by the thread that adds.
        self._left_out = 0  # Lines, by the thread that adds.
        self._written = 0  # Bytes, by the writer; so are all below.
        self._rest = b""
        self._said_left_out = 0
        self._errors = 0
        self._is_ended = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Append a line of ASCII with its line feed, soon; from one thread only."""
        if self._added - self._written >= self._kept_max:
            self._left_out += 1
            return
        self._added += len(line)
        self._lines.append(line)

    def flush(self) -> None:
        """Write what is waiting soon, to the file that has the name now."""
        self._wake.set()

    def close(self) -> None:
        """Write what is waiting and close; what the disk still refuses is lost."""
        self._is_ended = True
        self._wake.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._is_ended:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            self._write_waiting()
        self._write_waiting()  # What was added while it wrote.
        with suppress(OSError):
            os.close(self._fd)

    def _write_waiting(self) -> None:
        """Write everything there is, unless the disk refuses."""
        count = len(self._lines)
        self._rest += "".join(self._lines[:count]).encode("ascii", "backslashreplace")
        del self._lines[:count]
        try:
            self._follow_name()
            while self._rest:
                done = os.write(self._fd, self._rest)
                self._written += done
                self._rest = self._rest[done:]
        except OSError as error:
            self._note_error(error)
            return
        self._say_left_out()

    def _follow_name(self) -> None:
        """Go on in a new file when the old one has another name, or none."""
        with suppress(FileNotFoundError):
            named, opened = self._path.stat(), os.fstat(self._fd)
            if os.path.samestat(named, opened):
                return
        fd = os.open(self._path, _FLAGS, _MODE)
        os.close(self._fd)
        self._fd = fd

    def _note_error(self, error: OSError) -> None:
        """Say that the disk refuses, ever more seldom."""
        self._errors += 1
        if self._errors & (self._errors - 1) == 0:
            _logger.error("access.failed count=%d error=%r", self._errors, str(error))

    def _say_left_out(self) -> None:
        """Say how many lines there was no room for."""
        left_out = self._left_out
        if left_out != self._said_left_out:
            _logger.warning("access.left_out lines=%d", left_out - self._said_left_out)
            self._said_left_out = left_out
