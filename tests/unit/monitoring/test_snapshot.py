"""Snapshots: readiness, the figures of the process, and the paths under `/-/`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from support.instances import operator_of, watch
from support.wsgi_client import assert_error
from volcache.monitoring.commands import CommandStats
from volcache.monitoring.requests import OTHER, RequestStats
from volcache.monitoring.snapshot import Recent, process_stats
from volcache.store import Store

OPENAPI: Final = Path(__file__).parents[3] / "docs" / "openapi.yaml"


def test_sync_durations_of_a_snapshot_do_not_change(store: Store) -> None:
    """Another thread counts them while the snapshot is shown."""
    store.stats.syncs.observe(0, 1000)
    snapshot = watch(store).snapshot()
    store.stats.syncs.observe(0, 1000)
    found = snapshot.sync_durations
    assert (found.count, found.total_ns) == (1, 1000)


def test_recent_numbers_are_those_of_the_last_five_minutes(store: Store) -> None:
    """Whatever was before; a start is less than five minutes ago at first."""
    times = iter(range(0, 10_000, 5))
    requests, commands = RequestStats(), CommandStats()
    status = watch(store, requests, commands=commands, timer=lambda: next(times))

    def wait(beats: int) -> Recent:
        for _ in range(beats):
            status.beat()
        return status.snapshot().recent

    requests.answers["GET", "503 Service Unavailable", ""].observe(0, 1)
    requests.answers["PUT", "503 Service Unavailable", OTHER].observe(0, 1)
    commands.answers["set", "failed"].observe(0, 1)
    assert wait(30) == ({503: 1}, {"failed": 1})
    requests.answers["PUT", "507 Insufficient Storage", ""].observe(0, 1)
    requests.answers["GET", "200 OK", "DISK"].observe(0, 1)
    assert wait(29) == ({200: 1, 503: 1, 507: 1}, {"failed": 1})
    assert wait(10) == ({200: 1, 507: 1}, {})
    assert wait(200) == ({}, {})


def test_process_without_free_descriptors_still_has_figures(tmp_path: Path) -> None:
    """Then /proc cannot be read: peak memory and the limit are shown instead."""
    figures = process_stats()
    assert figures.rss_bytes > 1 << 20
    assert 3 <= figures.open_fds < figures.max_fds
    assert figures.threads >= 1
    without = process_stats(tmp_path / "unreadable")
    assert without.rss_bytes > 1 << 20
    assert without.open_fds == without.max_fds >= figures.open_fds
    assert without.pid == figures.pid


def test_readiness_of_an_instance_with_a_problem_names_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopping process and a bad disk differ; `/-/healthy` is 200 in any case."""
    monkeypatch.setattr(store._log, "probe", lambda _reads: False)
    for reason, errors in (("", 0), ("is stopping", 0), ("reads in a row failed", 3)):
        store.stats.read_errors_in_row = errors
        is_draining = reason == "is stopping"
        client = operator_of(watch(store, is_draining=lambda now=is_draining: now))
        answer = client.ask("GET", "/-/ready")
        assert_error(answer, 503 if reason else 200, reason or "ready")
        shown = json.loads(client.ask("GET", "/-/stats").body)
        assert shown["ready"] is (reason == "")
        assert client.ask("GET", "/-/healthy").status == "200 OK"


def test_unknown_path_of_the_operator_lists_those_that_exist(store: Store) -> None:
    """Each path it names is answered, and is in the API description."""
    client = operator_of(watch(store))
    answer = client.ask("GET", "/-/metric")
    assert_error(answer, 404, "no such path")
    assert "X-Cache" not in answer.headers
    named = re.findall(r"/-/\w*", answer.body.decode())
    described = re.findall(r"^  (/-/\w*):$", OPENAPI.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(described)
    assert len(named) == len(set(named)) == 10
    for path in set(named) - {"/-/flush", "/-/purge", "/-/reload", "/-/keys"}:
        assert client.ask("GET", path).status == "200 OK"
