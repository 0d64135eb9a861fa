"""
Logging: one line per event, as text (`time LEVEL logger event name=value ...`) or JSON.

Both are formatted from the same calls. The template of a call is a literal of the form
`event name=%d name=%r ...`, so that names and values can be separated. Modules log to
`logging.getLogger("volcache.<part>")` with lazy arguments; only this module chooses the
destination. The loggers of other libraries are not changed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import logging.handlers
import math
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from volcache.errors import ConfigError

if TYPE_CHECKING:
    from io import TextIOWrapper

ROOT: Final = "volcache"
# They contain keys and addresses of clients.
LOG_FILE_MODE: Final = 0o640
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEVEL_NAMES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}  # Five columns.
_EVENT: Final = re.compile(r"[a-z]+\.[a-z_]+( [a-z_]+=\S+)*")
_CONVERSION: Final = re.compile(r"%[0-9.]*[a-z]")


def setup_logging(level: str, file: str, form: str = "text") -> None:
    """
    Send the log lines of the package to one destination, replacing the previous one.

    Args:
        level: debug, info, warning or error.
        file: Appended to, created if missing; empty = standard error.
        form: text or json.

    Raises:
        ConfigError: The file cannot be opened; the previous destination stays.
    """
    handler: logging.Handler
    try:
        handler = _FileHandler(file) if file else _StreamHandler(sys.stderr)
    except OSError as error:
        raise unusable_file("log_file", file, error) from error
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter())
    logger = logging.getLogger(ROOT)
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    set_level(level)
    logger.propagate = False


def set_level(level: str) -> None:
    """Log events of this level and above: debug, info, warning or error."""
    logging.getLogger(ROOT).setLevel(level.upper())


def more_verbose(one: str, other: str) -> str:
    """Return the level of two at which more is logged."""
    return min(
        one, other, key=lambda level: logging.getLevelNamesMapping()[level.upper()]
    )


def unusable_file(setting: str, file: str, error: OSError) -> ConfigError:
    """Return the error for a log file that cannot be opened."""
    return ConfigError(
        f'{setting} = "{file}" cannot be opened: {error.strerror}; use a file that this'
        " user may write to, in an existing directory"
    )


def reopen_logs() -> None:
    """Open a new log file if the present one was renamed; nothing without a file."""
    for handler in logging.getLogger(ROOT).handlers:
        if isinstance(handler, _FileHandler):
            handler.reopen()


class LineFormatter(logging.Formatter):
    """
    `2026-11-21T09:00:00.123Z INFO  volcache.store rotation.completed slot=4`.

    Times are UTC. Control characters are escaped, because events contain input of
    clients; so an event is always one line. A traceback follows on lines of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's.
        """Return the line without a traceback."""
        level = _LEVEL_NAMES.get(record.levelname, record.levelname)
        message = _CONTROL.sub(_escaped, record.message)
        return f"{_time_of(record)} {level:<5} {record.name} {message}"


class JsonFormatter(logging.Formatter):
    """
    `{"time": ..., "level": "info", "logger": ..., "event": ..., "slot": 4}`.

    The fields of the event follow, numbers as numbers, then `traceback` if there is one.
    ASCII only, so an object is always one line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one object."""
        fields: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **_fields_of(record),
        }
        if record.exc_info:
            fields["traceback"] = _encodable(self.formatException(record.exc_info))
        return json.dumps(fields)


class _Field(NamedTuple):
    """One field of an event's template: `slot=%d`."""

    name: str
    pattern: str
    values: int  # How many arguments of the call it takes.


@functools.lru_cache
def _parsed(template: str) -> tuple[str, tuple[_Field, ...]] | None:
    """Return event and fields of a template; None for one of another form."""
    if not _EVENT.fullmatch(template):
        return None
    event, *words = template.split(" ")
    pairs = (word.split("=", 1) for word in words)
    return event, tuple(
        _Field(name, pattern, len(_CONVERSION.findall(pattern)))
        for name, pattern in pairs
    )


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the name and fields of an event; text of another form is the name."""
    message = record.getMessage()  # Raises if the arguments do not fit.
    parsed = _parsed(record.msg) if isinstance(record.msg, str) else None
    if parsed is None or not isinstance(record.args, tuple):
        return {"event": _encodable(message)}
    event, fields = parsed
    result: dict[str, object] = {"event": event}
    values = iter(record.args)
    for field in fields:
        taken = tuple(next(values) for _ in range(field.values))
        result[field.name] = _value_of(field.pattern, taken)
    return result


def _value_of(pattern: str, values: tuple[object, ...]) -> int | float | str:
    """Return a field: a number as the line shows it, or text without quotes."""
    text = pattern % values
    if _CONVERSION.fullmatch(pattern):
        if pattern == "%r" and isinstance(values[0], str):
            return _encodable(values[0])
        if pattern[-1] == "d":
            return int(text)
        if pattern[-1] in "fg" and math.isfinite(float(text)):
            return float(text)
    return _encodable(text)


def _time_of(record: logging.LogRecord) -> str:
    """Return the time of an event: UTC, in milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _encodable(text: str) -> str:
    """Escape the bytes of a file name that are not UTF-8: JSON readers reject them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _escaped(match: re.Match[str]) -> str:
    """Escape one control character as Python does."""
    return match.group().encode("unicode_escape").decode()


class _DropUnwritable(logging.Handler):
    """Drops a line that cannot be written; the service continues."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's.
        """Ignore an OSError; report a wrong log call."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _StreamHandler(_DropUnwritable, logging.StreamHandler[TextIO]):
    """Writes to standard error, which it does not close."""


class _FileHandler(_DropUnwritable, logging.handlers.WatchedFileHandler):
    """
    Appends to a file; opens a new one if the file is renamed.

    So no line is lost without the signal that calls `reopen_logs`. This costs a
    `stat` per line.
    """

    def __init__(self, file: str) -> None:
        """Open the file. Names that are not UTF-8 are escaped in a line."""
        super().__init__(file, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> TextIOWrapper:
        """Open the file; a new one has `LOG_FILE_MODE`, reduced by the umask."""
        return open(
            self.baseFilename,
            "a",
            encoding=self.encoding,
            errors=self.errors,
            opener=lambda path, flags: os.open(path, flags, LOG_FILE_MODE),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; it is lost if a new file cannot be opened."""
        try:
            super().emit(record)
        except OSError:
            # The library does not handle errors of opening. The next line tries again.
            self.handleError(record)

    def reopen(self) -> None:
        """Open the file that has the path now; on failure the next line tries again."""
        self.acquire()
        try:
            with contextlib.suppress(OSError):
                self.reopenIfNeeded()
        finally:
            self.release()

    def close(self) -> None:
        """Close; buffered lines that cannot be written are lost."""
        with contextlib.suppress(OSError):
            super().close()
