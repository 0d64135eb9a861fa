"""
Logging: one readable line per event, `time LEVEL logger event name=value ...`.

Modules log with `logging.getLogger("volcache.<part>")` and lazy arguments; only this
one knows where the lines go. Other libraries' loggers are left as they are.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import re
import sys
import time
from typing import Final, TextIO

from volcache.errors import ConfigError

ROOT: Final = "volcache"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEVEL_NAMES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}  # Five columns.


def setup_logging(level: str, file: str) -> None:
    """
    Send the package's log lines to one place, instead of where they went before.

    Args:
        level: debug, info, warning or error.
        file: Appended to, created when missing; empty means standard error.

    Raises:
        ConfigError: The file cannot be opened; lines go where they went before.
    """
    handler: logging.Handler
    try:
        handler = _FileHandler(file) if file else _StreamHandler(sys.stderr)
    except OSError as error:
        message = f'log_file = "{file}" cannot be opened: {error.strerror}'
        raise ConfigError(message) from error
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger(ROOT)
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


class LineFormatter(logging.Formatter):
    """
    `2026-11-21T09:00:00.123Z INFO  volcache.store rotation.completed slot=4`.

    Times are UTC. What a client sent can be part of an event, so control characters
    come out escaped and an event is always one line; a traceback follows on its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's.
        """Write the line without a traceback."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        level = _LEVEL_NAMES.get(record.levelname, record.levelname)
        message = _CONTROL.sub(_escaped, record.message)
        when = f"{seconds}.{int(record.msecs):03d}Z"
        return f"{when} {level:<5} {record.name} {message}"


def _escaped(match: re.Match[str]) -> str:
    """Write one control character as Python would."""
    return match.group().encode("unicode_escape").decode()


class _DropUnwritable(logging.Handler):
    """A line that the disk or the pipe refuses is lost: the service goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's.
        """Say nothing of an OSError; a wrong log call is still reported."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _StreamHandler(_DropUnwritable, logging.StreamHandler[TextIO]):
    """Writes to standard error and leaves it open."""


class _FileHandler(_DropUnwritable, logging.handlers.WatchedFileHandler):
    """
    Appends to a file, and to the next one of that name when it has been moved away.

    So logrotate needs no signal to the process: bjoern's end depends on how signals are
    handled, and one that nobody handles would kill it. The price is a `stat` a line.
    """

    def __init__(self, file: str) -> None:
        """Open at once; a name that is not UTF-8 can be part of a line."""
        super().__init__(file, encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; it is lost when the file cannot be opened again."""
        try:
            super().emit(record)
        except OSError:
            # Opening is not guarded by the library. The next line tries again.
            self.handleError(record)

    def close(self) -> None:
        """Close; lines that the disk still refuses are lost, too."""
        with contextlib.suppress(OSError):
            super().close()
