"""The table of metrics: conventions, and that no counter is left out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from support.instances import watch_tiered
from volcache.histogram import Histogram
from volcache.hot.tier import HotStats
from volcache.monitoring.commands import CommandStats
from volcache.monitoring.metrics import METRICS, SECTIONS
from volcache.monitoring.stats_json import encode_stats
from volcache.store import Store
from volcache.store.stats import RecoveryStats, StoreStats


def test_metrics_follow_the_conventions_of_prometheus() -> None:
    """Counters end with `_total`, the unit stands before, help is one sentence."""
    for metric in METRICS:
        assert metric.name or metric.path
        if metric.name:
            assert re.fullmatch(r"(volcache|process)_[a-z_]+", metric.name)
            assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert re.fullmatch(r"[A-Z][^.]*([.]\S[^.]*)*\.", metric.text), metric
        assert len(metric.text) < 80
        assert all(re.fullmatch(r"[a-z]+", label.name) for label in metric.labels)


def test_metrics_have_names_and_paths_of_their_own() -> None:
    """Two rows never write the same series or the same key."""
    names = Counter(metric.name for metric in METRICS if metric.name)
    paths = Counter(metric.path for metric in METRICS if metric.path)
    assert names.most_common(1)[0][1] == paths.most_common(1)[0][1] == 1
    assert len(names) > 50
    assert sum(len(section.metrics) for section in SECTIONS) == len(METRICS)


def integers_in(value: Any) -> Iterator[int]:
    """Yield every integer in decoded JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from integers_in(part)
    elif isinstance(value, int):
        yield value


# What only decides whether the disk is good, and whether it accepts writes again.
NOT_SHOWN = {"read_errors_in_row", "writes_at_refusal"}


def test_statistics_have_each_counter(store: Store) -> None:
    """A counter that is not in the table would be counted and never seen."""
    snapshot = watch_tiered(store).snapshot()
    assert snapshot.hot is not None
    counted: list[tuple[Any, type]] = [
        (snapshot.counts, StoreStats),
        (snapshot.recovery, RecoveryStats),
        (snapshot.hot.stats, HotStats),
        (snapshot.commands, CommandStats),
    ]
    expected: set[int] = set()
    for stats, kind in counted:
        for field in fields(kind):
            if field.type in {"int", "bool"} and field.name not in NOT_SHOWN:
                number = 7_000_001 + len(expected)
                setattr(stats, field.name, number)
                expected.add(number)
    assert len(expected) > 20
    assert expected <= set(integers_in(json.loads(encode_stats(snapshot))))


def test_statistics_have_each_histogram(store: Store) -> None:
    """Those of the store, of each verb, of memcached and of each kind of commands."""
    snapshot = watch_tiered(store).snapshot()
    shown = [
        value
        for metric in METRICS
        for value in metric.read(snapshot).values()
        if isinstance(value, Histogram)
    ]
    stats = json.loads(encode_stats(snapshot))
    assert len(stats["latency"]) == 10
    assert len(shown) == 10 + len(stats["memcache"]["latency"])
