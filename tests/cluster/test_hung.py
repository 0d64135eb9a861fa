"""An instance that does not answer costs only its own keys; no key is on two instances."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from support.cluster import Cluster, list_of, misdirected, ringed
from support.extent import EXTENT, SEED
from support.load import Load
from support.machine import Machine
from support.nginx import with_mode
from support.process import ADMIN, SHARED, ActivatedServer, ServerProcess
from support.waiting import wait_until
from volcache.fleet.collector import FleetCollector
from volcache.fleet.report import notes

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATHS: Final = [f"/hung/{n}" for n in range(60)]
# Healthy instances answer sooner on a loaded machine, too. One that is passed over gets no
# write until the test lets it continue: it would be done then.
HANGS: Final = ("3s", "10s")


def wait_until_passed_over(cluster: Cluster, name: str, path: str) -> None:
    """Wait until another instance is asked for a key."""
    wait_until(
        lambda: not cluster.ask("GET", path).headers["X-Instance"].endswith(name),
        "nginx to pass over the instance",
    )


def store_old(cluster: Cluster) -> None:
    """Store a value of each path, after another."""
    for value in (b"older", b"old"):
        for path in PATHS:
            assert cluster.ask("PUT", path, value).status == 200


def assert_lost(cluster: Cluster, lost: list[str]) -> None:
    """Check that reads of some keys are misses, and writes refused; others are served."""
    for path in lost:
        read = cluster.ask("GET", path)
        assert (read.status, read.headers["X-Cache"]) == (404, "MISS")
        assert cluster.ask("HEAD", path).status == 404
        for method in ("PUT", "DELETE"):
            write = cluster.ask(method, path, b"new")
            assert (write.status, write.headers["Retry-After"]) == (503, "1")
    for path in set(PATHS) - set(lost):
        assert cluster.ask("GET", path).body == b"old"


def assert_told(cluster: Cluster, name: str, others: list[ServerProcess]) -> None:
    """Check that instances count what they refuse, and that none of them is ill."""
    refused = [misdirected(other) for other in others]
    assert all(sum(one[kind] for one in refused) for kind in ("read", "write"))
    for other in others:
        by = other.stats()["requests"]["by"]
        assert not [row for row in by if row["status"] >= 500]
    rows = FleetCollector(list(cluster.instances), timeout=1).poll()
    ill = [row.target.name for row in rows if row.health.severity]
    assert ill == [name]
    told = f"keys of {name} are refused by others (expected while it is down)"
    assert notes(rows) == [told]


@pytest.mark.parametrize(
    ("has_ring", "sent"),
    [(True, signal.SIGSTOP), (True, signal.SIGKILL), (False, signal.SIGKILL)],
)
def test_keys_of_an_instance_that_does_not_answer_are_misses_and_not_written(
    tmp_path: Path,
    cluster_with: Callable[..., Cluster],
    sent: signal.Signals,
    *,
    has_ring: bool,
) -> None:
    """Until it answers again; then its values are those of the last 200."""
    with ExitStack() as stack:
        cluster = (
            stack.enter_context(ringed(tmp_path, times=HANGS))
            if has_ring
            else cluster_with()
        )
        name, server = next(iter(cluster.instances.items()))
        store_old(cluster)
        lost, others = cluster.by_owner(PATHS)[name], cluster.others(name)
        held = [other.stats()["store"]["keys"] for other in others]
        server.send_signal(sent)
        try:
            if has_ring:
                wait_until_passed_over(cluster, name, lost[0])
            assert_lost(cluster, lost)
            assert [other.stats()["store"]["keys"] for other in others] == held
            if has_ring:
                assert_told(cluster, name, others)
        finally:
            server.send_signal(signal.SIGCONT)
            if sent == signal.SIGKILL:
                server.start()
        wait_until(
            lambda: {cluster.ask("GET", p).body for p in lost} == {b"old"},
            "its keys",
        )


def test_lists_that_differ_are_noticed_and_move_no_key(tmp_path: Path) -> None:
    """An instance refuses and counts the requests for keys that are not its own."""
    with ringed(tmp_path) as cluster:
        names = list(cluster.instances)
        more = list_of([*names, "127.0.0.1:1"])
        before = cluster.by_owner(PATHS)
        for number, server in enumerate(cluster.instances.values()):
            (tmp_path / f"list{number}").write_text(more)
            assert server.ask("POST", "/-/reload", b"", ADMIN).text == "changed: ring\n"
        statuses = {
            path: [cluster.ask(m, path, b"x").status for m in ("PUT", "GET")]
            for path in PATHS
        }
        moved = [path for path, found in statuses.items() if found != [200, 200]]
        assert 5 < len(moved) < 30
        assert {tuple(statuses[path]) for path in moved} == {(503, 404)}
        found = [misdirected(server) for server in cluster.instances.values()]
        assert sum(one["write"] for one in found) == len(moved)
        for name, server in cluster.instances.items():
            own = set(before[name])
            assert server.stats()["store"]["keys"] == len(own - set(moved))
            is_logged = "ring.misdirected requests=1 path='/hung/" in server.stderr
            assert is_logged == bool(own & set(moved))  # Ports decide who has keys.


def test_growing_fleet_reads_by_either_list_and_writes_by_the_new_one(
    tmp_path: Path,
) -> None:
    """Keys of the new instance are found at their old one, and stored at the new one."""
    with ringed(tmp_path, files=with_mode("growing")) as cluster:
        names = list(cluster.instances)
        before, after = list_of(names[:2]), list_of(names)
        cluster.nginx.write("volcache/instances-before.conf", before)
        (tmp_path / "before").write_text(before)

        def use(list_: str) -> None:
            for number, server in enumerate(cluster.instances.values()):
                (tmp_path / f"list{number}").write_text(list_ if number < 2 else after)
                server.ask("POST", "/-/reload", b"", ADMIN)
            cluster.nginx.write("volcache/instances.conf", list_)
            cluster.nginx.reload()

        use(before)
        store_old(cluster)
        old = cluster.by_owner(PATHS)
        use(after)
        assert {cluster.ask("GET", path).body for path in PATHS} == {b"old"}
        missing = cluster.ask("GET", "/none")
        assert (missing.status, missing.headers["X-Cache"]) == (404, "MISS")
        moved = [
            path for path in PATHS if cluster.ask("PUT", path, b"new").status == 200
        ]
        assert moved == PATHS
        assert {cluster.ask("GET", path).body for path in PATHS} == {b"new"}
        assert cluster.instances[names[2]].stats()["store"]["keys"] > 5
        for name in names[:2]:
            for path in old[name]:
                server = cluster.instances[name]
                value = server.ask("GET", path).body
                is_moved = value == b"old"
                status = server.ask("PUT", path, b"x").status
                assert (value, status) == ((b"old", 503) if is_moved else (b"new", 200))


def test_requests_during_a_restart_wait_or_are_refused(tmp_path: Path) -> None:
    """
    No value is wrong, and all keys are served and stored again.

    A request that nginx sends when a kept connection is being closed may be refused.
    """
    own = [ActivatedServer(tmp_path / f"disk{n}", settings=SHARED) for n in range(3)]
    with ringed(tmp_path, own) as cluster, Load(cluster.nginx.port) as load:
        load.wait_for(300)
        for server in cluster.instances.values():
            server.restart()
            load.wait_for(200)
        wait_until(
            lambda: {cluster.ask("PUT", p, b"x").status for p in PATHS} == {200},
            "all instances",
        )
    assert all(answer.is_right for answer in load.answers)
    assert {status for _, status in load.count()} <= {200, 404, 503}


def test_slow_disk_does_not_let_nginx_pass_over_an_instance(tmp_path: Path) -> None:
    """Reads may wait too long and be misses; all others get their values."""
    disk = Machine(tmp_path / "shim")
    slow = ServerProcess(
        tmp_path / "disk0", settings=SHARED, environment=disk.environment
    )
    others = [ServerProcess(tmp_path / f"disk{n}", settings=SHARED) for n in (1, 2)]
    with ringed(tmp_path, [slow, *others]) as cluster:
        name = next(iter(cluster.instances))
        found = {f"/slow/{n}": b"%d" % n * 2000 for n in range(200)}
        for path, value in found.items():
            assert cluster.ask("PUT", path, value).status == 200
        paths = cluster.by_owner(list(found))[name]
        disk.slow_down("/disk0/data", 0.3)
        with ThreadPoolExecutor(len(paths)) as pool:
            answers = list(pool.map(lambda path: cluster.ask("GET", path), paths))
        for path, answer in zip(paths, answers, strict=True):
            assert answer.status in {200, 404}
            assert answer.headers["X-Instance"].endswith(name)
            if answer.status == 200:
                assert answer.body == found[path]
            else:
                assert "the disk of this key's instance does not answer" in answer.text
        assert all(not sum(misdirected(s).values()) for s in cluster.instances.values())


def test_get_while_instances_fail_returns_no_outdated_or_foreign_value(
    tmp_path: Path,
) -> None:
    """With four writers, while instances are stopped, continued, killed and restarted."""
    chance = random.Random(SEED)  # noqa: S311 - Repeatable.
    with (
        ringed(tmp_path, 5, times=("300ms", "1s")) as cluster,
        Load(cluster.nginx.port, deletes=True) as load,
    ):
        for _ in range(450 if EXTENT == 0 else 30):
            server = chance.choice(list(cluster.instances.values()))
            what = chance.choice(("stop", "kill", "restart"))
            if what == "stop":
                server.send_signal(signal.SIGSTOP)
                load.wait_for(chance.randrange(400))
                server.send_signal(signal.SIGCONT)
            elif what == "kill":
                server.kill()
                load.wait_for(chance.randrange(400))
                server.start()
            else:
                server.restart()
            load.wait_for(chance.randrange(400))
        refused = [misdirected(server) for server in cluster.instances.values()]
    assert [answer for answer in load.answers if not answer.is_right] == []
    statuses = {status for _, status in load.count()}
    assert {200, 404, 503} <= statuses <= {0, 200, 404, 503}, refused
    assert sum(sum(one.values()) for one in refused)
