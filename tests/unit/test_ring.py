"""ring.py: the keys of an instance are those for which nginx asks it."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from volcache.errors import ConfigError
from volcache.front import Parts
from volcache.ring import OwnKeys, load_ring
from volcache_client.ring import HashRing

# Of weight 1 both have this point.
COMMON: Final = ("127.0.0.1:171", "127.0.0.1:190")
COMMON_POINT: Final = 1952463497
Node = tuple[str, int]
FEW: Final[list[Node]] = [("10.0.0.1:1234", 1), ("10.0.0.2:1234", 2)]
MANY: Final[list[Node]] = [(f"10.0.0.{n}:{n + 1}", 1 + n % 10) for n in range(40)]
ODD: Final[list[Node]] = [
    *(("localhost:1", 1), ("LocalHost:2", 2), ("[::1]:3", 1), ("127.80.80.80", 1)),
    *(("unix:/no/such/socket", 1), ("unix:/none:4", 1), ("127.0.0.1:5", 3)),
]


def text_of(nodes: Sequence[Node]) -> str:
    """Return nginx's list."""
    return "# The list.\n" + "".join(
        f"server {name} weight={weight} max_fails=1 fail_timeout=5s;\n"
        for name, weight in nodes
    )


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., OwnKeys]:
    """Return a function that reads lists of nodes."""

    def read(own: str, *lists: Sequence[Node]) -> OwnKeys:
        files = []
        for number, nodes in enumerate(lists):
            path = tmp_path / f"{number}.conf"
            path.write_text(text_of(nodes))
            files.append(str(path))
        ring = load_ring(files, own)
        assert ring is not None
        return ring

    return read


def keys_of(*rings: OwnKeys) -> list[bytes]:
    """Return random keys of some lengths."""
    chance = random.Random(repr(rings))  # noqa: S311 - Not a secret.
    return [chance.randbytes(chance.choice((1, 5, 8, 20, 100))) for _ in range(3000)]


@pytest.mark.parametrize("nodes", [FEW, MANY, ODD, FEW[:1]])
def test_ring_gives_each_key_to_one_instance(
    nodes: list[Node], load: Callable[..., OwnKeys]
) -> None:
    """As the client's ring says, which is compared with a real nginx."""
    whole = HashRing(nodes)
    rings = {name: load(name, nodes) for name, _ in nodes}
    for key in keys_of(*rings.values()):
        owners = [name for name, ring in rings.items() if ring.may_write(key)]
        assert {ring.owner(key) for ring in rings.values()} == {*owners}
        assert owners == [whole.node(key)]
        assert owners == [name for name, ring in rings.items() if ring.may_read(key)]


def test_ring_with_equal_points_counts_the_first(load: Callable[..., OwnKeys]) -> None:
    """As nginx does, whose sort is stable."""
    for nodes in ([(n, 1) for n in COMMON], [(n, 1) for n in reversed(COMMON)]):
        rings = [load(name, nodes) for name, _ in nodes]
        for at in (COMMON_POINT - 1, COMMON_POINT, COMMON_POINT + 1):
            whole = HashRing(nodes)
            place = bisect_left(whole._points, at)
            owners = [
                name
                for (name, _), ring in zip(nodes, rings, strict=True)
                if bisect_right(ring.writes, at) % 2
            ]
            assert owners == [whole.nodes[whole._owners[place]]]
        assert bisect_right(rings[0].writes, COMMON_POINT) % 2


@pytest.mark.parametrize("nodes", [FEW, MANY, FEW[:1]])
def test_parts_of_the_ring_in_c_decide_as_in_python(
    nodes: list[Node], load: Callable[..., OwnKeys]
) -> None:
    """For each key; without a ring all keys are ours."""
    for name, _ in nodes[:5]:
        ring = load(name, nodes)
        parts = Parts(ring.writes)
        for key in keys_of(ring):
            assert parts.have(b"/" + key) == ring.may_write(key)
            assert Parts().have(b"/" + key)


def test_keys_of_the_list_before_are_read_and_not_written(
    load: Callable[..., OwnKeys],
) -> None:
    """A new instance need not be in it."""
    after = [*FEW, ("10.0.0.3:1234", 3)]
    now, before = HashRing(after), HashRing(FEW)
    for name, _ in after:
        ring = load(name, after, FEW)
        for key in keys_of(ring):
            assert ring.may_write(key) == (now.node(key) == name)
            assert ring.may_read(key) == (name in {now.node(key), before.node(key)})


def test_load_ring_without_a_list_returns_none() -> None:
    """All keys are ours."""
    assert load_ring([], "") is None


def test_ring_with_an_instance_that_is_down_keeps_its_keys(tmp_path: Path) -> None:
    """As one that does not answer."""
    path = tmp_path / "list"
    path.write_text("server a:1; server b:1;")
    up = load_ring([str(path)], "a:1")
    path.write_text("server a:1; server b:1 down;")
    down = load_ring([str(path)], "a:1")
    assert up
    assert down
    assert (up.reads, up.writes) == (down.reads, down.writes)
    assert up.hosts == ("a", "b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no nodes in it"),
        (
            "server b:1;",
            "does not have this instance, ring_self = 'a:1'; it has 1, such",
        ),
        ("server a:1", "not complete"),
        ("server a:1; server a:1;", "twice"),
        ("include other.conf;", "'include' is not the address"),
    ],
)
def test_load_ring_of_a_wrong_list_is_refused(
    text: str, reason: str, tmp_path: Path
) -> None:
    """With the reason."""
    path = tmp_path / "list"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^ring: .*{reason}"):
        load_ring([str(path)], "a:1")


def test_load_ring_of_an_unreadable_list_is_refused(tmp_path: Path) -> None:
    """It is missing, or a folder."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=rf"^ring: .*{path}"):
            load_ring([str(path)], "a:1")
