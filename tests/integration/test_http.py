"""HTTP on the wire: to the instance directly, and through nginx."""

from __future__ import annotations

import resource
import socket
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

import pytest

from support.nginx import Proxy
from support.process import ServerProcess
from support.waiting import wait_until
from support.wire import (
    ANSWER_SECONDS,
    Reply,
    exchange,
    read_reply,
    request_bytes,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.sampled(4), pytest.mark.integration]

VALUE_BYTES_MAX: Final = 64 << 20
OTHER: Final = '"0-00000000"'
LONG_AGO: Final = "Sat, 01 Jan 2000 00:00:00 GMT"
FAR_AHEAD: Final = "Fri, 01 Jan 2100 00:00:00 GMT"


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Start an instance that accepts 64 MiB, and nginx in front of it."""
    settings = {
        "volume_size": 80 << 20,
        "volume_num": 2,
        "max_value_size": VALUE_BYTES_MAX,
        "sync_mode": "none",
    }
    folder = tmp_path_factory.mktemp("http")
    with (
        ServerProcess(folder / "data", settings=settings) as server,
        Proxy(
            folder / "nginx", server.port, body_bytes_max=VALUE_BYTES_MAX + 4096
        ) as front,
    ):
        yield {"alone": server.port, "through nginx": front.port}


@pytest.fixture(params=["alone", "through nginx"])
def port(request: pytest.FixtureRequest, ports: dict[str, int]) -> int:
    """Return the port of the instance or of nginx; `/key` has ten digits."""
    found = ports[request.param]
    assert exchange(found, "PUT", "/key", b"0123456789").status == 200
    return found


@pytest.fixture(scope="module")
def settled(ports: dict[str, int]) -> str:
    """Return a path with ten digits whose Last-Modified is not in the future."""
    path = "/settled"
    assert exchange(ports["alone"], "PUT", path, b"0123456789").status == 200
    wait_until(
        lambda: "Last-Modified" in exchange(ports["alone"], "HEAD", path).headers,
        "the end of the second",
    )
    return path


def test_hit_has_the_headers_of_a_cache(port: int, settled: str) -> None:
    """Tag, dates, type, length, ranges, what browsers may do; the same for HEAD."""
    reply = exchange(port, "GET", settled)
    assert (reply.status, reply.body) == (200, b"0123456789")
    for method in ("GET", "HEAD"):
        status, headers, _ = exchange(port, method, settled)
        assert status == 200
        assert headers["ETag"].startswith('"')
        assert headers["Content-Type"] == "application/octet-stream"
        assert headers["Content-Length"] == "10"
        assert headers["Accept-Ranges"] == "bytes"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == "sandbox"
        assert headers["Cache-Control"] == "no-cache"
        assert "Age" not in headers
        modified = parsedate_to_datetime(headers["Last-Modified"])
        assert modified <= parsedate_to_datetime(headers["Date"])


def test_last_modified_appears_when_the_second_is_over(port: int) -> None:
    """It is the end of the second, so it is never later than Date."""
    seen = []

    def has_date() -> bool:
        seen.append(exchange(port, "HEAD", "/key").headers)
        return "Last-Modified" in seen[-1]

    wait_until(has_date, "the end of the second")
    modified = parsedate_to_datetime(seen[-1]["Last-Modified"])
    assert modified <= parsedate_to_datetime(seen[-1]["Date"])
    assert len({headers["ETag"] for headers in seen}) == 1


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_value_replaced_at_once_is_not_lost_to_a_date(port: int, method: str) -> None:
    """A client that has only the Date of the old value cannot change the new one."""
    old = exchange(port, "GET", "/key").headers
    exchange(port, "PUT", "/key", b"replaced")
    date = old.get("Last-Modified") or old["Date"]
    since = exchange(port, "GET", "/key", None, f"If-Modified-Since: {date}")
    assert (since.status, since.body) == (200, b"replaced")
    condition = f"If-Unmodified-Since: {date}"
    assert exchange(port, method, "/key", b"mine", condition).status == 412
    assert exchange(port, "GET", "/key").body == b"replaced"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/key", None, 200),
        ("GET", "/absent", None, 404),
        ("PUT", "/other", b"", 200),
        ("DELETE", "/absent", None, 404),
        ("OPTIONS", "/", None, 200),
        ("POST", "/key", b"", 405),
        ("PROPFIND", "/folder/", None, 403),
        ("MKCOL", "/folder/", None, 201),
        ("GET", "/-/healthy", None, 200),
        ("GET", "/a%01", None, 400),
    ],
)
def test_every_response_has_date_and_length(
    port: int, method: str, path: str, body: bytes | None, status: int
) -> None:
    """For any request; the date is the present time."""
    reply = exchange(port, method, path, body)
    assert reply.status == status
    assert reply.headers["Content-Length"] == str(len(reply.body))
    [date] = reply.headers.get_all("Date", [])
    assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 60  # noqa: TID251


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("If-None-Match: TAG", 304),
        (f"If-None-Match: {OTHER}, W/TAG", 304),
        ("If-None-Match: *", 304),
        (f"If-None-Match: {OTHER}", 200),
        (f"If-Modified-Since: {FAR_AHEAD}", 200),
        ("If-Modified-Since: LAST", 304),
        (f"If-Modified-Since: {LONG_AGO}", 200),
        (f"If-None-Match: {OTHER}\nIf-Modified-Since: {FAR_AHEAD}", 200),
        ("If-Match: TAG", 200),
        (f"If-Match: {OTHER}", 412),
        (f"If-Unmodified-Since: {LONG_AGO}", 412),
        ("If-Unmodified-Since: LAST", 200),
        (f"If-Match: {OTHER}\nIf-None-Match: TAG", 412),
        ("Cache-Control: no-cache\nAccept-Encoding: gzip\nAuthorization: x y", 200),
    ],
)
def test_conditional_read(
    port: int, settled: str, method: str, header: str, status: int
) -> None:
    """RFC 9110 section 13.2.2; a 304 has no body, and the connection stays open."""
    now = exchange(port, "HEAD", settled).headers
    header = header.replace("TAG", now["ETag"]).replace("LAST", now["Last-Modified"])
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        connection.sendall(request_bytes(method, settled, headers=header))
        reply = read_reply(connection, method)
        assert reply.status == status
        if status == 304:
            assert reply.body == b""
            assert reply.headers["ETag"] == now["ETag"]
            assert "Transfer-Encoding" not in reply.headers
        connection.sendall(request_bytes("GET", "/key"))
        assert read_reply(connection).body == b"0123456789"


@pytest.mark.parametrize(
    ("header", "status", "body", "place"),
    [
        ("Range: bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("Range: bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("Range: bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("Range: bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("Range: bytes=10-", 416, None, "bytes */10"),
        ("Range: bytes=0-1,4-5", 200, b"0123456789", None),
        ("Range: bytes=0-1\nIf-Range: TAG", 206, b"01", "bytes 0-1/10"),
        ("Range: bytes=0-1\nIf-Range: LAST", 206, b"01", "bytes 0-1/10"),
        (f"Range: bytes=0-1\nIf-Range: {OTHER}", 200, b"0123456789", None),
        (f"Range: bytes=0-1\nIf-Range: {LONG_AGO}", 200, b"0123456789", None),
        (f"Range: bytes=0-1\nIf-Range: {FAR_AHEAD}", 200, b"0123456789", None),
    ],
)
def test_range(
    port: int,
    settled: str,
    header: str,
    status: int,
    body: bytes | None,
    place: str | None,
) -> None:
    """A part with its position; the whole file if If-Range names another file."""
    now = exchange(port, "HEAD", settled).headers
    header = header.replace("TAG", now["ETag"]).replace("LAST", now["Last-Modified"])
    reply = exchange(port, "GET", settled, headers=header)
    assert (reply.status, reply.headers["Content-Range"]) == (status, place)
    if body is None:
        assert b"10 bytes" in reply.body
    else:
        assert reply.body == body


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("If-None-Match: *", 412),
        (f"If-None-Match: {OTHER}", 200),
        ("If-Match: TAG", 200),
        (f"If-Match: {OTHER}", 412),
    ],
)
def test_conditional_change(port: int, method: str, header: str, status: int) -> None:
    """Add, and compare and swap; 412 keeps the old file."""
    tag = exchange(port, "HEAD", "/key").headers["ETag"]
    reply = exchange(port, method, "/key", b"new", header.replace("TAG", tag))
    assert reply.status == status
    found = exchange(port, "GET", "/key").body
    if status == 412:
        assert found == b"0123456789"
        assert reply.body.count(b"\n") == 1
    else:
        assert found == b"new" or method == "DELETE"


def test_add_stores_an_absent_file(port: int) -> None:
    """The second time it fails."""
    exchange(port, "DELETE", "/added")
    replies = [
        exchange(port, "PUT", "/added", body, "If-None-Match: *").status
        for body in (b"1", b"2")
    ]
    assert replies == [200, 412]
    assert exchange(port, "GET", "/added").body == b"1"
    assert exchange(port, "PUT", "/none", b"", "If-Match: *").status == 412


def test_expired_file_is_a_miss(port: int) -> None:
    """Its max-age counts down, then it is a miss, also for DELETE."""
    exchange(port, "PUT", "/short", b"v", "Cache-Control: public, max-age=1")
    replies: list[Reply] = []

    def is_gone() -> bool:
        replies.append(exchange(port, "GET", "/short"))
        return replies[-1].status != 200

    wait_until(is_gone, "the end of its second")
    *before, after = replies
    for reply in before:
        assert reply.headers["Cache-Control"] in {
            "max-age=0, public",
            "max-age=1, public",
        }
    assert (after.status, after.headers["X-Cache"]) == (404, "MISS")
    assert exchange(port, "DELETE", "/short").status == 404


@pytest.mark.parametrize(
    "header",
    [
        "Expires: 0",
        "Expires: -1",
        f"Expires: {LONG_AGO}",
        "Cache-Control: max-age=0",
        "Cache-Control: max-age=0\nExpires: 0\nPragma: no-cache",
    ],
)
def test_upload_with_a_lifetime_that_is_over_can_be_read_back(
    port: int, header: str
) -> None:
    """Real clients send these with every request."""
    path = "/over"
    assert exchange(port, "PUT", path, b"v", header).status == 200
    reply = exchange(port, "GET", path)
    assert (reply.status, reply.body) == (200, b"v")
    assert reply.headers["Cache-Control"] == "no-cache"
    assert exchange(port, "DELETE", path).status == 200


def test_directives_are_returned_with_what_remains_of_the_lifetime(port: int) -> None:
    """Without Age, which caches would subtract from it once more."""
    sent = "Cache-Control: max-age=3600, public\nCache-Control: immutable"
    exchange(port, "PUT", "/tile", b"v", sent)
    for method in ("GET", "HEAD"):
        headers = exchange(port, method, "/tile").headers
        age, *others = headers["Cache-Control"].split(", ")
        assert others == ["public", "immutable"]
        assert 3590 <= int(age.removeprefix("max-age=")) <= 3600
        assert "Age" not in headers


def test_stored_page_is_sandboxed(port: int) -> None:
    """Whole, in part and unchanged; its script must not run on this origin."""
    exchange(port, "PUT", "/x.html", b"<script>1</script>", "Content-Type: text/html")
    tag = exchange(port, "GET", "/x.html").headers["ETag"]
    for headers, status in (
        ("", 200),
        ("Range: bytes=0-3", 206),
        (f"If-None-Match: {tag}", 304),
    ):
        reply = exchange(port, "GET", "/x.html", headers=headers)
        assert reply.status == status
        assert reply.headers["Content-Security-Policy"] == "sandbox"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("header", "body", "status", "words"),
    [
        ("Content-Range: bytes 0-2/9", b"new", 400, b"whole file"),
        ("Cache-Control: max-age=soon", b"new", 400, b"max-age"),
        (f"Content-Type: {'x' * 256}", b"new", 400, b"0 to 255"),
        ("", None, 411, b""),
    ],
)
def test_refused_upload_names_the_reason(
    port: int, header: str, body: bytes | None, status: int, words: bytes
) -> None:
    """The old file stays."""
    reply = exchange(port, "PUT", "/key", body, header)
    if body is None and reply.status == 200:
        pytest.fail("a PUT without a length was taken for an empty file")
    assert reply.status == status
    assert words in reply.body
    assert exchange(port, "GET", "/key").body == b"0123456789"


def test_content_headers_are_returned(port: int) -> None:
    """Whatever the client accepts."""
    sent = "Content-Type: text/css; charset=utf-8\nContent-Encoding: br"
    exchange(port, "PUT", "/style", b"\x0b", sent)
    headers = exchange(port, "GET", "/style", headers="Accept-Encoding: gzip").headers
    assert headers["Content-Type"] == "text/css; charset=utf-8"
    assert headers["Content-Encoding"] == "br"


# --- What build tools send -------------------------------------------------------


def put_expecting_continue(
    connection: socket.socket, body: bytes, expect: str
) -> bytes:
    """Send the head of a PUT, and the body after a 100; return the responses."""
    request = request_bytes("PUT", "/asked", body, f"Expect: {expect}")
    connection.sendall(request.removesuffix(body))
    interim = b""
    while not interim.endswith(b"\r\n\r\n"):
        interim += connection.recv(1)  # No byte of the final response.
    if interim.startswith(b"HTTP/1.1 100 "):
        connection.sendall(body)
        assert read_reply(connection).status == 200
    return interim


def test_upload_with_expect_gets_100_continue(port: int) -> None:
    """As Maven, Nix and curl send it; the connection stays open."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        for body in (b"one", b"two"):
            interim = put_expecting_continue(connection, body, "100-continue")
            assert interim.startswith(b"HTTP/1.1 100 ")
            connection.sendall(request_bytes("GET", "/asked"))
            assert read_reply(connection).body == body


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_empty_body_is_ignored(port: int, method: str) -> None:
    """Requests and Java send one with any method."""
    assert exchange(port, method, "/key", b"").status == 200


@pytest.mark.parametrize(
    ("header", "stays"), [("", False), ("Connection: keep-alive\r\n", True)]
)
def test_http_1_0_is_answered(port: int, header: str, stays: bool) -> None:  # noqa: FBT001
    """With a length; the connection stays open only if requested."""
    request = f"GET /key HTTP/1.0\r\n{header}\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
        connection.sendall(request)
        reply = read_reply(connection)
        assert (reply.status, reply.body) == (200, b"0123456789")
        assert "Transfer-Encoding" not in reply.headers
        if stays:
            connection.sendall(request)
            assert read_reply(connection).status == 200
        else:
            assert connection.recv(1) == b""


def test_options_over_http_1_0_is_a_health_check(port: int) -> None:
    """As HAProxy sends it."""
    reply = send(port, b"OPTIONS / HTTP/1.0\r\n\r\n")
    assert reply.status == 200
    assert "PUT" in reply.headers["Allow"]


def test_options_of_the_server(ports: dict[str, int]) -> None:
    """`*` is not a path; nginx answers it itself."""
    assert exchange(ports["alone"], "OPTIONS", "*").status == 200


def test_keys_that_look_like_directories_are_independent(port: int) -> None:
    """Each is a key of its own; special characters are kept."""
    paths = ["/a", "/a/", "/a/b", "/a//b", "/a/-/b", "/a+b", "/a%20b", "/@a/!b", "/a:b"]
    for path in paths:
        assert exchange(port, "PUT", path, path.encode()).status == 200
    for path in paths:
        assert exchange(port, "GET", path).body == path.encode()
    assert exchange(port, "GET", "/a%2Bb").body == b"/a+b"
    assert exchange(port, "GET", "/%40a/%21b").body == b"/@a/!b"


def test_webdav_client_can_store(port: int) -> None:
    """The requests of opendal in sccache: PROPFIND, MKCOL, PUT."""
    depth = "Depth: 0"
    assert exchange(port, "PROPFIND", "/c/ab/", b"", depth).status == 207
    assert exchange(port, "PROPFIND", "/c/ab/", b"", "Depth: 1").status == 403
    assert exchange(port, "PROPFIND", "/c/ab/absent", b"", depth).status == 404
    assert exchange(port, "MKCOL", "/c/ab/").status == 201
    assert exchange(port, "PUT", "/c/ab/file", b"object").status == 200
    reply = exchange(port, "PROPFIND", "/c/ab/file", b"", depth)
    assert reply.status == 207
    assert b"<D:getcontentlength>6</D:getcontentlength>" in reply.body


def test_value_of_64_mib_is_stored_and_one_byte_more_is_refused(port: int) -> None:
    """The response names the limit."""
    value = b"0123456789abcdef" * (VALUE_BYTES_MAX // 16)
    assert exchange(port, "PUT", "/large", value).status == 200
    assert exchange(port, "GET", "/large").body == value
    reply: Reply = exchange(port, "PUT", "/large", value + b"x")
    assert reply.status == 413
    assert str(VALUE_BYTES_MAX).encode() in reply.body
    head = exchange(port, "HEAD", "/large")
    assert head.headers["Content-Length"] == str(VALUE_BYTES_MAX)


def test_upload_to_a_full_disk_keeps_the_old_value(
    tmp_path: Path,
) -> None:
    """507 with both numbers; reads continue, and later PUTs succeed."""
    settings = {"volume_size": 2 << 20, "volume_num": 4}
    with (
        ServerProcess(tmp_path / "data", settings=settings) as server,
        Proxy(tmp_path / "nginx", server.port, body_bytes_max=2 << 20) as front,
    ):
        before, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        assert exchange(front.port, "PUT", "/key", b"x" * 1_000_000).status == 200
        assert exchange(front.port, "PUT", "/key", b"y" * 1_000_000).status == 200
        # No file may grow: the next volume is refused as by a full disk.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1000, hard))
        for port in (server.port, front.port):
            reply = exchange(port, "PUT", "/key", b"z" * 1_000_000)
            assert reply.status == 507
            assert b"volume 1 needs 2097152 bytes" in reply.body
            assert exchange(port, "GET", "/key").body == b"y" * 1_000_000
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (before, hard))
        assert exchange(front.port, "PUT", "/key", b"z" * 1_000_000).status == 200
        assert exchange(front.port, "GET", "/key").body == b"z" * 1_000_000
