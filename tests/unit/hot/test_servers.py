"""Servers that fail in every way there is, seen through the tier in front of them."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from support.memcached import FakeMemcached
from support.tiers import VERSION, Scripted, is_up, open_tier
from support.waiting import wait_until


def test_a_server_that_hangs_costs_one_time_out() -> None:
    """The first call waits, the ones after it do not, and each is a miss."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"k", b"item", 0)
        script.is_silent = True
        began = time.monotonic()
        for _ in range(1000):
            assert tier.get(b"k") is None
        elapsed = time.monotonic() - began
        script.late.set()

    assert tier.stats.failures["timeout"] == 1
    assert tier.stats.gets == 1
    assert elapsed >= 0.05
    # The one that stored the item, and the one that waited.
    assert tier.stats.calls.count == 2
    assert tier.stats.calls.total_ns >= 50_000_000


def test_a_late_answer_is_never_read_as_the_next_one() -> None:
    """The connection on which an answer is outstanding is not used again."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"a", b"item a", 0)
        tier.promote(b"b", b"item b", 0)
        script.is_silent = True
        assert tier.get(b"a") is None
        script.is_silent = False
        script.late.set()
        wait_until(lambda: is_up(tier), "the server to be asked again")

        assert tier.get(b"b") == b"item b"
        assert server.connections >= 2


def test_a_server_that_drips_is_cut_off_at_the_deadline() -> None:
    """A byte now and then does not stretch the time-out."""
    stop = threading.Event()

    def drip(data: bytes, connection: socket.socket) -> None:
        if data.startswith(b"version"):
            connection.sendall(VERSION)
            return
        while not stop.wait(0.02):
            connection.sendall(b"V")

    with FakeMemcached(drip) as server, open_tier(server.address) as tier:
        tier._names.record_promotion(b"k")
        assert tier.get(b"k") is None
        assert tier.stats.failures["timeout"] == 1
        assert not is_up(tier)
        stop.set()


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\r\n", b"\xff\xfe\r\n", b"ERROR\r\n"],
)
def test_another_server_on_that_port_is_never_asked(answer: bytes) -> None:
    """What does not answer like memcached stays down."""
    with (
        FakeMemcached(lambda _data, connection: connection.sendall(answer)) as server,
        open_tier(server.address) as tier,
    ):
        assert not is_up(tier)
        assert tier.get(b"k") is None
        assert not tier.promote(b"k", b"item", 0)
        assert tier.stats.failures["protocol"] >= 1


def test_a_server_that_is_not_there_is_found_when_it_comes() -> None:
    """Down at the start, asked as soon as a probe succeeds."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with open_tier(f"127.0.0.1:{port}") as tier:
        assert not is_up(tier)
        assert tier.stats.failures["refused"] == 1
        with FakeMemcached(Scripted(), port=port):
            wait_until(lambda: is_up(tier), "the server to be found")
            assert tier.promote(b"k", b"item", 0)
            assert tier.get(b"k") == b"item"


@pytest.mark.parametrize("refusal", [b"SERVER_ERROR out of memory storing object\r\n"])
def test_an_item_refused_is_counted_and_the_server_stays(refusal: bytes) -> None:
    """A full server, or an item too large, is no failure of the server."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        script.set_answer = refusal
        assert not tier.promote(b"k", b"item", 0)
        script.set_answer = b"STORED\r\n"
        wait_until(lambda: is_up(tier), "the connection to be made anew")
        assert tier.promote(b"k", b"item", 0)

    assert tier.stats.refused == 1
    assert not tier.stats.failures


def test_keys_are_spread_over_servers_and_stay_there() -> None:
    """Each has its share, and one that is down takes only its own keys with it."""
    scripts = [Scripted() for _ in range(3)]
    keys = [b"%d" % number for number in range(300)]
    with (
        FakeMemcached(scripts[0]) as a,
        FakeMemcached(scripts[1]) as b,
        FakeMemcached(scripts[2]) as c,
        open_tier(a.address, b.address, c.address, timeout=10) as tier,
    ):
        assert all(tier.promote(key, b"item of " + key, 0) for key in keys)
        shares = [len(script.items) for script in scripts]
        tier._servers.by_address[b.address]._take_down("closed")
        found = [tier.get(key) for key in keys]

    assert sum(shares) == 300
    assert min(shares) > 50
    assert [item for item in found if item] == [
        b"item of " + key for key, item in zip(keys, found, strict=True) if item
    ]
    assert sum(item is None for item in found) == shares[1]
