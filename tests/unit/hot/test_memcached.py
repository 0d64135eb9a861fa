"""memcached.py: which copies are found, and what is counted."""

from __future__ import annotations

import pytest

from support.memcached import FakeMemcached
from support.tiers import Scripted, is_up, open_tier
from support.waiting import wait_until


def test_promoted_copy_is_found_until_it_is_invalidated() -> None:
    """And each step is counted."""
    with (
        FakeMemcached(Scripted()) as server,
        open_tier(server.address, timeout=5) as tier,
    ):
        assert tier.get(b"k") is None
        assert tier.promote(b"k", b"item", 0)
        assert tier.get(b"k") == b"item"
        tier.keys.invalidate(b"k")
        assert not tier.keys.may_hold(b"k")
        assert tier.get(b"k") is None

    stats = tier.stats
    assert (stats.gets, stats.hits) == (3, 1)
    assert (stats.promotions, tier.keys.invalidations) == (1, 1)
    assert stats.calls.count == 4
    assert not stats.failures


def test_copy_over_the_limit_is_not_sent() -> None:
    """No server is called, and no promotion is recorded."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        assert not tier.promote(b"k", bytes(1001), 0)
        assert not tier.keys.may_hold(b"k")
    assert not script.items


def test_invalidation_calls_no_server() -> None:
    """So it cannot be lost. The item stays, under an id that is no longer looked up."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"k", b"old", 0)
        script.is_silent = True
        tier.keys.invalidate(b"k")
        script.late.set()
        script.is_silent = False

        assert tier.get(b"k") is None
        tier.promote(b"k", b"new", 0)
        assert tier.get(b"k") == b"new"
        assert sorted(item[16:] for item in script.items.values()) == [b"new", b"old"]
    assert not tier.stats.failures


@pytest.mark.slow
def test_copy_that_arrives_late_is_not_found() -> None:
    """It was sent before the key was invalidated, so it has the old id."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        script.is_silent = True
        assert not tier.promote(b"k", b"old", 0)
        tier.keys.invalidate(b"k")
        script.is_silent = False
        script.late.set()
        wait_until(lambda: is_up(tier), "the server to be up")
        wait_until(lambda: script.items, "the copy to arrive")

        assert tier.get(b"k") is None


def test_item_of_another_key_is_rejected() -> None:
    """Each item begins with its own id."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"a", b"item a", 0)
        tier.promote(b"b", b"item b", 0)
        name_a, name_b = script.items
        script.items[name_b] = script.items[name_a]

        assert tier.get(b"b") is None
        assert (tier.stats.hits, tier.stats.stale) == (1, 1)


def test_flush_calls_no_server_and_hides_every_copy() -> None:
    """All ids change."""
    script = Scripted()
    with FakeMemcached(script) as server, open_tier(server.address) as tier:
        tier.promote(b"k", b"item", 0)
        tier.keys.begin_epoch()

        assert not tier.keys.may_hold(b"k")
        assert tier.get(b"k") is None
        assert len(script.items) == 1


def test_a_copy_of_a_record_that_was_replaced_meanwhile_is_not_stored() -> None:
    """Nor is it found later."""
    with (
        FakeMemcached(Scripted()) as server,
        open_tier(server.address, timeout=5) as tier,
    ):
        assert not tier.promote(b"k", b"item", 0, lambda: False)
        assert not tier.keys.may_hold(b"k")
        assert tier.get(b"k") is None
    assert tier.stats.promotions == 0
