"""command_log.py: lines about commands, which no client can forge."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tables import each_row
from volcache.cli.tail import parse_line
from volcache.memcache.command_log import CommandLog, result_of
from volcache.memcache.commands import (
    Authenticate,
    Command,
    Delete,
    Get,
    Put,
    Result,
    Simple,
    Status,
)
from volcache.store import Record

NOW_NS = 1_795_251_600_123_456_789  # 2026-11-21, 09:00.
RECORD = Record(b"value", b"", b"", b"", 1, 0, 0, 7, 4096, 1500, 5, 0, "MEMC")
HIT = Result(Status.HIT, RECORD)


def make(
    slow_seconds: float = 0.0,
    add: Callable[[str], None] | None = None,
    *,
    as_json: bool = False,
) -> CommandLog:
    """Return a log at a fixed time."""
    return CommandLog(
        slow_seconds,
        lambda _: (20_000_000, 5_000_000),
        add=add,
        as_json=as_json,
        clock=lambda: NOW_NS,
    )


def line_of(command: Command, result: Result, *, as_json: bool = False) -> str:
    """Return the line of a command that takes 0.0125 seconds and sends 27 bytes."""
    lines: list[str] = []
    log = make(add=lines.append, as_json=as_json)
    log.done("127.0.0.1", command, result, 0, 12_500_000, 27)
    (line,) = lines
    assert line.isascii()
    assert line.endswith("\n")
    assert "\n" not in line[:-1]
    return line[:-1]


def test_line_has_the_fields_of_one_about_a_request() -> None:
    """In the same order, and the result."""
    assert line_of(Get("get", b"a key/\xe9"), HIT) == (
        "127.0.0.1 - - [21/Nov/2026:09:00:00 +0000]"
        ' "get /a%20key/%E9 memcache" 200 27 "-" "-" "-"'
        " cache=MEMC position=7,4096,1500 result=hit seconds=0.012500"
    )
    assert line_of(Get("get", b"key"), Result(Status.MISS)).endswith(
        '"get /key memcache" 404 27 "-" "-" "-"'
        " cache=MISS position=- result=miss seconds=0.012500"
    )
    stored = line_of(Put("set", b"key", "set", b"v"), Result(Status.STORED, RECORD))
    assert " 201 27 " in stored
    assert " cache=- position=7,4096,1500 result=stored " in stored


@each_row("as_json", [False, True])
def test_password_is_not_written(*, as_json: bool) -> None:
    """Nor the user; a command without a key has a dash in its place."""
    command = Authenticate("auth", b"somebody", b"secret")
    line = line_of(command, Result(Status.DENIED), as_json=as_json)
    assert "secret" not in line
    assert "somebody" not in line
    request = parse_line(line.encode())
    assert request is not None
    assert (request.method, request.key, request.status) == ("auth", b"-", "401")


@pytest.mark.parametrize("as_json", [False, True])
@given(key=st.binary(min_size=1, max_size=50), name=st.text(max_size=50))
def test_client_cannot_forge_a_field(*, as_json: bool, key: bytes, name: str) -> None:
    """Whatever the key and the name are; `volcache tail` reads the key."""
    line = line_of(Delete(name, key), Result(Status.DELETED), as_json=as_json)
    request = parse_line(line.encode())
    assert request is not None
    assert (request.key, request.status, request.seconds) == (key, "204", 0.0125)


@each_row("status", Status)
def test_every_result_has_a_status_of_http(status: Status) -> None:
    """With three digits, as parsers of access logs expect."""
    request = parse_line(line_of(Get("get", b"key"), Result(status)).encode())
    assert request is not None
    assert 200 <= int(request.status) < 600


def test_command_that_cannot_be_understood_is_an_error() -> None:
    """Its result is OK: the protocol answers it by itself."""
    command = Simple("x", is_error=True)
    assert result_of(command, Result(Status.OK)) == "error"
    assert '"x - memcache" 400 ' in line_of(command, Result(Status.OK))
    assert result_of(Simple("version"), Result(Status.OK)) == "ok"


def test_nothing_need_be_passed_if_all_is_off() -> None:
    """No duration is above the threshold; with an access log all are."""
    assert make().threshold_ns > 10**18
    assert make(0.25).threshold_ns == 250_000_000
    assert make(0.25, add=lambda _: None).threshold_ns == -1
    log = make()
    log.set_slow(0.5)
    assert log.threshold_ns == 500_000_000


def test_slow_command_is_logged_with_what_it_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that is not slow is not; both have a line in the access log."""
    lines: list[str] = []
    log = make(0.01, add=lines.append)
    for ns in (50_000_000, 10_000_000):
        log.done("192.0.2.1", Get("get", b"a key"), HIT, 0, ns, 27)
    (record,) = caplog.records
    assert (record.levelno, len(lines)) == (logging.WARNING, 2)
    assert record.message == (
        "command.slow remote=192.0.2.1 command=get key=a%20key result=hit"
        " seconds=0.050000 memcached=0.005000 disk=0.020000 rest=0.025000 left_out=0"
    )
