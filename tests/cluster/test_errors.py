"""Errors through nginx: one line of text each; those of an instance are not changed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.nginx import SOURCE, Nginx
from support.stub_instance import HEADERS, StubInstance, instance_text
from support.wire import (
    Reply,
    connect,
    exchange,
    read_reply,
    read_to_the_end,
    request_bytes,
)

pytestmark = pytest.mark.integration

# As it is shipped.
HIDDEN = {
    name: (SOURCE / name).read_text() for name in ("volcache/show-instance.conf",)
}
METHODS = ["GET", "HEAD", "PUT", "DELETE", "PROPFIND"]
CHUNKED = b"Transfer-Encoding: chunked"
LARGE = 1 + (64 << 20)


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


@pytest.fixture
def nginx(mode: dict[str, str], nginx_with: Callable[..., Nginx]) -> Nginx:
    """Return nginx as it is shipped, in front of `stub`, in each failure mode."""
    return nginx_with(mode | HIDDEN)


def test_body_is_refused_in_one_line(nginx: Nginx, stub: StubInstance) -> None:
    """If it is too large with the limit, and before it was sent if its length is told."""
    length = b"Content-Length: %d\r\n" % LARGE
    large = b"%x\r\n" % LARGE + bytes(1000)
    chunked = CHUNKED + b"\r\n\r\n"
    for rest, status, text in (
        (length + b"\r\n", 413, "at most 64m is allowed"),
        (length + b"Expect: 100-continue\r\n\r\n", 413, "at most 64m is allowed"),
        (chunked + large, 413, "at most 64m is allowed"),
        (chunked + b"xyz\r\n", 400, "RFC 9112"),
    ):
        for method in METHODS:
            line = f"{method} /200 HTTP/1.1\r\nHost: t\r\n".encode()
            with connect(nginx.port) as connection:
                connection.sendall(line + rest)
                reply = read_reply(connection, method)
            assert reply.status == status, (method, rest[:80])
            assert method == "HEAD" or text in text_of(reply), (method, rest[:80])
    assert not stub.received


def test_error_of_nginx_itself_is_one_line(nginx: Nginx, tmp_path: Path) -> None:
    """500, when a body cannot be written to its folder."""
    text = (nginx.folder / "volcache.conf").read_text()
    text = text.replace("client_body_buffer_size 1100k", "client_body_buffer_size 1k")
    files = {"volcache.conf": text} | HIDDEN
    with Nginx(tmp_path / "nginx", ["127.0.0.1:1"], files=files) as other:
        shutil.rmtree(other.folder / "temp")
        for method in ("GET", "PUT", "DELETE"):
            reply = exchange(other.port, method, "/200", bytes(1 << 18))
            assert reply.status == 500
            assert "send it again" in text_of(reply)


def test_errors_of_an_instance_pass_unchanged(nginx: Nginx) -> None:
    """
    Status, headers and text, for reads as for writes.

    Except that a read from a disk that does not answer (503) is a miss, so that clients
    store the value again. A read without a body, which nginx intercepts, is never too
    large (413).
    """
    statuses = {400, 401, 403, 404, 405, 409, 411, 412, 413, 414, 416, 417, 422, 428}
    statuses |= {429, 431, 451, 500, 501, 503, 505, 507}
    assert exchange(nginx.port, "GET", "/413", b"x").body == instance_text(413)
    for method in METHODS:
        is_read = method in {"GET", "HEAD"}
        for status in sorted(statuses - ({413, 503} if is_read else set())):
            reply = exchange(nginx.port, method, f"/{status}")
            assert reply.status == status, method
            assert reply.body == (b"" if method == "HEAD" else instance_text(status))
            for name, value in HEADERS.items():
                assert reply.headers.get_all(name) == [value], (method, status, name)
        if is_read:
            expect_miss(exchange(nginx.port, method, "/503"), method, "the disk")


def expect_miss(reply: Reply, method: str, text: str) -> None:
    """Check that a read is answered with a miss by nginx."""
    assert (reply.status, reply.headers["X-Cache"]) == (404, "MISS")
    assert "Retry-After" not in reply.headers
    assert method == "HEAD" or text in text_of(reply)


def test_instance_that_does_not_answer_is_told_in_one_line(
    mode: dict[str, str], nginx_with: Callable[..., Nginx]
) -> None:
    """A miss for reads; 503 with Retry-After for the others."""
    nginx = nginx_with(mode | HIDDEN, instance="127.0.0.1:1")
    for method in METHODS:
        reply = exchange(nginx.port, method, "/200", headers="Content-Length: 0")
        if method in {"GET", "HEAD"}:
            expect_miss(reply, method, "does not answer")
        else:
            assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
            assert "X-Cache" not in reply.headers
            assert "does not answer" in text_of(reply)


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
    # As the HTTP client of Java sends them, and cookies.
    removed = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Cookie": "a=b",
        "Expect": "100-continue",
        "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        "Keep-Alive": "x",
        "TE": "trailers",
        "Upgrade": "h2c",
    }
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
        for name in ("Cookie", "Expect", "TE", "Upgrade"):
            assert name not in received.headers


def test_body_of_a_refused_request_is_not_taken_for_a_request(
    nginx: Nginx, stub: StubInstance
) -> None:
    """It is discarded; the next request on the connection is answered."""
    inner = request_bytes("GET", "/201")
    data = request_bytes("POST", "/200", inner) + request_bytes("PUT", "/-/x", inner)
    last = request_bytes("GET", "/200", None, "Connection: close")
    with connect(nginx.port) as connection:
        connection.sendall(data + last)
        answer = read_to_the_end(connection)
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
