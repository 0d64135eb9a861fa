"""An instance in this process: a real store, a fake hot tier, the application."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.fake_cache import FakeCache
from support.wsgi_client import Client
from volcache.cache import Cache
from volcache.hot.tier import HotStats
from volcache.monitoring.commands import CommandStats
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.settings import DEFAULTS, visible_settings
from volcache.store import Store


class FakeTier:
    """Two servers, one of them down, and a different number in each counter."""

    def __init__(self) -> None:
        """Set the counters."""
        self.stats = HotStats(gets=5, hits=3, stale=1, promotions=2, refused=6)
        self.client = None
        self.keys = SimpleNamespace(first=0, invalidations=7)
        self.stats.flushes, self.stats.states = 8, 9
        self.stats.failures["timeout"] = 1
        self.stats.calls.observe(0, 1000)
        self.up = {"127.0.0.1:11211": True, "/run/memcached": False}


def watch(store: Store, requests: RequestStats | None = None, **more: Any) -> Monitor:
    """Return a monitor of an instance without a hot tier."""
    settings = more.pop("settings", None) or visible_settings(DEFAULTS)
    return Monitor(
        more.pop("cache", None) or Cache(store),
        requests or RequestStats(),
        settings=settings | {"mount_point": "data", "sync_mode": "none"},
        boot_seconds=1.5,
        **more,
    )


def watch_tiered(store: Store, requests: RequestStats | None = None) -> Monitor:
    """Return a monitor of an instance with a `FakeTier` and the memcached protocol."""
    tier: Any = FakeTier()
    commands = CommandStats(11, 12, 13, 14, 15)
    commands.answers["get", "hit"].observe(0, 3000)
    commands.answers["set", "stored"].observe(0, 70_000)
    return watch(store, requests, cache=Cache(store, tier), commands=commands)


def operator_of(monitor: Monitor, **more: Any) -> Client:
    """Return a client of the instance, for requests under `/-/`."""
    return Client(FakeCache(), status=monitor, **more)
