"""
The ring: which node has a key.

The same as nginx's `hash $uri consistent` (ketama), so that a client that computes it and
one that asks nginx find the same values. The points of a node are the CRC-32 of its name,
with a zero byte in place of the colon before the port, followed by the previous point of
the node as four bytes, little-endian; there are 160 for each unit of weight. A key belongs
to the node of the first point that is not below the CRC-32 of its path.

Of equal points, that of the node that is first in the list counts, as in nginx where
`qsort` is stable, which it is with glibc. They are rare: of 1,700 pairs of nodes of weight
10, one has such a point.

Source: ngx_http_upstream_init_chash in ngx_http_upstream_hash_module.c of nginx.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from volcache_client.errors import InvalidArgumentError
from volcache_client.keys import as_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

POINTS_PER_WEIGHT: Final = 160
# 160,000 points, a quarter of a second; nginx has no limit.
WEIGHT_MAX: Final = 1_000
_UNIX: Final = b"unix:"
_BYTE: Final = 8  # bits
_WORD: Final = 32
_WORD_MAX: Final = (1 << _WORD) - 1


class HashRing:
    """
    Nodes and their points, eight bytes for each point; it does not change.

    Attributes:
        nodes: The names, in the order given.
    """

    def __init__(self, nodes: Iterable[str | tuple[str, int]]) -> None:
        """
        Compute the points.

        Args:
            nodes: At least one: names as in nginx's `server` lines, such as
                "10.0.0.1:1234" or "unix:/run/volcache/disk1.sock", each with its weight, 1
                to 1,000, if that is not 1.

        Raises:
            InvalidArgumentError: One is neither a name nor a name with a weight.
        """
        weights = dict(map(name_and_weight, nodes))
        self.nodes: Final = tuple(weights)
        # A point with its node, by the first byte of the point: sorting all at once would
        # take five times the memory.
        parts = [array("Q") for _ in range(1 << _BYTE)]
        for owner, (name, weight) in enumerate(weights.items()):
            for point in points(name, weight):
                parts[point >> _WORD - _BYTE].append(point << _WORD | owner)
        self._points: Final = array("I")
        self._owners: Final = array("I")  # their indexes in `nodes`
        for part in parts:
            both = sorted(part)  # Of equal points, the first node is first.
            self._points.extend([one >> _WORD for one in both])
            self._owners.extend([one & _WORD_MAX for one in both])

    def node(self, key: str | bytes) -> str:
        """
        Return the name of the node that has a key.

        Args:
            key: As it is stored, without the first slash of its path; text as UTF-8.

        Raises:
            InvalidKeyError: It is neither text nor bytes.
        """
        at = bisect_left(self._points, crc32(b"/" + as_bytes(key)))
        return self.nodes[self._owners[at % len(self._owners)]]

    def parts(self, node: str) -> list[tuple[int, int]]:
        """
        Return which hashes a node has, each part as its first one and that behind its last.

        The parts are in ascending order and do not overlap; they may touch. There are none
        if the ring does not have the node.
        """
        if node not in self.nodes:
            return []
        own, all_ = self.nodes.index(node), self._points
        places = [at for at, owner in enumerate(self._owners) if owner == own]
        found = [(all_[at - 1] + 1 if at else 0, all_[at] + 1) for at in places]
        if places[0] == 0:  # The first point has what is above all points, too.
            found.append((all_[-1] + 1, 1 << _WORD))
        return [(start, end) for start, end in found if start < end]


def name_and_weight(entry: Any) -> tuple[str, int]:  # noqa: ANN401 - It is checked.
    """
    Return the name of a node and its weight: 1, if only the name is given.

    Raises:
        InvalidArgumentError: It is neither a name nor a pair of a name and an integer from
            1 to 1,000.
    """
    pair = (entry, 1) if isinstance(entry, str) else entry
    if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004
        raise InvalidArgumentError(
            f"{entry!r} is not a node; allowed are a name, and a name with a weight:"
            ' ("host:port", 10)'
        )
    name, weight = pair
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"{name!r} is not the name of a node; allowed is text"
        )
    is_integer = isinstance(weight, int) and not isinstance(weight, bool)
    if not is_integer or not 1 <= weight <= WEIGHT_MAX:
        raise InvalidArgumentError(
            f"{name}: weight {weight!r}; allowed are integers from 1 to {WEIGHT_MAX}"
        )
    return name, weight


def points(name: str, weight: int) -> Iterator[int]:
    """Yield the points of a node."""
    base = crc32(_hashed_name(name.encode()))
    previous = bytes(4)
    for _ in range(POINTS_PER_WEIGHT * weight):
        point = crc32(previous, base)
        yield point
        previous = point.to_bytes(4, "little")


def _hashed_name(name: bytes) -> bytes:
    """Return what nginx hashes of a server's name: host, zero byte, port if it has one."""
    if name[: len(_UNIX)].lower() == _UNIX:
        return name[len(_UNIX) :] + b"\0"
    host, colon, port = name.rpartition(b":")
    if colon and (port.isdigit() or not port):
        return host + b"\0" + port
    return name + b"\0"
