"""logs.py: the form of lines, and where they are written."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volcache.logs import JsonFormatter, LineFormatter, reopen_logs, setup_logging

FULL_DISK = Path("/dev/full")


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """Yield the logger of the package, and restore it."""
    logger = logging.getLogger("volcache")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    logger.handlers.clear()
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


def record(message: str, *args: object, level: int = logging.INFO) -> logging.LogRecord:
    """Return one event with a known time."""
    made = logging.LogRecord(
        "volcache.store", level, "file.py", 1, message, args, exc_info=None
    )
    made.created, made.msecs = 1795251600.1239, 123.9
    return made


def failed(message: str, *args: object) -> logging.LogRecord:
    """Return an event with a traceback."""
    event = record(message, *args, level=logging.ERROR)
    try:
        raise RuntimeError("a bug")  # noqa: TRY301 - A traceback is what is needed.
    except RuntimeError as error:
        event.exc_info = (RuntimeError, error, error.__traceback__)
    return event


def test_line_has_time_level_logger_and_event() -> None:
    """For people and scripts; the logger starts in the same column."""
    format_line = LineFormatter().format
    levels = zip(
        (10, 20, 30, 40, 50), ["DEBUG", "INFO ", "WARN ", "ERROR", "FATAL"], strict=True
    )
    for level, name in levels:
        event = record("rotation.completed volume=%d seq=%d", 4, 18, level=level)
        assert format_line(event) == (
            f"2026-11-21T09:00:00.123Z {name} volcache.store "
            "rotation.completed volume=4 seq=18"
        )
    # No key or header can forge a line or move the cursor.
    event = record("put.failed key=%s", "a\n2026 b\r\x1b[2J\x00\x85\u2028é")
    escaped = "put.failed key=a\\n2026 b\\r\\x1b[2J\\x00\\x85\\u2028é"
    assert format_line(event).endswith(escaped)
    first, second, *_, last = format_line(failed("request.failed")).split("\n")
    assert first.endswith("request.failed")
    assert second.startswith("Traceback")
    assert last == "RuntimeError: a bug"


def as_json(event: logging.LogRecord) -> dict[str, object]:
    """Format one event as JSON and parse it."""
    line = JsonFormatter().format(event)
    assert line.isascii()
    assert line.isprintable()  # So it is one line.
    fields = json.loads(line)
    assert isinstance(fields, dict)
    return fields


def test_json_has_the_fields_of_the_text_in_order() -> None:
    """With the same names; numbers are numbers, as exact as in the text."""
    event = record("rotation.completed volume=%d seq=%d seconds=%.3f", 4, 18, 0.12349)
    assert list(as_json(event).items()) == [
        ("time", "2026-11-21T09:00:00.123Z"),
        ("level", "info"),
        ("logger", "volcache.store"),
        ("event", "rotation.completed"),
        ("volume", 4),
        ("seq", 18),
        ("seconds", 0.123),
    ]


def test_json_log_has_values_without_quotes() -> None:
    """Without the quotes and escapes of the text; what is not a number is text."""
    rows: list[tuple[str, tuple[object, ...], object]] = [
        ("%r", ("a 'b'\n",), "a 'b'\n"),
        *((word, ("caf\udce9",), "caf\\udce9") for word in ("%s", "%r")),
        ("%s", (None,), "None"),
        ("%d", (1 << 40,), 1 << 40),
        ("%g", (2.5,), 2.5),
        ("%.6f", (float("inf"),), "inf"),
        ("%016x", (255,), "00000000000000ff"),
        ("http://%s:%d", ("::1", 80), "http://::1:80"),
        ("volumes", (), "volumes"),
    ]
    for word, values, expected in rows:
        assert (
            as_json(record(f"store.opened value={word}", *values))["value"] == expected
        )
    assert as_json(record("Slot %d: a=b", 4))["event"] == "Slot 4: a=b"
    fields = as_json(failed("request.failed path=%r", "/a\nb"))
    assert (fields["level"], fields["path"]) == ("error", "/a\nb")
    trace = str(fields["traceback"])
    assert trace.startswith("Traceback")
    assert trace.endswith("RuntimeError: a bug")


# --- Where lines are written -------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file in a folder of its own."""
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder / "log"


def log(event: str, *args: object) -> None:
    """Log an event."""
    logging.getLogger("volcache.store").info(event, *args)


def events(path: Path) -> list[str]:
    """Return the last word of each line."""
    return [line.split()[-1] for line in path.read_text().splitlines()]


def test_log_format_json_writes_objects(path: Path) -> None:
    """Each line of the file is an object."""
    setup_logging("info", str(path), "json")
    for slot in range(2):
        log("rotation.completed slot=%d", slot)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["slot"] for line in lines] == [0, 1]
    assert {line["event"] for line in lines} == {"rotation.completed"}


def test_log_without_a_file_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is written to standard output, and nothing below the level."""
    setup_logging("warning", "")
    log("quiet")
    logging.getLogger("volcache.web").warning("loud")
    out, err = capsys.readouterr()
    assert out == ""
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} WARN  volcache\.web loud\n", err)


def test_log_file_that_exists_is_appended_to(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restart keeps the lines; file names of any bytes are escaped."""
    for event in ("first", "second"):
        setup_logging("info", str(path))
        log(event)
    log("opened path=%s", "caf\udce9")
    assert events(path) == ["first", "second", "path=caf\\udce9"]
    assert capsys.readouterr() == ("", "")


def test_renamed_file_is_replaced_by_a_new_one(path: Path) -> None:
    """As logrotate does it; the next line needs no signal, nor does reopen a line."""
    setup_logging("info", str(path))
    log("before")
    moved = path.rename(path.with_name("log.1"))
    log("after")
    assert (events(moved), events(path)) == (["before"], ["after"])
    path.rename(moved)
    reopen_logs()
    assert path.read_text() == ""


@pytest.mark.parametrize("call", [reopen_logs, lambda: log("lost")])
def test_file_that_cannot_be_opened_is_opened_later(
    path: Path, capsys: pytest.CaptureFixture[str], call: Callable[[], None]
) -> None:
    """No call raises, and lines are written when the directory is back."""
    setup_logging("info", "")
    reopen_logs()
    setup_logging("info", str(path))
    path.parent.rename(path.parent.with_name("moved"))
    call()
    path.parent.mkdir()
    log("found")
    assert events(path) == ["found"]
    assert capsys.readouterr() == ("", "")


def test_second_setup_replaces_the_first(path: Path, logger: logging.Logger) -> None:
    """No line is written twice and no file stays open."""
    other = path.with_name("other")
    for one in (other, path):
        setup_logging("info", str(one))
    log("event")
    assert len(logger.handlers) == 1
    assert (events(other), events(path)) == ([], ["event"])


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
def test_log_line_for_a_full_disk_is_dropped(
    capsys: pytest.CaptureFixture[str], logger: logging.Logger
) -> None:
    """The call neither raises nor prints."""
    setup_logging("info", str(FULL_DISK))
    log("lost")
    logger.handlers[0].close()
    assert capsys.readouterr() == ("", "")


def test_wrong_log_call_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error; it does not raise."""
    setup_logging("info", "")
    log("slot=%d", "four")
    assert "Logging error" in capsys.readouterr().err
