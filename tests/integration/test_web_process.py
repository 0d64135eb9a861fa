"""The HTTP layer in real bjoern, with a cache in memory."""

from __future__ import annotations

import http.client
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.process import SOURCE
from support.web_process import (
    END_SECONDS,
    KEY_SIZE_MAX,
    PUT,
    VALUE_SIZE_MAX,
    WebProcess,
    read_to_end,
)
from volcache.server.bjoern import listen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[WebProcess]:
    """Share one server among the tests that do not end it."""
    with WebProcess() as running:
        yield running


@pytest.fixture
def client(server: WebProcess) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection that must still be open at the end of the test."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, END_SECONDS)
    connection.connect()
    opened = connection.sock
    yield connection
    # http.client drops its socket when an answer says close or a length is wrong.
    assert connection.sock is opened
    connection.request("GET", "/-/healthy")
    assert connection.getresponse().read() == b"ok\n"
    connection.close()


def ask(
    client: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send one request and read the whole response."""
    client.request(method, path, body, headers)
    response = client.getresponse()
    return response.status, response.headers, response.read()


@pytest.mark.parametrize("size", [0, 1, 1023, 65_536, 1 << 20, VALUE_SIZE_MAX])
def test_value_of_any_size_is_returned(
    client: http.client.HTTPConnection, size: int
) -> None:
    """With its exact length, over one connection."""
    value = (b"0123456789abcdef\r\n" * (size // 18 + 1))[:size]
    status, headers, body = ask(client, "PUT", "/some/key.txt", value)
    assert (status, headers["Content-Length"], body) == (200, "0", b"")
    status, got, body = ask(client, "GET", "/some/key.txt?query")
    assert status == 200
    assert body == value
    assert got["Content-Length"] == str(size)
    assert got["Content-Type"] == "text/plain"
    assert got["X-Cache"] == "DISK"
    for name in ("ETag", "X-Position"):
        assert got[name] == headers[name]
    status, head, body = ask(client, "HEAD", "/some/key.txt")
    assert (status, body) == (200, b"")
    for names in (head, got):
        del names["Date"]  # The clock goes on.
    assert head.items() == got.items()


def test_deleted_value_is_a_miss(client: http.client.HTTPConnection) -> None:
    """Also for a second DELETE."""
    ask(client, "PUT", "/gone", b"value")
    assert ask(client, "DELETE", "/gone")[0] == 200
    for method in ("DELETE", "GET", "HEAD"):
        status, headers, _ = ask(client, method, "/gone")
        assert (status, headers["X-Cache"]) == (404, "MISS")


@pytest.mark.parametrize("method", ["POST", "PATCH", "TRACE", "LOCK"])
def test_other_methods_are_not_allowed(
    client: http.client.HTTPConnection, method: str
) -> None:
    """405 with Allow, and the connection stays open."""
    status, headers, body = ask(client, method, "/key")
    assert status == 405
    assert headers["Allow"] == "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL"
    assert body.count(b"\n") == 1


@pytest.mark.parametrize(
    "path",
    ["/", "/a%00b", "/a%0D%0AX-Evil:1", "/..", "/%2e%2e/a", "/a/%2E%2E/-/healthy"],
)
def test_bad_key_is_refused(client: http.client.HTTPConnection, path: str) -> None:
    """400, and nothing is stored."""
    assert ask(client, "PUT", path, b"value")[0] == 400
    assert ask(client, "GET", path)[0] == 400


def test_key_limit_applies_to_decoded_bytes(client: http.client.HTTPConnection) -> None:
    """The longest key is accepted, one byte more is not."""
    assert ask(client, "PUT", "/" + "%61" * KEY_SIZE_MAX, b"")[0] == 200
    assert ask(client, "PUT", "/" + "a" * (KEY_SIZE_MAX + 1), b"")[0] == 400


def test_put_over_the_limit_is_refused(client: http.client.HTTPConnection) -> None:
    """413 with the limit, and the connection stays open."""
    status, _, body = ask(client, "PUT", "/large", bytes(VALUE_SIZE_MAX + 1))
    assert status == 413
    assert str(VALUE_SIZE_MAX).encode() in body
    assert ask(client, "GET", "/large")[0] == 404


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (b"", b"", 411),
        (b"Content-Length: 0\r\n", b"", 200),
        (b"Content-Length: 005\r\n", b"value", 200),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n", b"value", 400),
        (b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", 200),
        (b"Transfer-Encoding: chunked\r\n", b"2\r\nva\r\n3\r\nlue\r\n0\r\n\r\n", 200),
        (
            b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            b"5\r\nvalue\r\n0\r\n\r\n",
            400,
        ),
        (b"Content-Length: 5\r\nContent-Type: a\x01b\r\n", b"value", 400),
        (b"Content-Length: 5\r\nExpect: 100-continue\r\n", b"value", 200),
    ],
)
def test_upload_is_stored_whole_or_refused(
    server: WebProcess, headers: bytes, body: bytes, status: int
) -> None:
    """For absent, repeated or wrong lengths, which bjoern's parser accepts."""
    head = b"PUT /upload HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
    answer = read_to_end(server.connect(head + headers + b"\r\n" + body))
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_server_survives_malformed_requests(server: WebProcess) -> None:
    """No path, no HTTP, or a disconnect before the response."""
    for data in (
        b"GET http://host HTTP/1.1\r\nHost: host\r\n\r\n",
        b"CONNECT host:1 HTTP/1.1\r\nHost: host\r\n\r\n",
        b"OPTIONS * HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x00\xee\x01\x00\x00\r\n\r\n",
        PUT % 100 + b"part",
        b"GE",
    ):
        server.connect(data).close()
    server.ask(b"GET /-/healthy HTTP/1.1\r\n\r\n").close()


def test_port_in_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    """Exit code 1 and the remedy."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, str(SOURCE)],
            cwd=tmp_path,
            env={"VOLCACHE_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=END_SECONDS,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert not list(tmp_path.iterdir())
