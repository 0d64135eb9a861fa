"""Purges through nginx: on all instances, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from support.cluster import Cluster
from support.nginx import SOURCE, with_purges
from support.process import ADMIN, ADMIN_TOKEN
from support.wire import Reply
from volcache_client import Client
from volcache_client.errors import UnavailableError

pytestmark = pytest.mark.integration

PATHS: Final = [f"/a/{number}" for number in range(60)]
OTHER: Final = "/b/1"


@pytest.fixture
def cluster(cluster_with: Callable[..., Cluster]) -> Cluster:
    """Three instances with values, and purges allowed."""
    files = {"volcache.conf": with_purges((SOURCE / "volcache.conf").read_text())}
    running: Cluster = cluster_with(files=files)
    for path in (*PATHS, OTHER):
        assert running.ask("PUT", path, b"old").status == 200
    assert all(running.by_owner(PATHS).values())
    return running


def purge(
    cluster: Cluster, query: str = "prefix=a/", *, token: str = ADMIN_TOKEN
) -> Reply:
    """Ask nginx."""
    header = f"Authorization: Bearer {token}" if token else ""
    return cluster.ask("POST", f"/-/purge?{query}", b"", header)


def left(cluster: Cluster) -> int:
    """Return how many of the values are there."""
    return sum(cluster.ask("GET", path).status == 200 for path in PATHS)


def test_purge_is_done_by_all_instances(cluster: Cluster) -> None:
    """By a request, and by the client; values stored later stay."""
    answer = purge(cluster)
    assert (answer.status, answer.text) == (
        200,
        "done by all instances: everything stored so far under the prefix is a miss\n",
    )
    assert left(cluster) == 0
    assert cluster.ask("GET", OTHER).status == 200
    assert cluster.ask("PUT", PATHS[0], b"new").status == 200
    assert left(cluster) == 1
    with Client(cluster.url, admin_token=ADMIN_TOKEN) as client:
        client.purge("a/")
    assert left(cluster) == 0
    for server in cluster.instances.values():
        assert server.stats()["store"]["purges"] == 2


def test_purge_as_a_dry_run_changes_nothing(cluster: Cluster) -> None:
    """The query is passed on as it was sent."""
    assert purge(cluster, "prefix=%61/&dry-run").status == 200
    assert left(cluster) == len(PATHS)


@pytest.mark.parametrize(
    ("query", "token", "status", "text"),
    [
        ("prefix=a/", "", 401, "purge needs the header"),
        ("prefix=a/", "wrong", 401, "the token is wrong: purge needs the header"),
        ("prefix=", ADMIN_TOKEN, 400, "bad prefix"),
        ("prefix=a/&x=1", ADMIN_TOKEN, 400, "unknown parameter 'x=1'"),
    ],
)
def test_refusal_of_an_instance_is_passed_on(
    cluster: Cluster, query: str, token: str, status: int, text: str
) -> None:
    """Nothing is purged then."""
    answer = purge(cluster, query, token=token)
    assert answer.status == status
    assert answer.text.startswith(text)
    assert left(cluster) == len(PATHS)


def test_purge_fails_if_an_instance_does_not_answer(cluster: Cluster) -> None:
    """Each time: one that nginx passes over meanwhile has not done it."""
    name, server = next(iter(cluster.instances.items()))
    server.kill()
    for _ in range(4):
        answer = purge(cluster)
        assert answer.status == 503
        assert answer.text.startswith("an instance does not answer; others may have")
        assert answer.headers["Retry-After"] == "1"
    with (
        Client(cluster.url, admin_token=ADMIN_TOKEN, on_error="raise") as client,
        pytest.raises(UnavailableError),
    ):
        client.purge("a/")
    assert name in cluster.nginx.logged("/-/purge")


def test_purge_with_a_large_body_is_refused(cluster: Cluster) -> None:
    """By nginx; a purge needs none."""
    length = f"Content-Length: {65 << 20}"
    answer = cluster.ask("POST", "/-/purge?prefix=a/", None, f"{ADMIN}\n{length}")
    assert answer.status == 413
    assert answer.text.startswith("the value is too large")
    assert left(cluster) == len(PATHS)


def test_other_paths_of_the_operator_stay_unreachable(cluster: Cluster) -> None:
    """And other methods are refused by the instance."""
    for path in ("/-/flush", "/-/purge/", "/-/purge/../flush", "/-/reload"):
        answer = cluster.ask("POST", path, b"", ADMIN)
        assert answer.status in {400, 403}, path
    assert cluster.ask("GET", "/-/purge?prefix=a/", None, ADMIN).status == 405
    assert left(cluster) == len(PATHS)


def test_purge_is_off_unless_it_is_allowed(
    cluster_with: Callable[..., Cluster],
) -> None:
    """As shipped."""
    running = cluster_with()
    assert running.ask("PUT", "/a/1", b"old").status == 200
    assert purge(running).status == 403
    assert running.ask("GET", "/a/1").status == 200
