"""Tokens on the wire: to an instance directly, and through nginx."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.gate import NEEDS_GATE
from support.nginx import Proxy
from support.process import ServerProcess, Servers
from support.wire import Talk, exchange, request_bytes, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.wire import Reply

pytestmark = [pytest.mark.sampled(4), pytest.mark.integration]

# Bytes of UTF-8 in a header are latin-1 characters for the helpers.
READ: Final = "l\N{LATIN SMALL LETTER E WITH ACUTE}s:en"
WRITE: Final = "s\N{EURO SIGN}cret,1"
SMALL: Final = {"volume_size": 8 << 20, "volume_num": 2, "sync_mode": "none"}
TOKENS: Final = {"read_token": READ, "write_token": WRITE, "admin_token": "\xfc-admin"}
READS: Final = ("GET", "HEAD", "PROPFIND")
WRITES: Final = ("PUT", "DELETE", "MKCOL", "POST")


def bearer(token: str, encoding: str = "utf-8", scheme: str = "Bearer") -> str:
    """Return the header."""
    return f"Authorization: {scheme} {token.encode(encoding).decode('latin-1')}"


def basic(pair: str, encoding: str = "utf-8", scheme: str = "Basic") -> str:
    """Return the header for `user:password`."""
    return f"Authorization: {scheme} {b64encode(pair.encode(encoding)).decode()}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start an instance with three tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    log = folder / "access.log"
    settings = {**SMALL, **TOKENS, "log_access": log, "max_value_size": 1 << 20}
    with ServerProcess(folder / "data", settings=settings) as server:
        yield server


@pytest.fixture(scope="module")
def ports(
    guarded: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    """Start nginx in front of it."""
    folder = tmp_path_factory.mktemp("front") / "nginx"
    with Proxy(folder, guarded.port, body_bytes_max=1 << 20) as front:
        yield {"alone": guarded.port, "through nginx": front.port}


@pytest.fixture(params=["alone", "through nginx"])
def port(request: pytest.FixtureRequest, ports: dict[str, int]) -> int:
    """Return the port of the instance or of nginx; `/key` has ten digits."""
    found = ports[request.param]
    assert exchange(found, "PUT", "/key", b"0123456789", bearer(WRITE)).status == 200
    return found


def stats_of(port: int) -> dict[str, Any]:
    """Return the statistics, which need no token."""
    reply = exchange(port, "GET", "/-/stats")
    assert reply.status == 200
    found: dict[str, Any] = json.loads(reply.body)
    return found


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


@pytest.mark.parametrize("method", READS + WRITES)
def test_request_without_a_token_is_refused(port: int, method: str) -> None:
    """With one line that names the setting; nothing is read or changed."""
    body = b"new" if method in {"PUT", "POST"} else None
    reply = exchange(port, method, "/key", body)
    assert_refused(reply)
    if method != "HEAD":
        name = b"read_token" if method in READS else b"write_token"
        assert name in reply.body
    assert exchange(port, "GET", "/key", None, bearer(READ)).body == b"0123456789"


@pytest.mark.parametrize(
    "header",
    [
        bearer(READ),
        bearer(READ, "latin-1"),
        bearer(READ, scheme="bEARER"),
        bearer(f"  {READ}"),
        basic(f"user:{READ}"),
        basic(f":{READ}"),
        basic(f"user:{READ}", "latin-1"),
        basic(f"user:{READ}", scheme="BASIC"),
        bearer(WRITE),
        basic(f"user:{WRITE}"),
    ],
)
def test_right_token_reads(port: int, header: str) -> None:
    """Bearer or Basic, in either encoding; the token for writing will do, too."""
    reply = exchange(port, "GET", "/key", None, header)
    assert (reply.status, reply.body) == (200, b"0123456789")
    assert exchange(port, "HEAD", "/key", None, header).status == 200
    assert exchange(port, "PROPFIND", "/key", None, header).status == 207
    assert exchange(port, "GET", "/none", None, header).status == 404
    part = exchange(port, "GET", "/key", None, f"{header}\nRange: bytes=1-2")
    assert (part.status, part.body) == (206, b"12")


@pytest.mark.parametrize("header", [bearer(WRITE), basic(f"any:{WRITE}")])
def test_right_token_writes(port: int, header: str) -> None:
    """A PUT, with and without a condition, and a DELETE."""
    assert exchange(port, "PUT", "/new", b"1", header).status == 200
    once = f"{header}\nIf-None-Match: *"
    assert exchange(port, "PUT", "/new", b"2", once).status == 412
    assert exchange(port, "MKCOL", "/folder/", None, header).status == 201
    assert exchange(port, "DELETE", "/new", None, header).status == 200
    assert exchange(port, "DELETE", "/new", None, header).status == 404


WRONG: Final = {
    "empty": "Authorization:",
    "scheme alone": "Authorization: Bearer",
    "no scheme": f"Authorization: {READ}",
    "no token": "Authorization: Bearer  ",
    "wrong": bearer("wrong"),
    "part": bearer(READ[:-1]),
    "more": bearer(f"{READ}x"),
    "inner space": bearer("l es:en"),
    "other scheme": bearer(READ, scheme="Digest"),
    "two schemes": bearer(READ, scheme="Bearer Bearer"),
    "joined": bearer(READ, scheme="Bearer,"),
    "token as it is in Basic": bearer(READ, scheme="Basic"),
    "no colon": basic(READ),
    "token as user": basic(f"{READ}:"),
    "token as user and a password": basic(f"{READ}:x"),
    "empty pair": basic(":"),
    "nothing in Basic": "Authorization: Basic ",
    "no base64": "Authorization: Basic !!!!",
    "cut base64": basic(f"user:{READ}x")[:-3],
    "text after base64": f"{basic(f'user:{READ}')} x",
    "NUL": basic(f"user:{READ}\0"),
    "line end": basic(f"user:{READ}\n"),
    "long": bearer("x" * 7000),
    "long Basic": basic("user:" + "x" * 5000),
    "other bytes": bearer("\xff\xfe", "latin-1"),
    "two headers": f"{bearer('wrong')}\n{bearer(READ)}",
    "two right ones": f"{bearer(READ)}\n{bearer(READ)}",
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG)
def test_wrong_token_is_refused(ports: dict[str, int], header: str) -> None:
    """Whatever the header is; the next request on the connection is answered."""
    with Talk(ports["alone"]) as talk:
        assert_refused(talk.exchange("GET", "/key", None, header), "read_token")
        put = talk.exchange("PUT", "/wrong", b"value", header)
        assert_refused(put, "write_token")
        assert talk.exchange("GET", "/wrong", None, bearer(READ)).status == 404


def test_token_for_reading_does_not_write(port: int) -> None:
    """It is the wrong one then."""
    for method in WRITES:
        body = b"new" if method in {"PUT", "POST"} else None
        reply = exchange(port, method, "/key", body, bearer(READ))
        assert_refused(reply, "write_token")
    assert exchange(port, "GET", "/key", None, bearer(READ)).body == b"0123456789"


def test_admin_token_is_no_token_for_keys(port: int) -> None:
    """And the others are none for the operator."""
    assert_refused(exchange(port, "GET", "/key", None, bearer(TOKENS["admin_token"])))


def test_health_checks_and_preflights_need_no_token(port: int) -> None:
    """OPTIONS, and what the operator and load balancers read."""
    assert exchange(port, "OPTIONS", "/").status == 200
    assert exchange(port, "OPTIONS", "/key").status == 200
    for path in ("/-/healthy", "/-/ready", "/-/metrics"):
        assert exchange(port, "GET", path).status == 200


@pytest.mark.parametrize("path", ["/-/../key", "/%2D/../key", "/./key", "//../key"])
def test_no_spelling_of_a_path_avoids_the_check(port: int, path: str) -> None:
    """Only what the operator's code answers is open, and that has no values."""
    reply = exchange(port, "GET", path)
    assert reply.status in {400, 401, 404, 421}
    assert b"0123456789" not in reply.body
    assert exchange(port, "PUT", path, b"new").status in {400, 401, 405, 421}
    assert exchange(port, "GET", "/key", None, bearer(READ)).body == b"0123456789"


@NEEDS_GATE
def test_pipelined_requests_are_checked_one_by_one(guarded: ServerProcess) -> None:
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
    with Talk(guarded.port) as talk:
        talk.send(b"".join(parts))
        replies = [talk.read() for _ in parts]
    assert [reply.status for reply in replies] == [200, 401, 200, 401, 404, 401, 200]
    assert replies[2].body == replies[6].body == b"GET /key HTTP/1.1\r\n\r\n"


@NEEDS_GATE
def test_refused_upload_does_not_disturb_the_connection(guarded: ServerProcess) -> None:
    """Its body is read and dropped: sent at once, after a 100, or in chunks."""
    large = b"x" * (1 << 20)
    chunked = (
        b"PUT /large HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"100000\r\n" + large + b"\r\n0\r\n\r\n"
    )
    with Talk(guarded.port) as talk:
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


@NEEDS_GATE
def test_huge_token_is_refused_by_the_limit_of_a_head(guarded: ServerProcess) -> None:
    """431 by the gate; control bytes are refused by its grammar."""
    reply = exchange(guarded.port, "GET", "/key", None, bearer("x" * 40_000))
    assert reply.status == 431
    assert exchange(guarded.port, "GET", "/key", None, bearer("a\0b")).status == 400


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
    settings = {**SMALL, **TOKENS, "log_access": access, "log_format": "json"}
    wrong = "gu\xe9ss"
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
        found = stats_of(server.port)
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


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_admin_token_may_have_any_letters(
    guarded: ServerProcess, encoding: str
) -> None:
    """As UTF-8, as a terminal sends it, or as latin-1, as Python sends it."""
    token = bearer(TOKENS["admin_token"], encoding)
    assert exchange(guarded.port, "POST", "/-/flush", b"", token).status == 200


def test_browser_cannot_be_made_to_flush(guarded: ServerProcess) -> None:
    """Basic, which it would add by itself, is not accepted there."""
    header = basic(f"any:{TOKENS['admin_token']}")
    reply = exchange(guarded.port, "POST", "/-/flush", b"", header)
    assert reply.status == 401
    assert reply.headers.get_all("WWW-Authenticate") == ['Bearer realm="volcache"']


def test_guesses_of_the_admin_token_are_limited(tmp_path: Path) -> None:
    """For the address that guesses: 429, with the right one as well; others may go on."""
    settings = {**SMALL, "admin_token": "right"}
    with ServerProcess(tmp_path, settings=settings) as server:
        right = bearer("right")
        for _ in range(15):  # Without a token it is no guess.
            assert exchange(server.port, "POST", "/-/flush", b"").status == 401
        seen = [
            exchange(server.port, "POST", "/-/flush", b"", bearer(f"{i}")).status
            for i in range(12)
        ]
        assert seen == [401] * 10 + [429] * 2
        reply = exchange(server.port, "POST", "/-/flush", b"", right)
        assert reply.status == 429
        assert 0 < int(reply.headers["Retry-After"]) <= 60
        assert stats_of(server.port)["requests"]["unauthorized"]["admin"] == 28
        other = ["curl", "-s", "--interface", "127.0.0.2", "-XPOST", "-H", right]
        url = f"{server.url}/-/flush"
        done = subprocess.run([*other, url], capture_output=True, check=True)
        assert done.stdout == b"flushed\n"
        # Keys are not concerned.
        assert exchange(server.port, "PUT", "/key", b"value").status == 200


@pytest.mark.parametrize(
    ("settings", "reads", "writes"),
    [
        ({"read_token": "r"}, 401, 200),
        ({"write_token": "w"}, 200, 401),
        ({}, 200, 200),
    ],
)
def test_each_token_is_for_its_requests_alone(
    servers: Servers, settings: dict[str, str], reads: int, writes: int
) -> None:
    """Without one, everyone may; a GET that the gate answers is no exception."""
    with servers.server({**SMALL, **settings}) as server:
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


def test_token_does_not_stop_a_service_worker_from_being_refused(port: int) -> None:
    """It is checked first."""
    script = "Service-Worker: script"
    assert exchange(port, "GET", "/key", None, script).status == 401
    both = f"{script}\n{bearer(READ)}"
    assert exchange(port, "GET", "/key", None, both).status == 403
