"""The tier in front of servers that fail in every way there is."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from support.journal import MemoryJournal
from support.memcached import FakeMemcached
from support.waiting import wait_until
from volcache.hot.memcached import MemcachedTier
from volcache.hot.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = b"VERSION 1.6.18\r\n"


@contextmanager
def open_tier(
    *servers: str, journal: MemoryJournal | None = None
) -> Iterator[MemcachedTier]:
    """Open a tier with a time-out of 50 ms."""
    epochs = Names(journal or MemoryJournal(), store_id=7, boot_id="boot")
    tier = MemcachedTier(servers, epochs, timeout=0.05, item_size_max=1000)
    try:
        yield tier
    finally:
        tier.close()


class Scripted:
    """Answers as memcached does, until told to do otherwise."""

    def __init__(self) -> None:
        """Hold no items."""
        self.items: dict[bytes, bytes] = {}
        self.get_answer: bytes | None = None
        self.set_answer = b"STORED\r\n"
        self.is_silent = False
        self.late = threading.Event()

    def __call__(self, data: bytes, connection: socket.socket) -> None:
        """Answer one command."""
        if self.is_silent:
            self.late.wait()
        verb, *words = data.split(b"\r\n", 1)[0].split(b" ")
        if verb == b"version":
            connection.sendall(VERSION)
        elif verb == b"set":
            self.items[words[0]] = data.split(b"\r\n", 1)[1][:-2]
            connection.sendall(self.set_answer)
        elif self.get_answer is not None:
            connection.sendall(self.get_answer)
        else:
            item = self.items.get(words[0])
            found = (
                b"VALUE %s 0 %d\r\n%s\r\n" % (words[0], len(item), item)
                if item
                else b""
            )
            connection.sendall(found + b"END\r\n")


def is_up(tier: MemcachedTier) -> bool:
    """Tell whether all servers are asked."""
    return all(tier.up.values())


def test_what_is_promoted_is_found_until_it_is_invalidated() -> None:
    """The ordinary life of an item, and what is counted of it."""
    with FakeMemcached(Scripted()) as server, open_tier(server.address) as tier:
        assert tier.get(b"k") is None
        assert tier.promote(b"k", b"item", 0)
        assert tier.get(b"k") == b"item"
        tier.invalidate(b"k")
        assert not tier.may_hold(b"k")
        assert tier.get(b"k") is None

    stats = tier.stats
    assert (stats.gets, stats.hits, stats.promotions, stats.invalidations) == (
        3,
        1,
        1,
        1,
    )
    assert stats.calls.count == 4
    assert not stats.failures


def test_an_item_over_the_limit_is_not_sent() -> None:
    """Nobody is asked, and nothing is noted."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        assert not tier.promote(b"k", bytes(1001), 0)
        assert not tier.may_hold(b"k")
    assert not script.items


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
        tier._names.note_promotion(b"k")
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
        server = FakeMemcached(Scripted())
        server._listener.close()
        server._listener = socket.create_server(("127.0.0.1", port))
        with server:
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


def test_an_invalidation_asks_nobody_and_cannot_be_lost() -> None:
    """The item stays where it is, under a name that is not asked for any more."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"k", b"old", 0)
        script.is_silent = True
        tier.invalidate(b"k")
        script.late.set()
        script.is_silent = False

        assert tier.get(b"k") is None
        tier.promote(b"k", b"new", 0)
        assert tier.get(b"k") == b"new"
        assert sorted(item[16:] for item in script.items.values()) == [b"new", b"old"]
    assert not tier.stats.failures


def test_a_copy_that_arrives_late_is_not_found() -> None:
    """It was sent before the key was invalidated, so it has the old name."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        script.is_silent = True
        assert not tier.promote(b"k", b"old", 0)
        tier.invalidate(b"k")
        script.is_silent = False
        script.late.set()
        wait_until(lambda: is_up(tier), "the server to be asked again")
        wait_until(lambda: script.items, "the copy to arrive")

        assert tier.get(b"k") is None


def test_an_item_that_was_not_asked_for_does_not_count() -> None:
    """Whatever a server answers, an item begins with its own name."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"a", b"item a", 0)
        tier.promote(b"b", b"item b", 0)
        name_a, name_b = script.items
        script.items[name_b] = script.items[name_a]

        assert tier.get(b"b") is None
        assert (tier.stats.hits, tier.stats.stale) == (1, 1)


def test_a_flush_asks_nobody_and_leaves_nothing_to_be_found() -> None:
    """All names are new."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"k", b"item", 0)
        tier.flush()

        assert not tier.may_hold(b"k")
        assert tier.get(b"k") is None
        assert len(script.items) == 1


def test_a_journal_that_cannot_be_written_changes_nothing() -> None:
    """A put of a promoted key is refused then; all others, and gets, go on."""
    journal = MemoryJournal()
    with (
        FakeMemcached(Scripted()) as server,
        open_tier(server.address, journal=journal) as tier,
    ):
        tier.promote(b"k", b"item", 0)
        journal.is_broken = True
        with pytest.raises(OSError, match="broken"):
            tier.invalidate(b"k")
        assert tier.get(b"k") == b"item"
        assert not tier.promote(b"other", b"item", 0)
        tier.invalidate(b"other")
        assert tier.stats.failures["journal"] == 1


def test_keys_are_spread_over_servers_and_stay_there() -> None:
    """Each has its share, and one that is down takes only its own keys with it."""
    scripts = [Scripted() for _ in range(3)]
    keys = [b"%d" % number for number in range(300)]
    with (
        FakeMemcached(scripts[0]) as a,
        FakeMemcached(scripts[1]) as b,
        FakeMemcached(scripts[2]) as c,
        open_tier(a.address, b.address, c.address) as tier,
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
