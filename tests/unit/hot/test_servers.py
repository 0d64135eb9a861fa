"""
servers.py and memcached.py: servers that fail in various ways, and copies not used.

That no other copy is stale is in tests/property/test_hot_model.py.
"""

from __future__ import annotations

import socket
import threading
import time

import pytest

from support.memcached import FakeMemcached
from support.tables import rows
from support.tiers import VERSION, Scripted, is_up, open_tier
from support.waiting import wait_until


def test_server_that_hangs_costs_one_timeout() -> None:
    """The first call waits, the following ones do not; each is a miss."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address, timeout=1) as tier:
        tier.promote(b"k", b"item", 0)
        script.is_silent = True
        started = time.monotonic()
        for _ in range(1000):
            assert tier.get(b"k") is None
        elapsed = time.monotonic() - started
        script.late.set()

    assert tier.stats.failures["timeout"] == 1
    assert tier.stats.gets == 1
    assert elapsed >= 1
    # One stored the item, one waited.
    assert tier.stats.calls.count == 2
    assert tier.stats.calls.total_ns >= 10**9


@pytest.mark.slow
def test_get_after_a_late_reply_uses_another_connection() -> None:
    """A connection with an outstanding reply is not used again."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"a", b"item a", 0)
        tier.promote(b"b", b"item b", 0)
        script.is_silent = True
        assert tier.get(b"a") is None
        script.is_silent = False
        script.late.set()
        wait_until(lambda: is_up(tier), "the server to be up")

        assert tier.get(b"b") == b"item b"
        assert server.connections >= 2


def test_timeout_bounds_a_reply_that_arrives_byte_by_byte() -> None:
    """Each byte does not restart the time-out."""
    stop = threading.Event()

    def drip(data: bytes, connection: socket.socket) -> None:
        if data.startswith(b"version"):
            connection.sendall(VERSION)
            return
        while not stop.wait(0.02):
            connection.sendall(b"V")

    with FakeMemcached(drip) as server, open_tier(server.address) as tier:
        assert tier.get(b"k") is None
        assert tier.stats.failures["timeout"] == 1
        assert not is_up(tier)
        stop.set()


@rows(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\r\n", b"\xff\xfe\r\n", b"ERROR\r\n")
def test_server_of_another_protocol_is_not_used(answer: bytes) -> None:
    """A server that does not answer like memcached stays down."""
    with (
        FakeMemcached(lambda _data, connection: connection.sendall(answer)) as server,
        open_tier(server.address, timeout=10) as tier,
    ):
        assert not is_up(tier)
        assert tier.get(b"k") is None
        assert not tier.promote(b"k", b"item", 0)
        assert tier.stats.failures["protocol"] >= 1


STORED = b"STORED\r\n"
ODD_ANSWERS = [
    b"VALUE b 0 1\r\nx\r\nEND\r\n",
    b"VALUE \xc3\xa9 0 1\r\nx\r\nEND\r\n",
    b"VALUE \xff\xfe 0 1\r\nx\r\nEND\r\n",
    *(b"VALUE%b\r\nEND\r\n" % words for words in (b"", b" a b c", b" a 0 -1\r\nx")),
    *(STORED, b"\0\r\n"),
]


@rows(
    *((answer, STORED) for answer in ODD_ANSWERS),
    *((None, answer) for answer in (ODD_ANSWERS[0], b"HTTP/1.1 400\r\n", b"\r\n")),
)
def test_odd_answer_takes_the_server_down(get_answer: bytes, set_answer: bytes) -> None:
    """Such as a key that was not requested: a miss, and never another exception."""
    script = Scripted()
    script.get_answer, script.set_answer = get_answer, set_answer
    with FakeMemcached(script) as server, open_tier(server.address, timeout=5) as tier:
        assert tier.promote(b"k", b"item", 0) == (set_answer == STORED)
        assert tier.get(b"k") is None
        assert not is_up(tier)
        assert tier.get(b"k") is None
        assert dict(tier.stats.failures) == {"protocol": 1}
        assert tier.stats.states == 1


@pytest.mark.slow
def test_server_that_starts_later_is_found() -> None:
    """Down at the start, up as soon as a probe succeeds."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with open_tier(f"127.0.0.1:{port}", timeout=5) as tier:
        assert not is_up(tier)
        assert tier.stats.failures["refused"] == 1
        with FakeMemcached(Scripted(), port=port):
            wait_until(lambda: is_up(tier), "the server to be up")
            assert tier.promote(b"k", b"item", 0)
            assert tier.get(b"k") == b"item"


def test_refused_item_is_not_a_failure_of_the_server() -> None:
    """It is counted; a full server stays up."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address, timeout=5) as tier:
        for reason in (b"out of memory storing object", b"object too large for cache"):
            script.set_answer = b"SERVER_ERROR %b\r\n" % reason
            assert not tier.promote(b"k", b"item", 0)
            wait_until(lambda: is_up(tier), "the connection to be opened")
        script.set_answer = STORED
        assert tier.promote(b"k", b"item", 0)

    assert tier.stats.refused == 2
    assert not tier.stats.failures


def test_get_with_one_server_down_misses_its_keys_only() -> None:
    """Each server has its share, and one that is down affects only its own keys."""
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
        tier._servers[1]._mark_down("closed")
        found = [tier.get(key) for key in keys]

    assert sum(shares) == 300
    assert min(shares) > 50
    assert [item for item in found if item] == [
        b"item of " + key for key, item in zip(keys, found, strict=True) if item
    ]
    assert sum(item is None for item in found) == shares[1]


def test_promote_of_a_copy_over_the_limit_is_not_sent() -> None:
    """No server is called, and no promotion is recorded."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        assert not tier.promote(b"k", bytes(1001), 0)
        assert not tier.keys.may_hold(b"k")
    assert not script.items


def test_get_that_returns_the_item_of_another_key_is_a_miss() -> None:
    """Each item begins with its own id."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"a", b"item a", 0)
        tier.promote(b"b", b"item b", 0)
        name_a, name_b = script.items
        script.items[name_b] = script.items[name_a]

        assert tier.get(b"b") is None
        assert (tier.stats.hits, tier.stats.stale) == (1, 1)
