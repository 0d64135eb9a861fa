"""Errors through nginx: one line of text each; those of an instance are not changed."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from support.nginx import SOURCE, Nginx, with_mode
from support.ports import pick_port
from support.stub_instance import HEADERS, instance_text, stub_instance
from support.wire import ANSWER_SECONDS, Wire, exchange, request_bytes, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.stub_instance import StubInstance
    from support.wire import Reply

pytestmark = [pytest.mark.sampled(8), pytest.mark.integration]

# As it is shipped.
HIDDEN = {
    name: (SOURCE / name).read_text() for name in ("volcache/show-instance.conf",)
}
MODES = ["pinned", "failover", "growing"]
METHODS = ["GET", "HEAD", "PUT", "DELETE", "PROPFIND"]
HOST = b"Host: t\r\n"
END = b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = 1 + (1 << 20)
LARGE_CHUNK = b"%x\r\n" % LARGE + bytes(LARGE) + b"\r\n0\r\n\r\n"

# Refused before nginx knows the path or the method.
HEADS = {
    "no request": (b"nonsense\r\n\r\n", 400, "RFC 9112"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "RFC 9112"),
    "HTTP/2 without TLS": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "RFC 9112"),
    "no host": (b"GET /a HTTP/1.1\r\n" + END, 400, "RFC 9112"),
    "two hosts": (b"GET /a HTTP/1.1\r\n" + HOST + HOST + END, 400, "RFC 9112"),
    "bad host": (b"GET /a HTTP/1.1\r\nHost: a/b\r\n" + END, 400, "RFC 9112"),
    "bad name": (b"GET /a HTTP/1.1\r\n" + HOST + b"X Y: 1\r\n" + END, 400, "RFC 9112"),
    "folded": (b"GET /a HTTP/1.1\r\n" + HOST + b"X: 1\r\n 2\r\n" + END, 400, "RFC"),
    "bad name, bad path": (
        b"GET /-/#x HTTP/1.1\r\n" + HOST + b"X Y: 1\r\n" + END,
        400,
        "RFC 9112",
    ),
    "other protocol": (b"GET /a ICAP/1.0\r\n" + HOST + END, 400, "RFC 9112"),
    "bad version": (b"GET /a HTTP/9.9\r\n" + HOST + END, 505, "HTTP/1.1"),
    "two lengths": (
        b"PUT /a HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n" * 2 + b"\r\nx",
        400,
        "RFC 9112",
    ),
    "length and chunked": (
        b"PUT /a HTTP/1.1\r\n"
        + HOST
        + b"Content-Length: 5\r\n"
        + CHUNKED
        + b"0\r\n\r\n",
        400,
        "RFC 9112",
    ),
    "chunked in HTTP/1.0": (b"PUT /a HTTP/1.0\r\n" + CHUNKED, 400, "RFC 9112"),
    "other encoding": (
        b"PUT /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n",
        501,
        "only chunked",
    ),
    "long path": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + END, 414, "8 KiB"),
    "long header": (
        b"GET /a HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 9000 + b"\r\n" + END,
        431,
        "8 KiB",
    ),
    "long headers": (
        b"GET /a HTTP/1.1\r\n" + HOST + (b"X: " + b"x" * 999 + b"\r\n") * 50 + END,
        431,
        "32 KiB",
    ),
    "TRACE": (b"TRACE /a HTTP/1.1\r\n" + HOST + END, 405, "GET, HEAD, PUT"),
    "CONNECT": (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + END, 400, "RFC 9112"),
}


def ask(nginx: Nginx, data: bytes, method: str = "GET") -> Reply:
    """Send bytes on a new connection and read the response."""
    return send(nginx.port, data, method)


def text_of(reply: Reply) -> str:
    """Return the text of an error of nginx, after checks that all of them must pass."""
    text = reply.body.decode()
    assert re.fullmatch(
        r"[^\n<>]{20,200}\n", re.sub("<(token|user:pass.*64)>", "", text)
    )
    assert reply.headers["Content-Type"] == "text/plain"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Cache-Control"] == "no-store"
    assert "X-Instance" not in reply.headers
    return text


@pytest.fixture(scope="module")
def stub() -> Iterator[StubInstance]:
    """Run an instance that answers as it is told."""
    with stub_instance() as running:
        yield running


@pytest.fixture(scope="module", params=MODES)
def nginx(
    request: pytest.FixtureRequest,
    stub: StubInstance,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Nginx]:
    """Run nginx as it is shipped, in front of one instance, in each failure mode."""
    files = with_mode(request.param) | HIDDEN
    folder = tmp_path_factory.mktemp("errors") / "nginx"
    with Nginx(folder, [stub.name], files=files) as running:
        yield running


@pytest.mark.parametrize("name", HEADS)
def test_malformed_head_is_refused_in_one_line(
    name: str, nginx: Nginx, stub: StubInstance
) -> None:
    """And the connection is closed; the instance receives nothing."""
    data, status, text = HEADS[name]
    stub.received.clear()
    with Wire(nginx.port) as wire:
        answer = wire.ask(data)
    assert answer.count(b"HTTP/1.1 ") == 1
    reply = ask(nginx, data)
    assert reply.status == status
    assert text in text_of(reply)
    assert not stub.received


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["length", "Expect", "chunks"])
def test_value_too_large_is_refused_in_one_line(
    way: str, method: str, nginx: Nginx, stub: StubInstance
) -> None:
    """413 with the limit; with a length, before the body was sent."""
    line = b"%b /200 HTTP/1.1\r\n" % method.encode() + HOST
    length = b"Content-Length: %d\r\n" % LARGE
    data = {
        "length": line + length + b"\r\n",
        "Expect": line + length + b"Expect: 100-continue\r\n\r\n",
        "chunks": line + CHUNKED + LARGE_CHUNK,
    }[way]
    stub.received.clear()
    reply = ask(nginx, data, method)
    assert reply.status == 413
    assert method == "HEAD" or "at most 1m is allowed" in text_of(reply)
    assert not stub.received


@pytest.mark.parametrize("method", METHODS)
def test_malformed_chunk_is_refused_in_one_line(
    method: str, nginx: Nginx, stub: StubInstance
) -> None:
    """400 for every method."""
    stub.received.clear()
    data = b"%b /200 HTTP/1.1\r\n" % method.encode() + HOST + CHUNKED + b"xyz\r\n"
    reply = ask(nginx, data, method)
    assert reply.status == 400
    assert method == "HEAD" or "RFC 9112" in text_of(reply)
    assert not stub.received


@pytest.mark.parametrize("method", ["POST", "PATCH", "COPY"])
def test_other_method_is_refused_in_one_line(method: str, nginx: Nginx) -> None:
    """405 with the allowed methods, in the header and in the text."""
    reply = exchange(nginx.port, method, "/200", b"body")
    assert reply.status == 405
    assert reply.headers["Allow"] in text_of(reply)


@pytest.mark.parametrize("path", ["/-/healthy", "/-/error/413", "/-/error/x", "/-/"])
def test_operator_path_is_refused_in_one_line(path: str, nginx: Nginx) -> None:
    """403, also for the paths that nginx itself uses for its texts."""
    for method in ("GET", "PUT", "POST"):
        reply = exchange(nginx.port, method, path, b"")
        assert reply.status == 403
        assert "/-/ is not reachable" in text_of(reply)


def test_fragment_is_refused_in_one_line(nginx: Nginx) -> None:
    """400 that says how to write it."""
    reply = exchange(nginx.port, "GET", "/200#x")
    assert reply.status == 400
    assert "%23" in text_of(reply)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_error_of_nginx_itself_is_one_line(
    method: str, nginx: Nginx, stub: StubInstance, tmp_path: Path
) -> None:
    """500, when a body cannot be written to its folder."""
    text = (nginx.folder / "volcache.conf").read_text()
    text = text.replace("client_body_buffer_size 1100k", "client_body_buffer_size 1k")
    files = {"volcache.conf": text} | HIDDEN
    with Nginx(tmp_path / "nginx", [stub.name], files=files) as other:
        shutil.rmtree(other.folder / "temp")
        reply = exchange(other.port, method, "/200", bytes(1 << 18))
    assert reply.status == 500
    assert "send it again" in text_of(reply)


@pytest.mark.parametrize("method", METHODS)
def test_errors_of_an_instance_pass_unchanged(method: str, nginx: Nginx) -> None:
    """
    Status, headers and text, for reads as for writes.

    Except that a read from a disk that does not answer (503) is a miss. A read without a
    body, which nginx intercepts, is never too large (413).
    """
    statuses = {
        400,
        401,
        403,
        404,
        405,
        409,
        411,
        412,
        413,
        414,
        416,
        417,
        422,
        428,
        429,
    }
    statuses |= {431, 451, 500, 501, 503, 505, 507}
    if method in {"GET", "HEAD"}:
        statuses -= {413, 503}
        assert exchange(nginx.port, "GET", "/413", b"x").body == instance_text(413)
    for status in sorted(statuses):
        reply = exchange(nginx.port, method, f"/{status}")
        assert reply.status == status
        assert reply.body == (b"" if method == "HEAD" else instance_text(status))
        for name, value in HEADERS.items():
            assert reply.headers.get_all(name) == [value], (status, name)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_read_from_an_unreadable_disk_is_a_miss(method: str, nginx: Nginx) -> None:
    """404 with X-Cache, so that clients store the value again."""
    reply = exchange(nginx.port, method, "/503")
    assert (reply.status, reply.headers["X-Cache"]) == (404, "MISS")
    assert "Retry-After" not in reply.headers
    assert method == "HEAD" or "the disk" in text_of(reply)


@pytest.mark.parametrize("mode", MODES)
def test_instance_that_does_not_answer_is_told_in_one_line(
    mode: str, tmp_path: Path
) -> None:
    """A miss for reads; 503 with Retry-After for the others."""
    names = [f"127.0.0.1:{pick_port()}"]
    with Nginx(tmp_path / "nginx", names, files=with_mode(mode) | HIDDEN) as nginx:
        for method in METHODS:
            reply = exchange(nginx.port, method, "/200", headers="Content-Length: 0")
            if method in {"GET", "HEAD"}:
                assert (reply.status, reply.headers["X-Cache"]) == (404, "MISS")
                assert "Retry-After" not in reply.headers
            else:
                assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
                assert "X-Cache" not in reply.headers
            assert method == "HEAD" or "does not answer" in text_of(reply)


def test_conditions_ranges_and_tokens_reach_the_instance(
    nginx: Nginx, stub: StubInstance
) -> None:
    """
    Also those of a preflight request; its answer passes unchanged.

    What concerns only the connection to nginx, and cookies, do not.
    """
    passed = {
        "Accept-Encoding": "gzip",
        "Access-Control-Request-Headers": "range",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Private-Network": "true",
        "Authorization": "Bearer secret",
        "Cache-Control": "max-age=60, public",
        "Content-Encoding": "br",
        "Content-Type": "text/html",
        "Expires": "0",
        "If-Match": '"1"',
        "If-Modified-Since": "Sun, 22 Nov 2026 09:00:00 GMT",
        "If-None-Match": "*",
        "If-Range": '"1"',
        "If-Unmodified-Since": "Sun, 22 Nov 2026 09:00:00 GMT",
        "Origin": "https://page.example",
        "Range": "bytes=0-1",
        "Service-Worker": "script",
    }
    removed = {"Cookie": "a=b", "Upgrade": "h2c", "TE": "trailers", "Keep-Alive": "x"}
    lines = "\n".join(f"{name}: {value}" for name, value in (passed | removed).items())
    for method in (*METHODS, "OPTIONS", "MKCOL"):
        stub.received.clear()
        reply = exchange(nginx.port, method, "/200", b"", lines)
        assert reply.status == 200
        assert [reply.headers.get_all(name) for name in HEADERS] == [
            [value] for value in HEADERS.values()
        ]
        (received,) = stub.received
        assert received.line == f"{method} /200 HTTP/1.1"
        for name, value in passed.items():
            assert received.headers.get_all(name) == [value], name
        for name in removed.keys() - {"Keep-Alive"}:
            assert name not in received.headers


def test_body_of_a_refused_request_is_not_taken_for_a_request(
    nginx: Nginx, stub: StubInstance
) -> None:
    """It is discarded; the next request on the connection is answered."""
    stub.received.clear()
    inner = request_bytes("GET", "/201")
    data = request_bytes("POST", "/200", inner) + request_bytes("PUT", "/-/x", inner)
    last = b"GET /200 HTTP/1.1\r\n" + HOST + END
    with Wire(nginx.port) as wire:
        wire.socket.settimeout(ANSWER_SECONDS)
        answer = wire.ask(data + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"405", b"403", b"200"]
    assert [received.line for received in stub.received] == ["GET /200 HTTP/1.1"]


def test_log_has_the_method_and_status_of_a_refused_request(nginx: Nginx) -> None:
    """Not those of the text that nginx sends."""
    exchange(nginx.port, "PUT", "/logged-413", headers=f"Content-Length: {LARGE}")
    exchange(nginx.port, "DELETE", "/-/logged")
    exchange(nginx.port, "POST", "/logged-405", b"x")
    assert ' PUT "/logged-413" 413 ' in nginx.logged("/logged-413")
    assert ' DELETE "/-/logged" 403 ' in nginx.logged("/-/logged")
    assert ' POST "/logged-405" 405 ' in nginx.logged("/logged-405")
