"""The client's ring against nginx: each key is on the same node by both."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Final
from zlib import crc32

import pytest

from support.cluster import Cluster
from support.extent import EXTENT
from support.nginx import RingNginx, instances_of
from volcache_client.keys import encode_key, path_of
from volcache_client.ring import HashRing

pytestmark = pytest.mark.integration

# Of each of five rings: 100,000 in all; with CRASH_EXTENT=0 100,000 of each.
KEYS: Final = 20_000 if EXTENT == 1 else 100_000
PARTS: Final = (
    "a", "key", "img/cat.png", "user:17", "x y", "//", "/", "%", "%2F", "%00", "100%",
    "é", "日本語", "🗝", "?", "#", "a=b&c", "+", "\\", '"', "<>", "..", ".", "-",
    "-/", "~", "\xa0",
)  # fmt: skip


def any_keys(number: int, seed: int) -> list[bytes]:
    """Return keys of 1 to 1024 bytes of all kinds that the client accepts."""
    chance = random.Random(seed)  # noqa: S311 - Not a secret.
    keys: list[bytes] = []
    while len(keys) < number:
        kind = chance.random()
        if kind < 0.4:
            key = f"{chance.choice(PARTS)}/{chance.getrandbits(64):x}".encode()
        elif kind < 0.8:
            key = "".join(chance.choices(PARTS, k=chance.randint(1, 8))).encode()
        elif kind < 0.99:
            key = chance.randbytes(chance.randint(1, 40))
        else:
            key = chance.randbytes(chance.choice((1000, 1023, 1024)))
        try:
            keys.append(encode_key(key))
        except ValueError:
            continue
    return keys


RINGS: Final[dict[str, list[tuple[str, int]]]] = {
    "equal": [(f"127.0.0.1:{port}", 10) for port in (1, 2, 3)],
    "weights": [("127.0.0.1:1", 1), ("127.0.0.1:2", 3), ("127.0.0.1:3", 10),
                ("127.0.0.1:4", 100)],
    # nginx looks host names up, so it must be one that is always known.
    "names": [("localhost:1", 1), ("LocalHost:2", 2), ("[::1]:3", 1),
              ("[::ffff:127.80.80.80]", 1), ("127.80.80.80", 1),
              ("unix:/no/such/socket", 1), ("unix:/no/such:", 1), ("UNIX:/none:4", 1),
              ("127.0.0.1:00005", 1)],
    "many": [(f"127.0.{n}.1:{n + 1}", 1 + n % 3) for n in range(40)],
    "one": [("127.0.0.1:1", 1)],
}  # fmt: skip
# The address of a name, as nginx shows it, where that is another text.
ADDRESSES: Final = {
    "127.0.0.1:1": "localhost:1", "[::1]:1": "localhost:1",
    "127.0.0.1:2": "LocalHost:2", "[::1]:2": "LocalHost:2",
    "127.80.80.80:80": "127.80.80.80", "127.0.0.1:5": "127.0.0.1:00005",
    "[::ffff:127.80.80.80]:80": "[::ffff:127.80.80.80]",
    "unix:/none:4": "UNIX:/none:4",
}  # fmt: skip


LONG_RINGS: Final = tuple(RINGS)
# Pairs of names with a point in common. Of two equal points nginx keeps that of the server
# which is first in its configuration.
COLLISIONS: Final = (
    ("127.0.0.1:171", "127.0.0.1:190", 1952463497),
    ("127.0.0.1:114", "127.0.0.1:274", 4014023829),
    ("127.0.0.1:74", "127.0.0.1:590", 2511948530),
)
for _number, (_first, _second, _) in enumerate(COLLISIONS):
    RINGS[f"collision{_number}"] = [(_first, 1), (_second, 1)]
    RINGS[f"reversed{_number}"] = [(_second, 1), (_first, 1)]


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingNginx]:
    """Run nginx with all rings."""
    with RingNginx(tmp_path_factory.mktemp("ring") / "nginx", RINGS) as running:
        yield running


def chosen_by(nginx: RingNginx, ring: str, keys: list[bytes]) -> list[str]:
    """Return the address that each key's request was for; an IP, not a host name."""
    return instances_of(nginx.port, [path_of(key) for key in keys], ring)


@pytest.mark.parametrize("name", LONG_RINGS)
def test_ring_names_the_node_that_nginx_chooses(name: str, nginx: RingNginx) -> None:
    """With all kinds of names and weights."""
    ring = HashRing(RINGS[name])
    keys = any_keys(KEYS, seed=len(name))
    chosen = chosen_by(nginx, name, keys)
    if name == "names":
        chosen = [ADDRESSES.get(address, address) for address in chosen]
    pairs = zip(keys, chosen, strict=True)
    wrong = [(key, node) for key, node in pairs if ring.node(key) != node]
    assert wrong == []
    assert set(chosen) == {node for node, _ in RINGS[name]}


def test_of_equal_points_the_first_node_in_the_list_has_the_keys(
    nginx: RingNginx,
) -> None:
    """As nginx decides it, so that it depends on the order of the list."""
    for number, (first, second, point) in enumerate(COLLISIONS):
        for name in (first, second):
            assert point in HashRing([name])._points
        ring = HashRing([first, second])
        before = max(p for p in ring._points if p < point)
        keys = (b"%d" % n for n in count())
        some = list(islice((k for k in keys if before < crc32(b"/" + k) <= point), 20))
        for nodes, name in (
            ([first, second], f"collision{number}"),
            ([second, first], f"reversed{number}"),
        ):
            assert chosen_by(nginx, name, some) == [nodes[0]] * len(some)
            assert {HashRing(nodes).node(key) for key in some} == {nodes[0]}


def test_key_on_a_point_belongs_to_the_node_of_that_point(nginx: RingNginx) -> None:
    """Not to the next one."""
    ring = HashRing(RINGS["many"])
    points = set(ring._points)
    numbers = (b"%d" % n for n in range(2_000_000))
    keys = [key for key in numbers if crc32(b"/" + key) in points]
    assert len(keys) > 2
    assert [ring.node(key) for key in keys] == chosen_by(nginx, "many", keys)


def test_nodes_are_those_that_nginx_names(cluster: Cluster) -> None:
    """In its header X-Instance; also for keys that nginx treats in a special way."""
    odd = [
        "-", "-x", "a/-/healthy", "/-/healthy", "//", "#", "%23", "a#b", "?", "a?b",
        "%2e%2e/x", "-%2Fx",
        "%2D/x", "\\", "a;b", "favicon.ico", "~lease/1", "a:b@c", " ", "é" * 500,
    ]  # fmt: skip
    keys = [key.encode() for key in odd] + any_keys(2_000, seed=3)
    ring = HashRing([(name, 10) for name in cluster.instances])
    found = instances_of(cluster.nginx.port, [path_of(key) for key in keys])
    assert [ring.node(key) for key in keys] == found
