"""tier.py: no hot tier."""

from __future__ import annotations

from volcache.hot.tier import HotStats, HotTier, NoHotTier


def test_no_hot_tier_holds_nothing() -> None:
    """It accepts every call of the interface, and counts nothing."""
    tier: HotTier = NoHotTier()
    assert not tier.promote(b"k", b"copy", 0, lambda: True)
    assert not tier.may_hold(b"k")
    assert tier.get(b"k") is None
    assert not tier.invalidate(b"k")
    tier.flush()
    tier.close()
    assert tier.up == {}
    assert tier.stats == HotStats()
