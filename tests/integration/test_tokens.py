"""Tokens on the wire; tests/unit/http has their forms, tests/cluster those of nginx."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.process import MIB, ServerProcess, Servers
from support.wire import Reply, Talk, exchange, request_bytes, send

pytestmark = [pytest.mark.sampled(4), pytest.mark.integration]

# Bytes of UTF-8 in a header are latin-1 characters for the helpers.
READ: Final = "l\N{LATIN SMALL LETTER E WITH ACUTE}s:en"
WRITE: Final = "s\N{EURO SIGN}cret,1"
TOKENS: Final = {"read_token": READ, "write_token": WRITE, "admin_token": "\xfc-admin"}
READS: Final = ("GET", "HEAD", "PROPFIND")
WRITES: Final = ("PUT", "DELETE", "MKCOL", "POST")


def bearer(token: str, encoding: str = "utf-8", scheme: str = "Bearer") -> str:
    """Return the header."""
    return f"Authorization: {scheme} {token.encode(encoding).decode('latin-1')}"


@pytest.fixture
def port(servers: Servers) -> Iterator[int]:
    """Return the port of an instance with three tokens; `/key` has ten digits."""
    with servers.server(**TOKENS) as server:
        put = exchange(server.port, "PUT", "/key", b"0123456789", bearer(WRITE))
        assert put.status == 200
        yield server.port
        got = exchange(server.port, "GET", "/key", None, bearer(READ))
        assert got.body == b"0123456789"


def assert_refused(reply: Reply, word: str = "") -> None:
    """Check a 401: one line, and what a client needs to send its password."""
    assert reply.status == 401
    assert reply.headers.get_all("WWW-Authenticate") == [
        'Basic realm="volcache", charset="UTF-8"',
        'Bearer realm="volcache"',
    ]
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "Date" in reply.headers
    assert reply.body.count(b"\n") <= 1
    assert word.encode() in reply.body


def test_request_without_its_token_is_refused(port: int) -> None:
    """With one line that names the setting; nothing is read or changed."""
    for method, header in (
        *((method, "") for method in READS + WRITES),
        *((method, bearer(READ)) for method in WRITES),
        *((method, bearer(TOKENS["admin_token"])) for method in READS),
    ):
        body = b"new" if method in {"PUT", "POST"} else None
        name = "read_token" if method in READS else "write_token"
        reply = exchange(port, method, "/key", body, header)
        assert_refused(reply, "" if method == "HEAD" else name)


def test_health_checks_and_preflights_need_no_token(port: int) -> None:
    """OPTIONS, and what the operator and load balancers read."""
    assert exchange(port, "OPTIONS", "/").status == 200
    assert exchange(port, "OPTIONS", "/key").status == 200
    for path in ("/-/healthy", "/-/ready", "/-/metrics"):
        assert exchange(port, "GET", path).status == 200


def test_request_for_another_spelling_of_a_path_needs_the_token(port: int) -> None:
    """Only what the operator's code answers is open, and that has no values."""
    for path in ("/-/../key", "/%2D/../key", "/./key", "//../key"):
        reply = exchange(port, "GET", path)
        assert reply.status in {400, 401, 404, 421}
        assert b"0123456789" not in reply.body
        assert exchange(port, "PUT", path, b"new").status in {400, 401, 405, 421}


def test_pipelined_requests_are_checked_one_by_one(port: int) -> None:
    """A token counts for its own request, not for the connection."""
    right, wrong = bearer(WRITE), bearer("wrong")
    parts = [
        request_bytes("PUT", "/pipe", b"GET /key HTTP/1.1\r\n\r\n", right),
        request_bytes("GET", "/pipe"),
        request_bytes("GET", "/pipe", None, right),
        request_bytes("PUT", "/pipe", b"other", wrong),
        request_bytes("GET", "/none", None, right),
        request_bytes("GET", "/none"),
        request_bytes("GET", "/pipe", None, right),
    ]
    with Talk(port) as talk:
        talk.send(b"".join(parts))
        replies = [talk.read() for _ in parts]
    assert [reply.status for reply in replies] == [200, 401, 200, 401, 404, 401, 200]
    assert replies[2].body == replies[6].body == b"GET /key HTTP/1.1\r\n\r\n"


def test_refused_upload_does_not_disturb_the_connection(port: int) -> None:
    """Its body is read and dropped: sent at once, after a 100, or in chunks."""
    large = b"x" * MIB
    chunked = (
        b"PUT /large HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"100000\r\n" + large + b"\r\n0\r\n\r\n"
    )
    with Talk(port) as talk:
        assert talk.exchange("PUT", "/large", large).status == 401
        talk.send(chunked)
        assert talk.read().status == 401
        talk.send(
            b"PUT /large HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert talk.read().status == 100
        talk.send(b"x")
        assert talk.read().status == 401
        assert talk.exchange("GET", "/large", None, bearer(READ)).status == 404


def test_curl_sends_its_password_when_it_is_asked(port: int, tmp_path: Path) -> None:
    """`--anyauth` waits for the challenges; `-u` and `--oauth2-bearer` send it at once."""
    (tmp_path / "file").write_bytes(b"by curl")
    url = f"http://127.0.0.1:{port}/curl"
    token = WRITE
    for options in (["-u", f"any:{token}"], ["--anyauth", "-u", f"any:{token}"]):
        command = ["curl", "-sSf", "-w", "%{http_code}", *options]
        put = [*command, "-T", str(tmp_path / "file"), url]
        assert subprocess.run(put, capture_output=True, check=True).stdout == b"200"
        got = subprocess.run([*command, url], capture_output=True, check=True)
        assert got.stdout == b"by curl200"


def test_refusals_are_counted_and_logged_without_the_token(tmp_path: Path) -> None:
    """A line per kind, with what was left out in the next; no token is in any output."""
    access = tmp_path / "access.log"
    wrong = "gu\xe9ss"
    settings = {**TOKENS, "log_access": access, "log_format": "json"}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        for _ in range(3):
            assert exchange(server.port, "GET", "/a%20b").status == 401
        for _ in range(2):
            forwarded = f'X-Forwarded-For: 10.0.0.9, "x"\n{bearer(wrong)}'
            reply = exchange(server.port, "PUT", "/%0A", b"", forwarded)
            assert reply.status == 401
        flush = exchange(server.port, "POST", "/-/flush", b"", bearer(wrong))
        assert flush.status == 401
        assert exchange(server.port, "GET", "/a", None, bearer(READ)).status == 404
        found = json.loads(exchange(server.port, "GET", "/-/stats").body)
        metrics = exchange(server.port, "GET", "/-/metrics").body.decode()
        server.terminate()
        log = server.stderr
        lines = [json.loads(line) for line in log.splitlines()]
        lines = [line for line in lines if line["event"] == "request.unauthorized"]
        assert found["requests"]["unauthorized"] == {"read": 3, "write": 2, "admin": 1}
        assert 'volcache_unauthorized_total{kind="write"} 2.0' in metrics
        by = {
            (row["method"], row["status"]): row["count"]
            for row in found["requests"]["by"]
        }
        assert by["GET", 401] == 3
        assert by["PUT", 401] == 2
        shown = access.read_text() + log + metrics + json.dumps(found)
    names = ("kind", "reason", "address", "method", "path", "left_out")
    assert [tuple(line[name] for name in names) for line in lines] == [
        ("read", "missing", "127.0.0.1", "GET", "/a%20b", 0),
        ("write", "wrong", "127.0.0.1", "PUT", "/%0A", 0),
        ("admin", "wrong", "127.0.0.1", "POST", "/-/flush", 0),
    ]
    assert lines[1]["forwarded"] == r"10.0.0.9, \x22x\x22"
    for token in (READ, WRITE, TOKENS["admin_token"], wrong):
        for form in (token, json.dumps(token)[1:-1], token.encode().decode("latin-1")):
            assert form not in shown


@pytest.mark.parametrize(
    ("settings", "reads", "writes"),
    [({"read_token": "r"}, 401, 200), ({"write_token": "w"}, 200, 401), ({}, 200, 200)],
)
def test_each_token_is_for_its_requests_alone(
    servers: Servers, settings: dict[str, str], reads: int, writes: int
) -> None:
    """Without one, everyone may; a GET that C answers is no exception."""
    with servers.server(**settings) as server:
        right = bearer("w" if "write_token" in settings else "r")
        with Talk(server.port) as talk:
            assert talk.exchange("PUT", "/key", b"value", right).status == 200
            assert talk.exchange("GET", "/key").status == reads
            assert talk.exchange("GET", "/key", None, right).status == 200
            assert talk.exchange("HEAD", "/key").status == reads
            missed = talk.exchange("GET", "/none").status
            assert missed == (404 if reads == 200 else 401)
            assert talk.exchange("PUT", "/key", b"value").status == writes
            assert talk.exchange("DELETE", "/key").status == writes
        before = send(server.port, request_bytes("GET", "/none", None, bearer("r")))
        assert before.status == 404
