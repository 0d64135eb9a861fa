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

from volcache.memcache.command_log import CommandLog

PLACE = 7, 4096, 1500
LINE = re.compile(
    r'127\.0\.0\.1 - - \[[^]]*\] "\S+ (\S+) memcache" (\d{3}) 27 .* seconds=(\S+)\n'
)
RESULTS = (
    *("hit", "miss", "stored", "exists", "error", "denied", "forbidden", "too_large"),
    *("failed", "bad_key", "ok", "unauthorized", "touched", "non_numeric"),
)


def make(add: Callable[[str], None] | None = None, **more: Any) -> CommandLog:
    """Return a log of what takes more than 0.02 seconds."""
    return CommandLog(0.02, lambda _: (20_000_000, 5_000_000), add=add, **more)


def line_of(
    name: str,
    key: bytes | None,
    result: str,
    *,
    as_json: bool = False,
    position: tuple[int, int, int] | None = None,
    source: str = "DISK",
) -> str:
    """Return the line of a command that takes 0.0125 seconds and sends 27 bytes."""
    lines: list[str] = []
    make(lines.append, as_json=as_json, clock=lambda: 0).add(
        "127.0.0.1",
        name,
        key,
        result,
        started_ns=0,
        took_ns=12_500_000,
        size=27,
        position=position,
        source=source,
    )
    (line,) = lines
    return line


def test_line_has_the_fields_of_one_about_a_request() -> None:
    """The command, the key and the result are in the places of those of HTTP."""
    start = "127.0.0.1 - - [01/Jan/1970:00:00:00 +0000] "
    for name, key, place, fields, more in (
        ("get", b"a key/\xe9", PLACE, "get /a%20key/%E9", "MEMC 7,4096,1500 hit 200"),
        ("mg", b"key", None, "mg /key", "MISS - miss 404"),
        ("set", b"k", PLACE, "set /k", "- 7,4096,1500 stored 201"),
        ("x", None, None, "x -", "- - error 400"),
        ("version", None, None, "version -", "- - ok 200"),
        ("auth", None, None, "auth -", "- - denied 401"),
    ):
        cache, position, result, status = more.split()
        line = line_of(name, key, result, position=place, source=cache)
        assert line == (
            f'{start}"{fields} memcache" {status} 27 "-" "-" "-"'
            f" cache={cache} position={position} result={result} seconds=0.012500\n"
        )


@pytest.mark.parametrize("as_json", [False, True])
@given(
    key=st.binary(min_size=1, max_size=50),
    name=st.text(max_size=50),
    result=st.sampled_from(RESULTS),
)
def test_client_cannot_forge_a_field(
    *, as_json: bool, key: bytes, name: str, result: str
) -> None:
    """Whatever key and name are; every result has a status of HTTP."""
    line = line_of(name, key, result, as_json=as_json)
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
        log.add(
            "192.0.2.1",
            "get",
            b"a key",
            "hit",
            started_ns=0,
            took_ns=ns,
            size=27,
            position=PLACE,
        )
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
