"""
Every spelling of a path, and the setting `query`.

Nginx chooses the instance by the key that the instance derives; `/-/` is closed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args
from urllib.parse import unquote_to_bytes

import pytest

from support.cluster import Cluster, misdirected, ringed
from support.nginx import SOURCE, Nginx
from support.process import SHARED, ServerProcess
from support.stub_instance import StubInstance
from support.waiting import wait_until
from support.wire import exchange
from volcache.errors import BadKeyError
from volcache.keys import RESERVED_PREFIX, Query, parse_key, with_query
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
SEGMENTS = ["-", "%2d", ".", "..", "%2E%2e", "a", ""]
SLASHES = ["/", "%2F"]
# Paths of up to three segments in all spellings, and some longer ones.
SPELLINGS = [
    "/" + "".join(itertools.chain(*zip(segments, slashes, strict=False))) + segments[-1]
    for count in (1, 2, 3)
    for segments in itertools.product(SEGMENTS, repeat=count)
    for slashes in itertools.product(SLASHES, repeat=count - 1)
] + [
    *("/-/healthy/../../a", "/-/stats/..%2f../a", "/-%2F..%2Fa", "/-/./healthy"),
    *("/-/%2e%2e/%2d/healthy", "/a/../-/healthy", "/a/b/../../-/healthy"),
    *("/a/../-/../-/healthy", "/./././-/healthy", "//../-/healthy", "/%2e/-/healthy"),
    *("/-/healthy?a=/../..", "/-/../a?x", "/-?/healthy", "/-/../?/-/"),
    *("/%2D%2Fhealthy", "/%2d%2fx%2f..%2f..%2fa", "/-/%00/../../a", "/-/..%00/a"),
    *("/-\\healthy", "/\\-/healthy", "/-;/healthy", "/-/;/../../a", "/%252d/healthy"),
    *("/-%252fhealthy", "/pkg/-/x", "/pkg/../-/x", "/-x/../a", "/-x"),
    *("/%c0%af-/healthy", "/%e2%80%90/healthy", "/-/%zz/../../a", "/-/#/../../a"),
    "/a#/../-/healthy",
]


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


def is_for_the_operator(path: str) -> bool:
    """Whether the path begins with `/-/`, decoded or also resolved."""
    decoded = unquote_to_bytes(path.partition("?")[0]).decode("latin-1")
    try:
        parse_key(decoded, size_max=1024)
    except BadKeyError as error:
        return decoded.startswith(RESERVED_PREFIX) or "is reserved" in str(error)
    return decoded.startswith(RESERVED_PREFIX)


def store_all(port: int, targets: list[str], use: Query) -> dict[bytes, bytes]:
    """Send a PUT to each target; return what is stored then."""
    stored, refused = dict[bytes, bytes](), 0
    for number, target in enumerate(targets):
        key, value = key_of(target, use), b"%d" % number
        # An absolute target is the same.
        prefix = "http://host" if number % 4 == 3 else ""
        reply = exchange(port, "PUT", prefix + target, value)
        if is_for_the_operator(target) or not reply.headers.get("X-Instance"):
            assert reply.status in {400, 403}, target
            assert reply.headers["Cache-Control"] == "no-store"  # By nginx.
            refused += is_for_the_operator(target)
        elif key is None:
            assert reply.status == 400, target
        else:
            assert reply.status == 200, (target, reply)
            stored[key] = value
    assert refused > len(targets) // 10
    assert len(stored) > (50 if use == "key" else 3)
    return stored


@pytest.mark.parametrize("use", USES)
def test_nginx_and_the_instances_derive_one_key_from_path_and_query(
    tmp_path: Path, use: Query
) -> None:
    """Each value is where nginx looks for it, and under no other key."""
    targets = TARGETS + (SPELLINGS if use == "ignore" else [])
    with cluster(tmp_path, use) as running:
        port = running.nginx.port
        stored = store_all(port, targets, use)
        for target in targets:
            reply, known = exchange(port, "GET", target), key_of(target, use)
            wanted = stored.get(known) if known else None
            if reply.headers.get("X-Instance"):
                assert (reply.status == 200) == (wanted is not None), target
                assert wanted is None or reply.body == wanted, target
        # The client has a ring of its own, and writes each key as a path. It has no keys
        # that begin with a slash.
        for nodes in (
            running.nginx.url,
            running.nginx.folder / "volcache/instances.conf",
        ):
            with Client(nodes) as client:
                for key, value in stored.items():
                    assert key[:1] == b"/" or client.get(key) == value
        for server in running.instances.values():
            assert not any(misdirected(server).values())
        check_log(running.nginx.folder / "keys.log", use, 2 * len(targets))


def check_log(log: Path, use: Query, count: int) -> None:
    """What nginx has hashed is the key of each request that was not refused."""
    wait_until(lambda: log.read_bytes().count(b"\n") >= count, "the log")
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


def test_operator_path_that_resolves_to_a_key_is_forbidden(
    mode: dict[str, str], stub: StubInstance, nginx_with: Callable[..., Nginx]
) -> None:
    """403 for each method in each failure mode; 405 for a method that is not allowed."""
    nginx = nginx_with(mode)
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST"):
        for path in ("/-/../200", "/%2d%2F..%2f200", "/-%2F../200", "/-/x/../../200"):
            reply = exchange(nginx.port, method, path, b"")
            assert reply.status == (405 if method == "POST" else 403), (method, path)
    assert not stub.received
    assert exchange(nginx.port, "PUT", "/./x/../200", b"").status == 200
    assert len(stub.received) == 1
