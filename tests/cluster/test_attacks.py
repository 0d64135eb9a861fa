"""
Requests that would harm an instance without nginx.

It protects bjoern, which buffers bodies of any size, has no time-outs and answers only the
last of some requests at once. What it refuses is in test_errors.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
import requests

from support.cluster import Cluster
from support.nginx import SOURCE, Nginx
from support.stub_instance import StubInstance
from support.wire import Wire, request_bytes

pytestmark = pytest.mark.integration

MIB = 1 << 20


def test_large_value_in_chunks_is_rejected(cluster: Cluster) -> None:
    """The total length counts; the largest allowed value is stored."""

    def pieces(total: int) -> Iterator[bytes]:
        for start in range(0, total, 1 << 16):
            yield bytes(min(1 << 16, total - start))

    url = f"{cluster.url}/chunks"
    assert requests.put(url, data=pieces(MIB), timeout=10).status_code == 200
    # It may be closed before the body was sent.
    with contextlib.suppress(requests.ConnectionError):
        answer = requests.put(url, data=pieces(MIB + 1), timeout=10)
        assert answer.status_code == 413
    assert len(requests.get(url, timeout=10).content) == MIB


def test_pipelined_requests_are_all_answered(cluster: Cluster) -> None:
    """Bjoern would answer only the last; nginx sends them one by one."""
    puts = [request_bytes("PUT", f"/p{n}", b"%02d" % n) for n in range(20)]
    gets = [request_bytes("GET", f"/p{n}") for n in range(20)]
    last = request_bytes("GET", "/p0", headers="Connection: close")
    with Wire(cluster.nginx.port) as wire:
        heads = wire.ask(b"".join([*puts, *gets, last])).split(b"HTTP/1.1 ")[1:]
    assert [int(head[:3]) for head in heads] == [200] * 41
    assert [head[-2:] for head in heads[20:40]] == [b"%02d" % n for n in range(20)]


def test_slow_clients_are_disconnected_by_nginx(
    stub: StubInstance, nginx_with: Callable[..., Nginx]
) -> None:
    """Its time-outs end slow headers and bodies; no instance receives them."""
    text = (SOURCE / "volcache.conf").read_text()
    for name in ("client_header_timeout", "client_body_timeout"):
        padded = f"{name} 10s" if f"{name} 10s" in text else f"{name}   10s"
        assert padded in text
        text = text.replace(padded, f"{name} 1s")
    nginx = nginx_with({"volcache.conf": text})
    put = request_bytes("PUT", "/slow", headers="Content-Length: 1000") + b"begin"
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(nginx.port)) for _ in range(100)]
        for number, wire in enumerate(wires):
            wire.socket.sendall(b"GET /slow HT" if number % 2 else put)
        url = f"{nginx.url}/200"
        assert requests.put(url, data=b"x", timeout=10).status_code == 200
        for wire in wires:
            assert b" 200 " not in wire.ask(b"")
    assert time.monotonic() - began < 30
    assert [received.line for received in stub.received] == ["PUT /200 HTTP/1.1"]
