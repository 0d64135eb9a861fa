"""
A log file written by a thread, so that a request never waits for its disk.

Lines are buffered in memory and written within `FLUSH_SECONDS`. A failed write is
repeated. When more than `BUFFER_BYTES_MAX` is buffered, lines are dropped and counted: a
disk that hangs costs neither the time of requests nor all the memory.

Several threads may add lines: a lock, held for two additions, keeps their counters right.
The writer takes no lock: it removes from the beginning of the list what others append to
its end, and has counters of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from volcache.background import Background

_logger: Final = logging.getLogger(__name__)
FLUSH_SECONDS: Final = 0.5
BUFFER_BYTES_MAX: Final = 16 << 20
_CLOSE_SECONDS: Final = 5.0  # A disk that hangs must not block the shutdown.
_MODE: Final = 0o640  # As for the event log: `logs.LOG_FILE_MODE`.
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


_NS_PER_SECOND: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_MONTHS: Final = (  # Independent of the locale.
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


class LineTime:
    """The time of a line, formatted once per second; for one thread."""

    def __init__(self) -> None:
        """Format nothing yet."""
        self._second = -1
        self._text = self._json = ""

    def text(self, now_ns: int) -> str:
        """Return a time since the epoch as nginx does: "21/Nov/2026:09:00:00 +0000"."""
        self._update(now_ns)
        return self._text

    def json(self, now_ns: int) -> str:
        """Return a time since the epoch: "2026-11-21T09:00:00.123Z"."""
        self._update(now_ns)
        return f"{self._json}.{now_ns // _NS_PER_MS % 1000:03}Z"

    def _update(self, now_ns: int) -> None:
        second = now_ns // _NS_PER_SECOND
        if second != self._second:
            now = time.gmtime(second)
            month = _MONTHS[now.tm_mon - 1]
            clock = time.strftime("%H:%M:%S", now)
            self._text = f"{now.tm_mday:02}/{month}/{now.tm_year:04}:{clock} +0000"
            self._json = time.strftime("%Y-%m-%dT", now) + clock
            self._second = second


class LogWriter:
    """Appends lines to a file; opens a new one if the file is renamed."""

    def __init__(self, path: str, *, buffer_max: int = BUFFER_BYTES_MAX) -> None:
        """
        Open the file and start the thread.

        Args:
            path: Created if missing.
            buffer_max: The most bytes that are buffered.

        Raises:
            OSError: The file cannot be opened.
        """
        self._path = Path(path)
        self._buffer_max = buffer_max
        self._fd = os.open(path, _FLAGS, _MODE)
        self._lines: list[str] = []
        self._adding = threading.Lock()
        self._added = 0  # Bytes; written with the lock.
        self._dropped = 0  # Lines; written with the lock.
        self._written = 0  # Bytes; written by the writer, as all below.
        self._rest = b""
        self._logged_dropped = 0
        self._errors = 0
        self._is_closed = self._is_over = False
        self._wake = threading.Event()
        self._thread = Background("lines", self._write, lambda: self._is_over)
        self._thread.start()

    def add(self, line: str) -> None:
        """Append a line of ASCII with its line feed; from any thread."""
        with self._adding:
            if self._added - self._written >= self._buffer_max:
                self._dropped += 1
                return
            self._added += len(line)
            self._lines.append(line)

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
        count = len(self._lines)
        self._rest += "".join(self._lines[:count]).encode("ascii", "backslashreplace")
        del self._lines[:count]
        try:
            self._follow_path()
            while self._rest:
                done = os.write(self._fd, self._rest)
                self._written += done
                self._rest = self._rest[done:]
        except OSError as error:
            self._log_error(error)
            return
        self._log_dropped()

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
        dropped = self._dropped
        if dropped != self._logged_dropped:
            _logger.warning("access.left_out lines=%d", dropped - self._logged_dropped)
            self._logged_dropped = dropped
