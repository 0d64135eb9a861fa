"""What clients see when instances fail, return and are restarted."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.cluster import Cluster
from support.load import Load
from support.machine import ALL_FILES, Machine
from support.nginx import Nginx, instances_text, with_mode
from support.process import SHARED, ServerProcess
from support.wire import exchange

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATHS = [f"/failure/{n}" for n in range(60)]


def filled(cluster: Cluster) -> tuple[str, list[str]]:
    """Store values; return the first instance, and the paths whose keys it has."""
    for path in PATHS:
        assert cluster.ask("PUT", path, b"value").status == 200
    name = next(iter(cluster.instances))
    return name, cluster.by_owner(PATHS)[name]


class Failing(NamedTuple):
    """A cluster whose first instance has a disk that can become unreadable."""

    cluster: Cluster
    disk: Machine
    server: ServerProcess
    paths: list[str]  # Whose keys it has.


@pytest.fixture
def failing(
    cluster_with: Callable[..., Cluster], tmp_path: Path
) -> Callable[..., Failing]:
    """Return a function that starts one and stores values."""

    def start(**options: Any) -> Failing:
        disk = Machine(tmp_path / "shim")
        place, variables = tmp_path / "store", disk.environment
        server = ServerProcess(place, settings=SHARED, environment=variables)
        cluster = cluster_with(own=[server], **options)
        return Failing(cluster, disk, server, filled(cluster)[1])

    return start


def read_until_unready(server: ServerProcess, path: str) -> None:
    """Read a key, which is a 503 each time, until the instance is not ready."""
    absent = "/failure/absent"
    assert server.ask("GET", absent).status == 404
    for method in ("GET", "HEAD", "GET"):
        assert server.ask("GET", "/-/ready").text == "ready\n"
        answer = server.ask(method, path)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert "X-Cache" not in answer.headers
    assert server.ask("GET", "/-/ready").status == 503
    # It cannot be told any more from a key that the disk hides.
    assert server.ask("GET", absent).status == 503


def test_instance_whose_disk_cannot_be_read_is_taken_out_until_it_can(
    failing: Callable[..., Failing],
) -> None:
    """
    It answers with 503, which nginx turns into misses, and is soon not ready.

    A conditional write of an unreadable value changes nothing; a plain DELETE deletes, so
    that the value does not return.
    """
    cluster, disk, server, (path, deleted, *_) = failing()
    disk.fail_reads_of(ALL_FILES)
    for _ in range(2):
        read = cluster.ask("GET", path)
        assert (read.status, read.headers["X-Cache"]) == (404, "MISS")
        assert read.headers["X-Instance"] == f"127.0.0.1:{server.port}"
        assert cluster.ask("HEAD", path).status == 404
    assert server.ask("GET", "/-/ready").status == 503
    for method in ("PUT", "DELETE"):
        for header in ("If-None-Match: *", "If-Match: *"):
            answer = cluster.ask(method, path, b"x", header)
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
    assert cluster.ask("DELETE", deleted).status == 200
    disk.recover()
    assert cluster.ask("GET", path).body == b"value"
    assert cluster.ask("GET", deleted).status == 404
    assert server.ask("GET", "/-/ready").text == "ready\n"
    disk.fail_reads_of(ALL_FILES)
    read_until_unready(server, path)


def test_failover_skips_an_instance_whose_disk_cannot_be_read(
    failing: Callable[..., Failing],
) -> None:
    """For immutable keys: the next instance on the ring serves its keys."""
    cluster, disk, server, (path, *_) = failing(files=with_mode("failover"))
    disk.fail_reads_of(ALL_FILES)
    read_until_unready(server, path)
    for _ in range(3):
        read = cluster.ask("GET", path)
        assert (read.status, read.headers["X-Cache"]) == (404, "MISS")
        assert not read.headers["X-Instance"].endswith(f":{server.port}")


def test_reads_of_an_unreachable_machine_are_misses(tmp_path: Path) -> None:
    """If connections are not even refused, proxy_connect_timeout ends the wait."""
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        name = f"127.0.0.1:{full.getsockname()[1]}"
        for _ in range(4):  # The kernel drops what comes beyond its queue.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)  # noqa: FBT003 - The library's signature.
            waiting.connect_ex(full.getsockname())
        with Nginx(tmp_path / "nginx", [name]) as nginx:
            read = exchange(nginx.port, "GET", "/off")
            assert (read.status, read.headers["X-Cache"]) == (404, "MISS")
            assert exchange(nginx.port, "PUT", "/off", b"").status == 503
            assert nginx.logged(' answers="504')


def test_reload_of_nginx_fails_no_request(cluster_with: Callable[..., Cluster]) -> None:
    """
    A changed configuration is loaded under load without an error.

    Old workers close connections between two requests; clients then open new ones.
    """
    nginx = cluster_with().nginx
    with Load(nginx.port, repeats=True) as load:
        load.wait_for(200)
        nginx.reload()
        load.wait_for(200)
    load.assert_none_failed()


def test_failover_reads_and_writes_at_the_next_instance(
    cluster_with: Callable[..., Cluster],
) -> None:
    """For immutable keys: the keys of a dead instance are stored elsewhere at once."""
    cluster = cluster_with(files=with_mode("failover"))
    text = instances_text([*cluster.instances])
    text = text.replace("max_fails=0", "max_fails=1 fail_timeout=60s")
    cluster.nginx.write("volcache/instances.conf", text)
    cluster.nginx.reload()
    dead = next(iter(cluster.instances))
    lost = cluster.by_owner(PATHS)[dead]
    cluster.instances[dead].kill()
    for path in lost:
        assert cluster.ask("GET", path).status == 404
    # Each worker detects the failure for itself.
    statuses = [cluster.ask("PUT", path, b"new").status for path in lost]
    assert statuses.count(503) <= 2 * len(cluster.nginx.workers())
    stored = [p for p, status in zip(lost, statuses, strict=True) if status == 200]
    assert stored
    for path in stored:
        assert cluster.ask("GET", path).body == b"new"
        held = [other.ask("GET", path).status for other in cluster.others(dead)]
        assert sorted(held) == [200, 404]
