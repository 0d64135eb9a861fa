"""access_log.py: what a line about a request shows, which no client can forge."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcache.http.access_log import AccessLog

NOW_NS = 1_795_251_600_123_456_789  # 2026-11-21, 09:00.
HIT = [("X-Position", "0,4096,1500"), ("X-Cache", "DISK"), ("Content-Length", "5")]
# The fields of nginx's `main`, then ours.
LINE = re.compile(
    r'(?P<remote>[^ "]+) - - \[(?P<time>[^]"]+)\]'
    r' "(?P<method>[^ "]+) (?P<uri>[^ "]*) (?P<protocol>[^ "]+)"'
    r' (?P<status>\d{3}) (?P<bytes>\d+) "(?P<referer>[^"]*)" "(?P<agent>[^"]*)"'
    r' "(?P<forwarded>[^"]*)" cache=(?P<cache>[A-Z]+|-)'
    r" position=(?P<position>\d+,\d+,\d+|-) seconds=(?P<seconds>\d+\.\d{6})\n"
)
ENVIRON = {
    "REQUEST_METHOD": "GET",
    "PATH_INFO": "/a key",
    "QUERY_STRING": "q=1",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "REMOTE_ADDR": "10.1.1.1",
    "HTTP_REFERER": "http://r/",
    "HTTP_USER_AGENT": "curl/8",
    "HTTP_X_FORWARDED_FOR": "10.0.0.1, 10.0.0.2",
}
# The head of the same request.
HEAD = (
    b"GET /a%20key?q=1 HTTP/1.1\r\nHost: t\r\nReferer:  http://r/ \r\n"
    b"X-Forwarded-For: 10.0.0.1\r\nUser-Agent: curl/8\r\nX-Forwarded-For: 10.0.0.2\r\n\r\n"
)


def ask(
    environ: dict[str, str],
    status: str = "200 OK",
    headers: list[tuple[str, str]] = HIT,
    body: tuple[bytes, ...] = (b"value",),
    *,
    as_json: bool = False,
) -> str:
    """Send one request that takes 0.0125 seconds; return its line."""
    lines: list[str] = []
    ticks = iter([1_000, 12_501_000])
    started: list[Any] = []

    def app(_: Any, start_response: Any) -> list[bytes]:
        start_response(status, headers)
        return list(body)

    log = AccessLog(
        app,
        lines.append,
        as_json=as_json,
        clock=lambda: NOW_NS,
        timer=lambda: next(ticks),
    )
    assert log(dict(environ), lambda *given: started.append(given)) == list(body)  # type: ignore[arg-type]
    assert started == [(status, headers, None)]
    (line,) = lines
    return line


def native_line(head: bytes, *, as_json: bool = False) -> str:
    """Return the line of an answer of the gate."""
    lines: list[str] = []
    log = AccessLog(lambda *_: [], lines.append, as_json=as_json, clock=lambda: 0)
    position, ended_us = (0, 4096, 1500), NOW_NS // 1000
    log.add_native(
        "10.1.1.1", head, "200 OK", position, 5, 12_500_000, ended_us, "DISK"
    )
    return "".join(lines)


def test_line_has_the_format_of_nginx_and_three_fields() -> None:
    """Programs that parse nginx's logs can parse the beginning."""
    assert ask(ENVIRON) == (
        '10.1.1.1 - - [21/Nov/2026:09:00:00 +0000] "GET /a%20key?q=1 HTTP/1.1" 200 5'
        ' "http://r/" "curl/8" "10.0.0.1, 10.0.0.2"'
        " cache=DISK position=0,4096,1500 seconds=0.012500\n"
    )


def test_absent_field_is_a_dash() -> None:
    """Every line has every field, also for a request without a path."""
    line = ask({"REQUEST_METHOD": "CONNECT"}, "405 Method Not Allowed", [], ())
    assert line.startswith("- - - [")
    assert line.partition("] ")[2] == (
        '"CONNECT  -" 405 0 "-" "-" "-" cache=- position=- seconds=0.012500\n'
    )


@pytest.mark.property
@given(
    st.fixed_dictionaries(
        dict.fromkeys(ENVIRON, st.text(st.characters(max_codepoint=0xFF)))
    )
)
def test_no_request_forges_a_line_or_a_field(environ: dict[str, str]) -> None:
    """For any input, a line is one line of ASCII with the right fields."""
    line = ask(environ)
    assert line.isascii()
    assert line[:-1].isprintable()
    found = LINE.fullmatch(line)
    assert found
    assert (found["status"], found["bytes"], found["cache"]) == ("200", "5", "DISK")
    assert found["position"] == "0,4096,1500"
    fields = ask(environ, as_json=True)
    assert fields[:-1].isprintable()
    assert len(json.loads(fields)) == 13


def test_length_of_a_line_is_bounded() -> None:
    """Headers of 80 KiB, which bjoern accepts, do not make lines of 80 KiB."""
    assert len(ask(dict.fromkeys(ENVIRON, "/\xe9" * 40_000))) < 8_000


def test_answer_of_the_gate_has_the_line_of_one_of_the_application() -> None:
    """Its head is read only for that; the time is that of the answer."""
    for as_json in (False, True):
        assert native_line(HEAD, as_json=as_json) == ask(ENVIRON, as_json=as_json)


@given(st.binary(max_size=200))
def test_line_of_any_head_has_all_its_fields(head: bytes) -> None:
    """A head that is cut is logged, too."""
    assert LINE.fullmatch(native_line(b"GET /" + head))
