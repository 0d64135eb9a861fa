"""The history that the charts of the page begin with."""

from __future__ import annotations

import json

from support.instances import operator_of, watch
from volcache.monitoring.history import KEPT, STEP_SECONDS, History
from volcache.store import Store


def test_history_has_a_bounded_number_of_stats_in_order(store: Store) -> None:
    """One in a step, however often it beats; the oldest are dropped."""
    now = 0.0
    status = watch(store)
    history = History(status, timer=lambda: now)
    assert history.encoded() == b"[]"
    for _ in range(2 * (KEPT + 5)):
        status.requests.answers["GET", "200 OK", "DISK"].observe(0, 1)
        history.beat()
        now += STEP_SECONDS / 2
    client = operator_of(status, history=history)
    found = json.loads(client.ask("GET", "/-/history").body)
    hits = [one["requests"]["hits"]["DISK"] for one in found]
    assert hits == [2 * n + 1 for n in range(5, KEPT + 5)]
    assert "volumes" not in found[0]["store"]
