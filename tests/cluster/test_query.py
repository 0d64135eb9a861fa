"""The setting `query`: nginx chooses the instance by the key that the instance derives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args
from urllib.parse import unquote_to_bytes

import pytest

from support.cluster import Cluster
from support.nginx import SOURCE
from support.process import SHARED, ServerProcess
from support.ringed import misdirected, ringed
from support.waiting import wait_until
from support.wire import exchange
from volcache.errors import BadKeyError
from volcache.keys import Query, parse_key, with_query
from volcache_client import Client

pytestmark = pytest.mark.integration

USES: Final[tuple[Query, ...]] = get_args(Query)
SHIPPED: Final = (SOURCE / "volcache/query.conf").read_text()
PATHS: Final = (
    *("/a", "/x/../a", "/%61", "/a%3Fb"),
    *("/a//b/", "/a/..", "/%c3%a4.png", "/-/a"),
)
QUERIES: Final = (
    *("?", "?b", "?w=1&h=2", "?w=1&h=%32", "??b", "?b?c", "?b/../c", "?/.", "?a/.b"),
    *("?%2e", "?a=%00", "?a=%zz", "?+", "?'\"<>[]{}|\\^`"),
)
TARGETS: Final = [path + query for path in PATHS for query in ("", *QUERIES)]


@contextmanager
def cluster(folder: Path, use: Query) -> Iterator[Cluster]:
    """Run three instances that refuse each other's keys; nginx logs what it hashes."""
    hashed = "$uri$is_args$args" if use == "key" else "$uri"
    query = SHIPPED.replace("default $uri;", f"default {hashed};")
    assert (query == SHIPPED) == (use != "key")
    log = (
        "log_format keys escape=none '$request_uri\t$volcache_key\t$upstream_status';\n"
    )
    files = {
        "volcache/query.conf": query,
        "volcache.conf": log + (SOURCE / "volcache.conf").read_text(),
        "volcache/log.conf": "access_log keys.log keys;\n",
    }
    settings = {**SHARED, "query": use}
    own = [ServerProcess(folder / f"disk{n}", settings=settings) for n in range(3)]
    with ringed(folder / "ring", own, files=files) as running:
        yield running


def key_of(target: str, use: Query) -> bytes | None:
    """Return the key that an instance derives; None: it refuses the request."""
    path, _, query = target.partition("?")
    decoded = unquote_to_bytes(path).decode("latin-1")
    try:
        if query.startswith("?") and use == "key":
            return None
        return parse_key(with_query(decoded, query, use), 1024)
    except BadKeyError:
        return None


@pytest.mark.parametrize("use", USES)
def test_nginx_and_the_instances_derive_one_key_from_path_and_query(
    tmp_path: Path, use: Query
) -> None:
    """Each value is where nginx looks for it, and under no other key."""
    with cluster(tmp_path, use) as running:
        port, stored = running.nginx.port, dict[bytes, bytes]()
        for number, target in enumerate(TARGETS):
            key, value = key_of(target, use), b"%d" % number
            reply = exchange(port, "PUT", target, value)
            if target.startswith("/-/"):
                assert reply.status == 403, target
            elif key is None:
                assert reply.status == 400, target
                assert reply.body.count(b"\n") == 1
            else:
                assert reply.status == 200, (target, reply)
                stored[key] = value
        for target in TARGETS:
            reply, known = exchange(port, "GET", target), key_of(target, use)
            wanted = stored.get(known) if known else None
            assert (reply.status == 200) == (wanted is not None), target
            assert wanted is None or reply.body == wanted, target
        # The client has a ring of its own, and writes each key as a path.
        with Client(running.nginx.url) as client:
            for key, value in stored.items():
                assert client.get(key) == value
        with Client(running.nginx.folder / "volcache/instances.conf") as client:
            for key, value in stored.items():
                assert client.get(key) == value
        assert len(stored) > (50 if use == "key" else 3)
        for server in running.instances.values():
            assert not any(misdirected(server).values())
        check_log(running.nginx.folder / "keys.log", use)


def check_log(log: Path, use: Query) -> None:
    """What nginx has hashed is the key of each request that was not refused."""
    wait_until(lambda: log.read_bytes().count(b"\n") >= 2 * len(TARGETS), "the log")
    seen = 0
    for line in log.read_bytes().decode("latin-1").splitlines():
        target, hashed, status = line.split("\t")
        if status in {"200", "404"}:
            assert b"/" + (key_of(target, use) or b"?") == hashed.encode("latin-1")
            seen += 1
    assert seen > (20 if use == "refuse" else 80)


def test_nginx_that_ignores_a_query_that_is_a_part_is_noticed(tmp_path: Path) -> None:
    """The instances refuse what they would not find again, and count it."""
    with cluster(tmp_path, "key") as running:
        running.nginx.write("volcache/query.conf", SHIPPED)
        running.nginx.reload()
        port, targets = running.nginx.port, [f"/a?{number}" for number in range(30)]
        assert 503 in {exchange(port, "PUT", one, b"x").status for one in targets}
        refused = [misdirected(server) for server in running.instances.values()]
        assert sum(one["write"] for one in refused) > 0
