"""Log lines: their form, their place, and that they never stop the service."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from volcache.errors import ConfigError
from volcache.logs import JsonFormatter, LineFormatter, reopen_logs, setup_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL_DISK = Path("/dev/full")


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """Give the package's logger and put it back as it was."""
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
    """Make one event of a known moment."""
    made = logging.LogRecord(
        "volcache.store", level, "file.py", 1, message, args, exc_info=None
    )
    made.created, made.msecs = 1795251600.1239, 123.9
    return made


def test_line_has_time_level_logger_and_event() -> None:
    """The form that people and scripts read."""
    event = record("rotation.completed slot=%d generation=%d", 4, 18)
    assert LineFormatter().format(event) == (
        "2026-11-21T09:00:00.123Z INFO  volcache.store "
        "rotation.completed slot=4 generation=18"
    )


@pytest.mark.parametrize(
    ("level", "name"),
    [(10, "DEBUG"), (20, "INFO "), (30, "WARN "), (40, "ERROR"), (50, "FATAL")],
)
def test_level_takes_five_columns(level: int, name: str) -> None:
    """What follows the level stands in one column."""
    line = LineFormatter().format(record("event", level=level))
    assert line.split("Z ", 1)[1] == f"{name} volcache.store event"


def test_what_a_client_sent_stays_on_one_line() -> None:
    """No key and no header can forge a line or move the cursor."""
    event = record("put.failed key=%s", "a\n2026 b\r\x1b[2J\x00\x85\u2028é")
    assert (
        LineFormatter()
        .format(event)
        .endswith("put.failed key=a\\n2026 b\\r\\x1b[2J\\x00\\x85\\u2028é")
    )


def test_traceback_follows_the_line() -> None:
    """A bug shows where it is."""
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
    """Write one event as JSON and read it again."""
    line = JsonFormatter().format(event)
    assert line.isascii()
    assert line.isprintable()  # So it is one line.
    fields = json.loads(line)
    assert isinstance(fields, dict)
    return fields


def test_json_has_the_fields_of_the_text_in_order() -> None:
    """Names are those of the text, numbers are numbers, as exact as in the text."""
    event = record(
        "rotation.completed slot=%d generation=%d seconds=%.3f", 4, 18, 0.12349
    )
    assert list(as_json(event).items()) == [
        ("time", "2026-11-21T09:00:00.123Z"),
        ("level", "info"),
        ("logger", "volcache.store"),
        ("event", "rotation.completed"),
        ("slot", 4),
        ("generation", 18),
        ("seconds", 0.123),
    ]


@pytest.mark.parametrize(
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
def test_json_value_is_what_the_text_means(
    word: str, values: tuple[object, ...], expected: object
) -> None:
    """Quotes and escapes of the text are left out; what is no number is text."""
    assert as_json(record(f"store.opened value={word}", *values))["value"] == expected


def test_json_of_another_text_is_all_event() -> None:
    """What does not have the form of an event is kept whole."""
    assert as_json(record("Slot %d: a=b", 4))["event"] == "Slot 4: a=b"


def test_json_holds_the_traceback() -> None:
    """A bug shows where it is, in the same object."""
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


def test_setting_chooses_json(tmp_path: Path) -> None:
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
    """Without a file lines go to standard error, and nothing to standard output."""
    setup_logging("info", "")
    logging.getLogger("volcache.web").info("served")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  volcache\.web served\n", err
    )


def test_level_cuts_off_what_is_below(capsys: pytest.CaptureFixture[str]) -> None:
    """The chosen level is the least that is written."""
    setup_logging("warning", "")
    logging.getLogger("volcache.web").info("quiet")
    logging.getLogger("volcache.web").warning("loud")
    err = capsys.readouterr().err
    assert "quiet" not in err
    assert "loud" in err


def test_file_is_appended_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restart keeps what was logged before; standard error stays empty."""
    path = tmp_path / "log"
    for event in ("first", "second"):
        setup_logging("info", str(path))
        logging.getLogger("volcache.store").info(event)
    assert [line.split()[-1] for line in path.read_text().splitlines()] == [
        "first",
        "second",
    ]
    assert capsys.readouterr() == ("", "")


def test_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    """What logrotate does needs no signal: the next line is in the new file."""
    path, moved = tmp_path / "log", tmp_path / "log.1"
    setup_logging("info", str(path))
    log = logging.getLogger("volcache.store")
    log.info("before")
    path.rename(moved)
    log.info("after")
    assert moved.read_text().split()[-1] == "before"
    assert path.read_text().split()[-1] == "after"


def test_file_is_begun_anew_before_the_next_line(tmp_path: Path) -> None:
    """Who asks for it need not wait for a line."""
    path = tmp_path / "log"
    setup_logging("info", str(path))
    path.rename(tmp_path / "log.1")
    reopen_logs()
    assert path.read_text() == ""


def test_asking_for_a_new_file_raises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a file, and with one whose folder is gone."""
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


def test_file_that_cannot_be_begun_anew_loses_lines_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log call never raises, and the lines come again when the folder does."""
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


def test_file_that_cannot_be_opened_is_one_line(
    tmp_path: Path, logger: logging.Logger
) -> None:
    """The line names setting, file and reason; logging stays as it was."""
    setup_logging("info", "")
    before = list(logger.handlers)
    with pytest.raises(ConfigError) as caught:
        setup_logging("info", str(tmp_path))
    assert str(caught.value) == (
        f'log_file = "{tmp_path}" cannot be opened: Is a directory; give a file that'
        " this user may write to, in a folder that is there"
    )
    assert logger.handlers == before


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
def test_full_disk_loses_the_line_and_nothing_else(
    capsys: pytest.CaptureFixture[str], logger: logging.Logger
) -> None:
    """A line that cannot be written raises nothing and prints nothing."""
    setup_logging("info", str(FULL_DISK))
    logging.getLogger("volcache.store").info("lost")
    logger.handlers[0].close()
    assert capsys.readouterr() == ("", "")


def test_name_that_is_not_utf8_is_logged(tmp_path: Path) -> None:
    """A file name of any bytes can be part of a line."""
    path = tmp_path / "log"
    setup_logging("info", str(path))
    logging.getLogger("volcache.store").info("opened path=%s", "caf\udce9")
    assert path.read_text().endswith("opened path=caf\\udce9\n")


def test_wrong_log_call_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake in a log call is ours to see, and raises nothing either."""
    setup_logging("info", "")
    logging.getLogger("volcache.store").info("slot=%d", "four")
    assert "Logging error" in capsys.readouterr().err
