"""logs.py: the form of lines, and where they are written."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.tables import each_row
from volcache.errors import ConfigError
from volcache.logs import JsonFormatter, LineFormatter, reopen_logs, setup_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_line_has_time_level_logger_and_event() -> None:
    """For people and scripts."""
    event = record("rotation.completed volume=%d seq=%d", 4, 18)
    assert LineFormatter().format(event) == (
        "2026-11-21T09:00:00.123Z INFO  volcache.store "
        "rotation.completed volume=4 seq=18"
    )


@each_row(
    ("level", "name"),
    [(10, "DEBUG"), (20, "INFO "), (30, "WARN "), (40, "ERROR"), (50, "FATAL")],
)
def test_level_takes_five_columns(level: int, name: str) -> None:
    """The logger starts in the same column."""
    line = LineFormatter().format(record("event", level=level))
    assert line.split("Z ", 1)[1] == f"{name} volcache.store event"


def test_control_characters_are_escaped() -> None:
    """No key or header can forge a line or move the cursor."""
    event = record("put.failed key=%s", "a\n2026 b\r\x1b[2J\x00\x85\u2028é")
    assert (
        LineFormatter()
        .format(event)
        .endswith("put.failed key=a\\n2026 b\\r\\x1b[2J\\x00\\x85\\u2028é")
    )


def test_traceback_follows_the_line() -> None:
    """On lines of its own."""
    event = record("request.failed", level=logging.ERROR)
    try:
        raise RuntimeError("a bug")  # noqa: TRY301 - A traceback is what is needed.
    except RuntimeError as error:
        event.exc_info = (RuntimeError, error, error.__traceback__)
    first, second, *_, last = LineFormatter().format(event).split("\n")
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


@each_row(
    ("word", "values", "expected"),
    [
        ("%r", ("a 'b'\n",), "a 'b'\n"),
        ("%s", ("caf\udce9",), "caf\\udce9"),
        ("%r", ("caf\udce9",), "caf\\udce9"),
        ("%s", (None,), "None"),
        ("%d", (1 << 40,), 1 << 40),
        ("%g", (2.5,), 2.5),
        ("%.6f", (float("inf"),), "inf"),
        ("%016x", (255,), "00000000000000ff"),
        ("http://%s:%d", ("::1", 80), "http://::1:80"),
        ("volumes", (), "volumes"),
    ],
)
def test_json_value_is_unquoted(
    word: str, values: tuple[object, ...], expected: object
) -> None:
    """Without the quotes and escapes of the text; what is not a number is text."""
    assert as_json(record(f"store.opened value={word}", *values))["value"] == expected


def test_json_of_other_text_is_all_event() -> None:
    """Text that is not of the form of an event is kept whole."""
    assert as_json(record("Slot %d: a=b", 4))["event"] == "Slot 4: a=b"


def test_json_contains_the_traceback() -> None:
    """In the same object."""
    event = record("request.failed path=%r", "/a\nb", level=logging.ERROR)
    try:
        raise RuntimeError("a bug")  # noqa: TRY301 - A traceback is what is needed.
    except RuntimeError as error:
        event.exc_info = (RuntimeError, error, error.__traceback__)
    fields = as_json(event)
    assert (fields["level"], fields["path"]) == ("error", "/a\nb")
    trace = str(fields["traceback"])
    assert trace.startswith("Traceback")
    assert trace.endswith("RuntimeError: a bug")


def test_setting_selects_json(tmp_path: Path) -> None:
    """Each line of the file is an object."""
    path = tmp_path / "log"
    setup_logging("info", str(path), "json")
    for slot in range(2):
        logging.getLogger("volcache.store").info("rotation.completed slot=%d", slot)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line["slot"]) for line in lines] == [
        ("rotation.completed", 0),
        ("rotation.completed", 1),
    ]


def test_empty_file_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written to standard output."""
    setup_logging("info", "")
    logging.getLogger("volcache.web").info("served")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  volcache\.web served\n", err
    )


def test_lower_levels_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The level itself is."""
    setup_logging("warning", "")
    logging.getLogger("volcache.web").info("quiet")
    logging.getLogger("volcache.web").warning("loud")
    err = capsys.readouterr().err
    assert "quiet" not in err
    assert "loud" in err


def test_file_is_appended_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restart keeps the lines; standard error stays empty."""
    path = tmp_path / "log"
    for event in ("first", "second"):
        setup_logging("info", str(path))
        logging.getLogger("volcache.store").info(event)
    assert [line.split()[-1] for line in path.read_text().splitlines()] == [
        "first",
        "second",
    ]
    assert capsys.readouterr() == ("", "")


def test_renamed_file_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    """As logrotate does it; the next line needs no signal."""
    path, moved = tmp_path / "log", tmp_path / "log.1"
    setup_logging("info", str(path))
    log = logging.getLogger("volcache.store")
    log.info("before")
    path.rename(moved)
    log.info("after")
    assert moved.read_text().split()[-1] == "before"
    assert path.read_text().split()[-1] == "after"


def test_reopen_creates_the_file_before_the_next_line(tmp_path: Path) -> None:
    """The caller need not wait for a line."""
    path = tmp_path / "log"
    setup_logging("info", str(path))
    path.rename(tmp_path / "log.1")
    reopen_logs()
    assert path.read_text() == ""


def test_reopen_does_not_raise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a file, and with one whose directory is missing."""
    setup_logging("info", "")
    reopen_logs()
    folder = tmp_path / "logs"
    folder.mkdir()
    setup_logging("info", str(folder / "log"))
    folder.rename(tmp_path / "moved")
    reopen_logs()
    folder.mkdir()
    logging.getLogger("volcache.store").info("found")
    assert (folder / "log").read_text().split()[-1] == "found"
    assert capsys.readouterr() == ("", "")


def test_lines_are_dropped_while_the_file_cannot_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log call never raises, and later lines are written when the directory is back."""
    folder = tmp_path / "logs"
    folder.mkdir()
    setup_logging("info", str(folder / "log"))
    log = logging.getLogger("volcache.store")
    folder.rename(tmp_path / "moved")
    log.info("lost")
    folder.mkdir()
    log.info("found")
    assert (folder / "log").read_text().split()[-1] == "found"
    assert capsys.readouterr() == ("", "")


def test_second_setup_replaces_the_first(
    tmp_path: Path, logger: logging.Logger
) -> None:
    """No line is written twice and no file stays open."""
    for name in ("one", "two"):
        setup_logging("info", str(tmp_path / name))
    logging.getLogger("volcache.store").info("event")
    assert len(logger.handlers) == 1
    assert (tmp_path / "one").read_text() == ""
    assert "event" in (tmp_path / "two").read_text()


def test_file_that_cannot_be_opened_is_an_error_of_one_line(
    tmp_path: Path, logger: logging.Logger
) -> None:
    """It names setting, file and reason; the destination is unchanged."""
    setup_logging("info", "")
    before = list(logger.handlers)
    with pytest.raises(ConfigError) as caught:
        setup_logging("info", str(tmp_path))
    assert str(caught.value) == (
        f'log_file = "{tmp_path}" cannot be opened: Is a directory; use a file that'
        " this user may write to, in an existing directory"
    )
    assert logger.handlers == before


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
def test_full_disk_drops_the_line(
    capsys: pytest.CaptureFixture[str], logger: logging.Logger
) -> None:
    """The call neither raises nor prints."""
    setup_logging("info", str(FULL_DISK))
    logging.getLogger("volcache.store").info("lost")
    logger.handlers[0].close()
    assert capsys.readouterr() == ("", "")


def test_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    """A file name of any bytes can be part of a line."""
    path = tmp_path / "log"
    setup_logging("info", str(path))
    logging.getLogger("volcache.store").info("opened path=%s", "caf\udce9")
    assert path.read_text().endswith("opened path=caf\\udce9\n")


def test_wrong_log_call_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error; it does not raise."""
    setup_logging("info", "")
    logging.getLogger("volcache.store").info("slot=%d", "four")
    assert "Logging error" in capsys.readouterr().err
