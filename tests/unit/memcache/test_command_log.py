"""command_log.py: what lines about commands show, and that no client can forge one."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

RECORD = Record(b"value", b"", b"", b"", 1, 0, 0, 7, 4096, 1500, 5, 0, "MEMC")
LINE = re.compile(
    r'127\.0\.0\.1 - - \[[^]]*\] "\S+ (\S+) memcache" (\d{3}) 27 .* seconds=(\S+)\n'
)
HIT, OK = Result(Status.HIT, RECORD), Result(Status.OK)


def make(add: Callable[[str], None] | None = None, **more: Any) -> CommandLog:
    """Return a log of what takes more than 0.02 seconds."""
    return CommandLog(0.02, lambda _: (20_000_000, 5_000_000), add=add, **more)


def line_of(command: Command, result: Result, *, as_json: bool = False) -> str:
    """Return the line of a command that takes 0.0125 seconds and sends 27 bytes."""
    lines: list[str] = []
    log = make(lines.append, as_json=as_json, clock=lambda: 0)
    log.done("127.0.0.1", command, result, 0, 12_500_000, 27)
    (line,) = lines
    return line


def test_line_has_the_fields_of_one_about_a_request() -> None:
    """The command, the key and the result are in the places of those of HTTP."""
    start = "127.0.0.1 - - [01/Jan/1970:00:00:00 +0000] "
    stored = Result(Status.STORED, RECORD)
    for command, result, fields, more in (
        (
            Get("get", b"a key/\xe9"),
            HIT,
            "get /a%20key/%E9",
            "MEMC 7,4096,1500 hit 200",
        ),
        (Get("mg", b"key"), Result(Status.MISS), "mg /key", "MISS - miss 404"),
        (Put("set", b"k", "set", b""), stored, "set /k", "- 7,4096,1500 stored 201"),
        (Simple("x", is_error=True), OK, "x -", "- - error 400"),
        (Simple("version"), OK, "version -", "- - ok 200"),
        # Neither the user nor the password is written.
        (
            Authenticate("auth", b"u", b"p"),
            Result(Status.DENIED),
            "auth -",
            "- - denied 401",
        ),
    ):
        cache, position, name, status = more.split()
        assert line_of(command, result) == (
            f'{start}"{fields} memcache" {status} 27 "-" "-" "-"'
            f" cache={cache} position={position} result={name} seconds=0.012500\n"
        )
        assert result_of(command, result) == name


@pytest.mark.parametrize("as_json", [False, True])
@given(
    key=st.binary(min_size=1, max_size=50),
    name=st.text(max_size=50),
    status=st.sampled_from(Status),
)
def test_client_cannot_forge_a_field(
    *, as_json: bool, key: bytes, name: str, status: Status
) -> None:
    """Whatever key and name are; every result has a status of HTTP."""
    line = line_of(Delete(name, key), Result(status), as_json=as_json)
    assert line.isascii()
    assert line.index("\n") == len(line) - 1
    if as_json:
        fields = json.loads(line)
        uri, code, seconds = fields["uri"], fields["status"], fields["seconds"]
    else:
        found = LINE.fullmatch(line)
        assert found is not None
        uri, code, seconds = found.groups()
    assert (unquote_to_bytes(uri), float(seconds)) == (b"/" + key, 0.0125)
    assert 200 <= int(code) < 600


def test_slow_command_is_logged_with_what_it_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that is not slow is not; with an access log, all are passed to it."""
    log = make()
    for ns in (50_000_000, 10_000_000):
        log.done("192.0.2.1", Get("get", b"a key"), HIT, 0, ns, 27)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == (
        "command.slow remote=192.0.2.1 command=get key=a%20key result=hit"
        " seconds=0.050000 memcached=0.005000 disk=0.020000 rest=0.025000 left_out=0"
    )
    assert log.threshold_ns == 20_000_000
    log.set_slow(0.5)
    assert log.threshold_ns == 500_000_000
    assert make(lambda _: None).threshold_ns == -1
