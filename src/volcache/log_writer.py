"""
A log file written by a thread, so that a request never waits for its disk.

Lines are taken from where they are made, within `FLUSH_SECONDS`. A failed write is
repeated, and nothing more is taken before it succeeds: a disk that hangs costs neither the
time of requests nor all the memory, since the buffer of the lines is bounded.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from volcache.background import Background

_logger: Final = logging.getLogger(__name__)
FLUSH_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 5.0  # A disk that hangs must not block the shutdown.
_MODE: Final = 0o640  # As for the event log: `logs.LOG_FILE_MODE`.
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Lines(Protocol):
    """Lines to be written; see `AccessLog` of `volcache.front`."""

    @property
    def dropped(self) -> int:
        """How many were dropped until the last call of `take`."""

    def take(self) -> bytes:
        """Return the lines since the last call."""


class LogWriter:
    """Appends lines to a file; opens a new one if the file is renamed."""

    def __init__(self, path: str, lines: Lines) -> None:
        """
        Open the file and start the thread.

        Args:
            path: Created if missing.
            lines: Are taken by the thread.

        Raises:
            OSError: The file cannot be opened.
        """
        self._path = Path(path)
        self.lines = lines
        self._fd = os.open(path, _FLAGS, _MODE)
        self._rest = b""  # Used by the thread, as what follows.
        self._logged_dropped = 0
        self._errors = 0
        self._is_closed = self._is_over = False
        self._wake = threading.Event()
        self._thread = Background("lines", self._write, lambda: self._is_over)
        self._thread.start()

    def flush(self) -> None:
        """Write the buffer soon, to the file that has the path now."""
        self._wake.set()

    def close(self) -> None:
        """Write the buffer and close; lines that cannot be written are lost."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)

    def _write(self) -> None:
        """Wait for lines and write them; after `close`, for the last time."""
        if not self._is_closed:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            self._write_buffer()
            return
        self._is_over = True
        self._write_buffer()
        with suppress(OSError):
            os.close(self._fd)

    def _write_buffer(self) -> None:
        """Write all buffered lines; keep what could not be written."""
        try:
            self._follow_path()
            self._write_rest()
            self._rest = self.lines.take()
            self._write_rest()
        except OSError as error:
            self._log_error(error)
            return
        self._log_dropped()

    def _write_rest(self) -> None:
        while self._rest:
            self._rest = self._rest[os.write(self._fd, self._rest) :]

    def _follow_path(self) -> None:
        """Open a new file if the present one was renamed or deleted."""
        with suppress(FileNotFoundError):
            named, opened = self._path.stat(), os.fstat(self._fd)
            if os.path.samestat(named, opened):
                return
        fd = os.open(self._path, _FLAGS, _MODE)
        os.close(self._fd)
        self._fd = fd

    def _log_error(self, error: OSError) -> None:
        """Log a failed write: the 1st, 2nd, 4th, 8th and so on."""
        self._errors += 1
        if self._errors & (self._errors - 1) == 0:
            _logger.error("access.failed count=%d error=%r", self._errors, str(error))

    def _log_dropped(self) -> None:
        """Log how many lines were dropped since the last time."""
        dropped = self.lines.dropped
        if dropped != self._logged_dropped:
            _logger.warning("access.left_out lines=%d", dropped - self._logged_dropped)
            self._logged_dropped = dropped
