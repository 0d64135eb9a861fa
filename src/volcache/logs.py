"""
Logging: one line per event, readable (`time LEVEL logger event name=value ...`) or JSON.

Both are made from the same calls: the text of a call is `event name=%d name=%r ...`, a
literal, so that names and values can be told apart. Modules log with
`logging.getLogger("volcache.<part>")` and lazy arguments; only this one knows where the
lines go. Other libraries' loggers are left as they are.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import logging.handlers
import math
import re
import sys
import time
from typing import Final, NamedTuple, TextIO

from volcache.errors import ConfigError

ROOT: Final = "volcache"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEVEL_NAMES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}  # Five columns.
_EVENT: Final = re.compile(r"[a-z]+\.[a-z_]+( [a-z_]+=\S+)*")
_CONVERSION: Final = re.compile(r"%[0-9.]*[a-z]")


def setup_logging(level: str, file: str, form: str = "text") -> None:
    """
    Send the package's log lines to one place, instead of where they went before.

    Args:
        level: debug, info, warning or error.
        file: Appended to, created when missing; empty means standard error.
        form: text or json.

    Raises:
        ConfigError: The file cannot be opened; lines go where they went before.
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
    logger.setLevel(level.upper())
    logger.propagate = False


def unusable_file(setting: str, file: str, error: OSError) -> ConfigError:
    """Return the error for a file of a setting that cannot be appended to."""
    return ConfigError(
        f'{setting} = "{file}" cannot be opened: {error.strerror}; give a file that this'
        " user may write to, in a folder that is there"
    )


def reopen_logs() -> None:
    """Begin the log file anew if it was moved away; without a file nothing is done."""
    for handler in logging.getLogger(ROOT).handlers:
        if isinstance(handler, _FileHandler):
            handler.reopen()


class LineFormatter(logging.Formatter):
    """
    `2026-11-21T09:00:00.123Z INFO  volcache.store rotation.completed slot=4`.

    Times are UTC. What a client sent can be part of an event, so control characters
    come out escaped and an event is always one line; a traceback follows on its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's.
        """Write the line without a traceback."""
        level = _LEVEL_NAMES.get(record.levelname, record.levelname)
        message = _CONTROL.sub(_escaped, record.message)
        return f"{_time_of(record)} {level:<5} {record.name} {message}"


class JsonFormatter(logging.Formatter):
    """
    `{"time": ..., "level": "info", "logger": ..., "event": ..., "slot": 4}`.

    The fields of the event follow, numbers as numbers, and `traceback` if there is one.
    ASCII alone, so an object is always one line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write one object."""
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
    """One word of an event's text: `slot=%d`."""

    name: str
    pattern: str
    values: int  # How many of the call's values are part of it.


@functools.lru_cache
def _parsed(template: str) -> tuple[str, tuple[_Field, ...]] | None:
    """Tell event and fields apart; None for a text of another form."""
    if not _EVENT.fullmatch(template):
        return None
    event, *words = template.split(" ")
    pairs = (word.split("=", 1) for word in words)
    return event, tuple(
        _Field(name, pattern, len(_CONVERSION.findall(pattern)))
        for name, pattern in pairs
    )


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the event's name and fields; all of an unknown form is its name."""
    message = record.getMessage()  # Also checks that texts and values agree.
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
    """Return one field: a number as the line would show it, or text without quotes."""
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
    """Write when it happened: UTC, to the millisecond."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _encodable(text: str) -> str:
    """Write bytes of a file name that are not UTF-8 as escapes: no reader takes them."""
    return text.encode("utf-8", "backslashreplace").decode()


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

    So nothing is lost when the signal of `reopen_logs` does not come. The price is a
    `stat` a line.
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

    def reopen(self) -> None:
        """Open the file that has the name now; if that fails the next line tries."""
        self.acquire()
        try:
            with contextlib.suppress(OSError):
                self.reopenIfNeeded()
        finally:
            self.release()

    def close(self) -> None:
        """Close; lines that the disk still refuses are lost, too."""
        with contextlib.suppress(OSError):
            super().close()
