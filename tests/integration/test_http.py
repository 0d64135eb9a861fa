"""
HTTP on the wire: to the instance directly, and through nginx.

One case of each feature: the tests of the application have the others, and those of the
gate compare its answers with the application's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Final

import pytest

from support.nginx import Proxy
from support.process import Servers
from support.waiting import wait_until
from support.wire import Talk, exchange, send

pytestmark = [pytest.mark.sampled(4), pytest.mark.integration]

VALUE_BYTES_MAX: Final = 64 << 20
OTHER: Final = '"0-00000000"'
LONG_AGO: Final = "Sat, 01 Jan 2000 00:00:00 GMT"
DIGITS: Final = b"0123456789"


@pytest.fixture(scope="module")
def ports(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, int]]:
    """Return the ports of an instance that accepts 64 MiB, and of nginx before it."""
    folder = tmp_path_factory.mktemp("http")
    limit = VALUE_BYTES_MAX + 4096
    with (
        servers.server(
            volume_size=80 << 20, volume_num=2, max_value_size=VALUE_BYTES_MAX
        ) as server,
        Proxy(folder / "nginx", server.port, body_bytes_max=limit) as front,
    ):
        yield {"alone": server.port, "through nginx": front.port}


@pytest.fixture(params=["alone", "through nginx"])
def port(request: pytest.FixtureRequest, ports: dict[str, int]) -> int:
    """Return the port of the instance or of nginx."""
    return ports[request.param]


# Requests, with the status and some headers of the answer. `/settled` has ten digits and
# was stored in a second that is over; TAG and LAST are of it.
REQUESTS: Final[list[tuple[str, str, bytes | None, str, int, dict[str, str]]]] = [
    ("GET", "/settled", None, "", 200, {"Accept-Ranges": "bytes", "ETag": "TAG"}),
    ("GET", "/settled", None, "", 200, {"Content-Security-Policy": "sandbox"}),
    ("HEAD", "/settled", None, "", 200, {"Content-Length": "10", "ETag": "TAG"}),
    ("GET", "/settled", None, "If-None-Match: TAG", 304, {"ETag": "TAG"}),
    ("HEAD", "/settled", None, "If-Modified-Since: LAST", 304, {"ETag": "TAG"}),
    ("GET", "/settled", None, f"If-None-Match: {OTHER}", 200, {}),
    ("GET", "/settled", None, f"If-Match: {OTHER}\nIf-None-Match: TAG", 412, {}),
    ("GET", "/settled", None, f"If-Unmodified-Since: {LONG_AGO}", 412, {}),
    *(
        ("GET", "/settled", None, f"Range: {asked}", status, {"Content-Range": place})
        for asked, status, place in (
            ("bytes=2-4", 206, "bytes 2-4/10"),
            ("bytes=-2\nIf-Range: LAST", 206, "bytes 8-9/10"),
            ("bytes=10-", 416, "bytes */10"),
        )
    ),
    ("GET", "/settled", None, f"Range: bytes=0-1\nIf-Range: {OTHER}", 200, {}),
    ("PUT", "/settled", b"new", "If-None-Match: *", 412, {}),
    ("PUT", "/settled", b"new", "Content-Range: bytes 0-2/9", 400, {}),
    ("PUT", "/settled", b"new", "Cache-Control: max-age=soon", 400, {}),
    ("DELETE", "/settled", None, f"If-Match: {OTHER}", 412, {}),
    ("PUT", "/typed", b"", "Content-Type: a/b\nContent-Encoding: br", 200, {}),
    ("GET", "/typed", b"", "", 200, {"Content-Type": "a/b", "Content-Encoding": "br"}),
    ("PUT", "/typed", b"1", "If-Match: *\nCache-Control: immutable", 200, {}),
    ("GET", "/typed", None, "", 200, {"Cache-Control": "immutable"}),
    ("DELETE", "/typed", b"", "", 200, {}),
    ("DELETE", "/typed", None, "", 404, {"X-Cache": "MISS"}),
    ("GET", "/typed", None, "If-None-Match: *", 404, {"X-Cache": "MISS"}),
    ("PUT", "/typed", b"", "If-Match: *", 412, {}),
    ("OPTIONS", "/", None, "", 200, {}),
    ("POST", "/settled", b"", "", 405, {}),
    ("PROPFIND", "/settled", b"", "Depth: 0", 207, {}),
    ("PROPFIND", "/folder/", None, "", 403, {}),
    ("MKCOL", "/folder/", None, "", 201, {}),
    ("GET", "/-/healthy", None, "", 200, {}),
    ("GET", "/a%01", None, "", 400, {}),
]
PARTS: Final = {"Range: bytes=2-4": b"234", "Range: bytes=-2\nIf-Range: LAST": b"89"}


def test_each_kind_of_request_is_answered(port: int) -> None:
    """On one connection; with one date, which is the present time."""
    assert exchange(port, "PUT", "/settled", DIGITS).status == 200
    seen = []

    def is_over() -> bool:
        seen.append(exchange(port, "HEAD", "/settled").headers)
        return "Last-Modified" in seen[-1]

    wait_until(is_over, "the end of the second")
    tag, last = seen[-1]["ETag"], seen[-1]["Last-Modified"]
    with Talk(port) as client:
        for method, path, body, sent, status, expected in REQUESTS:
            headers = sent.replace("TAG", tag).replace("LAST", last)
            reply = client.exchange(method, path, body, headers)
            assert reply.status == status, (method, path, sent)
            for name, value in expected.items():
                assert reply.headers[name] == value.replace("TAG", tag)
            if status in {200, 206} and (method, path) == ("GET", "/settled"):
                assert reply.body == PARTS.get(sent, DIGITS)
            [date] = reply.headers.get_all("Date", [])
            sent_at = parsedate_to_datetime(date)
            assert abs(sent_at.timestamp() - time.time()) < 60  # noqa: TID251
            assert parsedate_to_datetime(last) <= sent_at
        assert client.exchange("GET", "/settled").body == DIGITS


def test_health_checks_of_load_balancers_are_answered(ports: dict[str, int]) -> None:
    """HTTP/1.0, as HAProxy sends it; `*`, which nginx answers itself."""
    for port in ports.values():
        reply = send(port, b"OPTIONS / HTTP/1.0\r\n\r\n")
        assert reply.status == 200
        assert "PUT" in reply.headers["Allow"]
    assert exchange(ports["alone"], "OPTIONS", "*").status == 200


def test_value_of_64_mib_is_stored_and_one_byte_more_is_refused(port: int) -> None:
    """The response names the limit."""
    value = b"0123456789abcdef" * (VALUE_BYTES_MAX // 16)
    assert exchange(port, "PUT", "/large", value).status == 200
    assert exchange(port, "GET", "/large").body == value
    reply = exchange(port, "PUT", "/large", value + b"x")
    assert reply.status == 413
    assert str(VALUE_BYTES_MAX).encode() in reply.body
    head = exchange(port, "HEAD", "/large")
    assert head.headers["Content-Length"] == str(VALUE_BYTES_MAX)
