"""
Requests that must not reach an instance, or must not harm it.

nginx protects bjoern, which buffers bodies of any size, has no time-outs and accepts two
lengths in one request.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from support.cluster import running_cluster
from support.nginx import SOURCE
from support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.cluster import Cluster

pytestmark = [pytest.mark.sampled(4), pytest.mark.integration]

MIB = 1 << 20
HOST = b"Host: t\r\n"
RSS_GROWTH_MAX = 32 * MIB


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def descriptors(pid: int) -> set[str]:
    """Return the files that a process has open, without connections."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(entry.readlink()))
    return {name for name in found if not name.startswith("socket:")}


@pytest.fixture(autouse=True)
def instances_are_unharmed(cluster: Cluster) -> Iterator[None]:
    """Check that all instances run, answer, and use no more memory and files."""
    servers = list(cluster.instances.values())
    before = [(resident_bytes(s.pid), descriptors(s.pid)) for s in servers]
    yield
    for server, (resident, files) in zip(servers, before, strict=True):
        assert requests.get(f"{server.url}/-/healthy", timeout=10).text == "ok\n"
        assert resident_bytes(server.pid) < resident + RSS_GROWTH_MAX
        assert descriptors(server.pid) == files
        assert "request.failed" not in server.stderr


def answers(cluster: Cluster, data: bytes) -> list[int]:
    """Send bytes, close for writing, and return the statuses of all answers."""
    with Wire(cluster.nginx.port) as wire:
        lines = wire.ask(data).split(b"\r\n")
    return [int(li.split()[1]) for li in lines if li.startswith(b"HTTP/1.")]


def asked(cluster: Cluster, path: str) -> int:
    """Return how many requests for a path were answered by an instance."""
    return sum(
        f' "{path}" ' in line and re.search(r'answers="\d', line) is not None
        for line in cluster.nginx.log().splitlines()
    )


CLOSE = b"Connection: close\r\n\r\n"
SMUGGLING = {
    "two lengths": b"PUT /s HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n"
    b"Content-Length: 30\r\n\r\nabcdGET /x HTTP/1.1\r\nHost: t\r\n\r\n",
    "length and chunked": b"PUT /s HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: t\r\n\r\n",
    "chunked spelt oddly": b"PUT /s HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: "
    b"xchunked\r\n\r\n0\r\n\r\n",
    "length not a number": b"PUT /s HTTP/1.1\r\n" + HOST + b"Content-Length: +4\r\n\r\n",
    "length too large": b"PUT /s HTTP/1.1\r\n" + HOST + b"Content-Length: "
    b"99999999999999999999\r\n\r\n",
    "chunk too large": b"PUT /s HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked"
    b"\r\n\r\nffffffffffffffffff\r\n",
    "space before the colon": b"GET /s HTTP/1.1\r\nHost : t\r\n" + CLOSE,
    "no host": b"GET /s HTTP/1.1\r\n" + CLOSE,
    "two hosts": b"GET /s HTTP/1.1\r\n" + HOST + HOST + CLOSE,
    "null byte": b"GET /s%00 HTTP/1.1\r\n" + HOST + CLOSE,
    "above the root": b"GET /../s HTTP/1.1\r\n" + HOST + CLOSE,
    "bad escape": b"GET /%zz HTTP/1.1\r\n" + HOST + CLOSE,
    "fragment": b"GET /s#x HTTP/1.1\r\n" + HOST + CLOSE,
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "header too long": b"GET /s HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 9000 + b"\r\n"
    + CLOSE,
}  # fmt: skip


@pytest.mark.parametrize("name", SMUGGLING)
def test_ambiguous_request_is_rejected(name: str, cluster: Cluster) -> None:
    """Nginx answers 4xx or 501 and closes; no instance receives it."""
    statuses = answers(cluster, SMUGGLING[name])
    assert len(statuses) == 1
    assert statuses[0] in {400, 413, 431, 501}
    assert not asked(cluster, "/s")
    assert not asked(cluster, "/x")


def test_path_too_long_is_rejected(cluster: Cluster) -> None:
    """A line of more than 8 KiB is 414, a key of more than 1024 bytes 400."""
    path = b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n" + HOST + CLOSE
    assert answers(cluster, path) == [414]
    path = b"GET /" + b"%41" * 1025 + b" HTTP/1.1\r\n" + HOST + CLOSE
    assert answers(cluster, path) == [400]
    path = b"GET /" + b"%41" * 1024 + b" HTTP/1.1\r\n" + HOST + CLOSE
    assert answers(cluster, path) == [404]


def test_large_value_in_chunks_is_rejected(cluster: Cluster) -> None:
    """The total length counts; the largest allowed value is stored."""

    def pieces(total: int) -> Iterator[bytes]:
        for start in range(0, total, 1 << 16):
            yield bytes(min(1 << 16, total - start))

    url = f"{cluster.url}/chunks"
    assert requests.put(url, data=pieces(MIB), timeout=10).status_code == 200
    assert len(requests.get(url, timeout=10).content) == MIB
    with contextlib.suppress(
        requests.ConnectionError
    ):  # Closed before the body was sent.
        answer = requests.put(url, data=pieces(MIB + 1), timeout=10)
        assert answer.status_code == 413
    assert len(requests.get(url, timeout=10).content) == MIB


def test_pipelined_requests_are_all_answered(cluster: Cluster) -> None:
    """Bjoern would answer only the last; nginx sends them one by one."""
    puts = b"".join(
        b"PUT /p%d HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n%02d" % (n, n)
        for n in range(20)
    )
    gets = b"".join(b"GET /p%d HTTP/1.1\r\nHost: t\r\n\r\n" % n for n in range(20))
    with Wire(cluster.nginx.port) as wire:
        text = wire.ask(puts + gets + b"GET /p0 HTTP/1.1\r\n" + HOST + CLOSE)
    heads = text.split(b"HTTP/1.1 ")[1:]
    assert [int(head[:3]) for head in heads] == [200] * 41
    assert [head[-2:] for head in heads[20:40]] == [b"%02d" % n for n in range(20)]


def test_header_cannot_be_injected(cluster: Cluster) -> None:
    """No line break gets into a response, by path or content type."""
    for path in (b"/i%0d%0aX-Evil:%201", b"/i%0aX-Evil:%201"):
        with Wire(cluster.nginx.port) as wire:
            text = wire.ask(b"GET " + path + b" HTTP/1.1\r\n" + HOST + CLOSE)
        assert text.startswith(b"HTTP/1.1 400 ")
        assert b"\nX-Evil" not in text
    put = b"PUT /i HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Type: "
    assert answers(cluster, put + b"a\x0bX-Evil: 1\r\n" + CLOSE + b"x") == [400]
    (status,) = answers(cluster, put + b"a\rX-Evil: 1\r\n" + CLOSE + b"x")
    assert status == 400


def test_hop_by_hop_headers_are_removed_by_nginx(
    cluster: Cluster,
) -> None:
    """A PUT with the headers that Java's HTTP client sends is stored."""
    headers = {
        "Upgrade": "h2c",
        "Connection": "Upgrade, HTTP2-Settings",
        "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        "Expect": "100-continue",
    }
    url = f"{cluster.url}/hop"
    put = requests.put(url, data=b"value", headers=headers, timeout=10)
    assert put.status_code == 200
    assert requests.get(url, headers=headers, timeout=10).content == b"value"


def test_slow_clients_are_disconnected_by_nginx(
    tmp_path: Path,
) -> None:
    """Its time-outs end slow headers and bodies; no instance receives them."""
    text = (SOURCE / "volcache.conf").read_text()
    for name in ("client_header_timeout", "client_body_timeout"):
        padded = f"{name} 10s" if f"{name} 10s" in text else f"{name}   10s"
        assert padded in text
        text = text.replace(padded, f"{name} 1s")
    with running_cluster(tmp_path, files={"volcache.conf": text}) as cluster:
        put = b"PUT /slow HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\nbegin"
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(cluster.nginx.port)) for _ in range(100)]
            for number, wire in enumerate(wires):
                wire.socket.sendall(b"GET /slow HT" if number % 2 else put)
            url = f"{cluster.url}/quick"
            assert requests.put(url, data=b"x", timeout=10).status_code == 200
            for wire in wires:
                assert b" 200 " not in wire.ask(b"")
        assert time.monotonic() - began < 30
        assert not asked(cluster, "/slow")
