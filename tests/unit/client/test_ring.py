"""ring.py: which node has a key; test_client_ring.py compares it with nginx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from support.tables import each_row
from volcache_client.errors import InvalidArgumentError, InvalidKeyError
from volcache_client.ring import HashRing


def chosen(nodes: Sequence[str | tuple[str, int]], count: int = 20) -> list[str]:
    """Return the nodes of the keys 0, 1, ..."""
    ring = HashRing(nodes)
    return [ring.node(str(number)) for number in range(count)]


def test_text_and_bytes_are_the_same_key() -> None:
    """Text is UTF-8."""
    ring = HashRing([f"10.0.0.1:{port}" for port in range(1, 20)])
    for key in ("", "a", "é", "日本語", "a//b", "%2F", "x" * 5000):
        assert ring.node(key) == ring.node(key.encode())


def test_order_of_the_nodes_does_not_matter() -> None:
    """Each key has the same node."""
    names = [f"10.0.0.{n}:1234" for n in range(5)]
    assert chosen(names, 500) == chosen(names[::-1], 500)


def test_each_node_has_keys_in_proportion_to_its_weight() -> None:
    """Within a fifth, at weights of 10 and more."""
    found = Counter(chosen([("a:1", 10), ("b:1", 20), ("c:1", 30)], 30_000))
    for name, share in (("a:1", 5_000), ("b:1", 10_000), ("c:1", 15_000)):
        assert 0.8 * share < found[name] < 1.2 * share


def test_a_node_that_leaves_moves_only_its_keys() -> None:
    """The other nodes keep theirs."""
    before = chosen(["a:1", "b:1", "c:1"], 2_000)
    after = chosen(["a:1", "c:1"], 2_000)
    assert all(
        old == new for old, new in zip(before, after, strict=True) if old != "b:1"
    )


def test_one_node_has_all_keys() -> None:
    """Also those behind its last point."""
    assert set(chosen(["a:1"], 2_000)) == {"a:1"}


def test_nodes_are_named_in_the_order_given() -> None:
    """Without weights; a pair may also be a list, as in JSON."""
    listed: list[Any] = [("b:1", 2), "a:1", ["c:1", 3]]
    assert HashRing(listed).nodes == ("b:1", "a:1", "c:1")


@each_row(
    ("nodes", "reason"),
    [
        ([], "the list of nodes is empty"),
        (["a:1", "b:1", ("a:1", 2)], "a:1: the node is in the list twice"),
        ([("a:1", 0)], "a:1: weight 0; allowed are integers from 1 to 1000"),
        *(([("a:1", 1001)], "weight 1001"), ([("a:1", -1)], "weight -1")),
        *(([("a:1", 1.0)], r"weight 1\.0"), ([("a:1", True)], "weight True")),
        *(([("a:1", "10")], "weight '10'"), ([("a:1", None)], "weight None")),
        ([("a:1",)], "is not a node; allowed are a name"),
        *(([("a:1", 1, 2)], "is not a node"), ([b"a:1"], "b'a:1' is not a node")),
        *(([None], "None is not a node"), ([7], "7 is not a node")),
        ([(7, 1)], "7 is not the name of a node"),
        ([""], "'' is not the name of a node"),
    ],
)
def test_wrong_lists_are_refused(nodes: list[Any], reason: str) -> None:
    """The error has the node and what is allowed."""
    with pytest.raises(InvalidArgumentError, match=reason):
        HashRing(nodes)


@each_row("key", [None, 1, bytearray(b"a"), "\ud800"])
def test_what_is_no_key_is_refused(key: Any) -> None:
    """Only text and bytes are keys."""
    with pytest.raises(InvalidKeyError):
        HashRing(["a:1"]).node(key)
