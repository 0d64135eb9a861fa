"""
The queries of the dashboard and of the alarms, answered by a real Prometheus.

It reads four instances, one with a hot tier, one with the memcached protocol and one with
a single ring, a machine that is down, an instance that is down, and nginx.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from support.memcache import RawClient
from support.nginx import Nginx
from support.ports import pick_port
from support.process import ServerProcess
from support.prometheus import CONF, Exporter, Prometheus, status_text
from support.waiting import comes_true, wait_until

pytestmark = pytest.mark.integration

DASHBOARD: Final = CONF.parent / "grafana" / "volcache.json"
SMALL: Final = {
    "volume_size": 1 << 20,
    "volume_num": 4,
    "max_value_size": 65536,
    "scrub_rate": 1000,
}
# Queries that are empty here, by a part of them, and the reason.
EMPTY: Final = {
    "volcache_gained_hits_ratio": "not known until as much as the capacity was stored",
    'status=~"5.."': "no request has failed",
}


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def load(url: str) -> None:
    """Send requests of every kind that has counters."""
    with requests.Session() as session:
        for number in range(150):
            key = f"{url}/key{number % 100}"
            session.put(key, data=bytes(60_000), timeout=5)
            session.get(key, timeout=5)
        session.get(f"{url}/none", timeout=5)
        session.delete(f"{url}/key1", timeout=5)
        session.post(f"{url}/-/flush", timeout=5)


def load_memcache(port: int) -> None:
    """Send commands of some kinds."""
    with RawClient(("127.0.0.1", port)) as client:
        assert client.set("key", b"value") == b"STORED"
        assert client.get("key") == b"value"
        assert client.get("none") is None


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """Start everything; return when there are samples over some seconds."""
    with ExitStack() as stack:
        status_port = pick_port()
        exporter = Exporter(status_port)
        memcache_port = pick_port()
        kinds: list[dict[str, object]] = [
            {
                "admin_token": "secret",
                "memcache_listen": f"127.0.0.1:{memcache_port}",
            },
            {"memc_on": True, "memc_port": pick_port()},
            {"eviction": "fifo"},
            {"metrics_volumes": True},
        ]
        servers = [
            stack.enter_context(
                ServerProcess(tmp_path / str(number), settings=SMALL | kind)
            )
            for number, kind in enumerate(kinds)
        ]
        live = [f"127.0.0.1:{server.port}" for server in servers]
        dead = [f"127.0.0.1:{pick_port()}" for _ in range(4)]
        nginx = Nginx(
            tmp_path / "nginx",
            live,
            files={"volcache/status.conf": status_text(status_port)},
        )
        stack.enter_context(nginx)
        stack.enter_context(exporter)
        targets = [
            {
                "targets": [*live[:2], dead[0]],
                "labels": {"machine": "m1", "disk": "/d"},
            },
            {"targets": dead[1:3], "labels": {"machine": "m2", "disk": "/d"}},
            {"targets": [*live[2:], dead[3]], "labels": {}},
        ]
        found = Prometheus(tmp_path / "server", targets, exporter.port)
        stack.enter_context(found)
        for server in servers:
            load(server.url)
        load_memcache(memcache_port)
        requests.get(f"{nginx.url}/key1", timeout=5)

        def has_samples() -> bool:
            query = " or ".join(
                f"count_over_time({name}[1m]) > 2"
                for name in ("volcache_keys", "nginx_up")
            )
            return len(found.query(query)) == len(servers) + 1

        wait_until(has_samples, "samples")
        yield found


def check_that_every_panel_has_data(prometheus: Prometheus) -> None:
    """With all instances, and with a machine and an instance selected."""
    queries = [
        target["expr"].replace("$__rate_interval", "30s")
        for panel in panels()
        for target in panel.get("targets", [])
    ]
    expected = [one for one in queries if not any(part in one for part in EMPTY)]
    empty: list[str] = []

    def have_data() -> bool:
        """A rate has none before the second sample of its counter."""
        empty[:] = [
            query
            for query in expected
            for value in (".*", ".+")
            if not prometheus.query(
                query.replace("$machine", ".*").replace("$instance", value)
            )
        ]
        return not empty

    assert comes_true(have_data), empty


def check_that_machines_are_rows(prometheus: Prometheus) -> None:
    """By the label of the targets, or by their host; dead ones also in a table."""
    tables = {one["title"]: one for one in panels() if one["type"] == "table"}
    dead, machines = tables["Machines that do not respond"], tables["Machines"]
    found = []
    for target in [*machines["targets"][:2], *dead["targets"]]:
        expression = target["expr"].replace("$machine", ".*").replace("$instance", ".*")
        found.append(
            {
                series["metric"]["machine"]: int(series["value"][1])
                for series in prometheus.query(expression)
            }
        )
    instances, up, of_dead = found
    assert instances == {"m1": 3, "m2": 2, "127.0.0.1": 3}
    assert up == {"m1": 2, "m2": 0, "127.0.0.1": 2}
    assert of_dead == {"m2": 2}


def check_that_alarms_are_evaluated_without_errors(prometheus: Prometheus) -> None:
    """A machine that is down is one alarm, and its instances are none."""
    active: dict[str, list[dict[str, str]]] = {}

    def is_evaluated() -> bool:
        groups = prometheus.ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) > 20
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        for rule in rules:
            if rule.get("alerts"):
                active[rule["name"]] = [one["labels"] for one in rule["alerts"]]
        return (
            all(rule["health"] == "ok" for rule in rules) and "VolcacheDown" in active
        )

    wait_until(is_evaluated, "all rules to be evaluated")
    assert [found["machine"] for found in active["VolcacheMachineDown"]] == ["m2"]
    down = {found["machine"] for found in active["VolcacheDown"]}
    assert down == {"m1", "127.0.0.1"}
    assert len(active["VolcacheMemcachedDown"]) == 1
    assert not {"VolcacheNotReady", "VolcacheNginxDown"} & set(active)


def check_that_every_metric_of_the_alarms_has_a_series(prometheus: Prometheus) -> None:
    """Without one, an alarm never fires."""
    text = (CONF / "alerts.yml").read_text()
    names = set(re.findall(r"\b(?:volcache|process|nginx)_[a-z_]+", text))
    assert len(names) > 20
    assert not {name for name in names if not prometheus.query(f"count({name})")}


def test_dashboard_and_alarms_work_with_a_real_prometheus(
    prometheus: Prometheus,
) -> None:
    """One test, because the processes take seconds to start."""
    check_that_every_panel_has_data(prometheus)
    check_that_machines_are_rows(prometheus)
    check_that_alarms_are_evaluated_without_errors(prometheus)
    check_that_every_metric_of_the_alarms_has_a_series(prometheus)
