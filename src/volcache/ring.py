"""
Which keys are this instance's, by nginx's list of instances.

nginx passes the keys of an instance that does not answer to the next one on its ring. There
they must be neither stored nor served: the instance would have old values of them when the
other one is back. So an instance that knows the list refuses the keys of others.

A set of keys is a sorted array of *bounds*: a key is in it if an odd number of bounds is
not above the CRC-32 of its path. The native core uses the same arrays.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from volcache.errors import ConfigError
from volcache_client.discovery import parse_list, read_file
from volcache_client.errors import CacheError
from volcache_client.ring import points

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLASH: Final = crc32(b"/")
_HASHES: Final = 1 << 32


class OwnKeys(NamedTuple):
    """The keys that this instance serves, and those that it stores."""

    reads: array[int]
    writes: array[int]

    def may_read(self, key: bytes) -> bool:
        """Return whether a key may be served."""
        return _have(self.reads, crc32(key, _SLASH))

    def may_write(self, key: bytes) -> bool:
        """Return whether a key may be stored or deleted."""
        return _have(self.writes, crc32(key, _SLASH))


def load_ring(files: Sequence[str], own: str) -> OwnKeys | None:
    """
    Read the lists of instances.

    Args:
        files: nginx's list, and that before an instance was added if its keys are still
            read here (`growing.conf`); none: all keys are ours.
        own: This instance, as the lists name it.

    Raises:
        ConfigError: A file cannot be read, is not such a list, or the first one does not
            have this instance.
    """
    found: list[array[int]] = []
    for file in files:
        try:
            listed = parse_list(read_file(Path(file)))
        except CacheError as error:
            raise ConfigError(f"ring: {error}") from error
        servers = [(address.name, weight) for address, weight in listed]
        names = [name for name, _ in servers]
        if own not in names and not found:
            raise ConfigError(
                f"ring: {file} does not have this instance, ring_self = {own!r}; it has"
                f" {len(names)}, such as {names[0]!r}"
            )
        found.append(_bounds(servers, own))
    return OwnKeys(_union(found), found[0]) if found else None


def _have(bounds: array[int], number: int) -> bool:
    return bool(bisect_right(bounds, number) & 1)


def _bounds(servers: Sequence[tuple[str, int]], own: str) -> array[int]:
    """Return the bounds of the keys of one server."""
    mine = sorted({p for name, n in servers if name == own for p in points(name, n)})
    below = _others_below(mine, servers, own)
    # Our keys are above the last point before, up to one of ours. The first point has the
    # keys that are above all points, too.
    parts = [
        (max(other, previous) + 1, point + 1)
        for other, previous, point in zip(below, [-1, *mine], mine, strict=False)
    ]
    if mine and below[0] < 0:
        parts.append((max(below[-1], mine[-1]) + 1, _HASHES))
    bounds: set[int] = set()
    for start, end in parts:
        bounds ^= {start} ^ {end}  # What ends where another one begins is no bound.
    return array("I", sorted(bounds - {_HASHES}))


def _others_below(
    mine: Sequence[int], servers: Sequence[tuple[str, int]], own: str
) -> list[int]:
    """
    Return the highest point of another server below each of ours, or -1.

    The last number is that above all of ours. If a point is also that of a server that is
    listed before us, which then counts, it is its own highest one. Only our points are in
    memory: a list of 1,200 servers has two million.
    """
    below = [-1] * (len(mine) + 1)
    is_before = True
    for name, weight in servers:
        if name == own:
            is_before = False
            continue
        for point in points(name, weight):
            at = bisect_left(mine, point)
            is_equal = at < len(mine) and mine[at] == point
            if point > below[at] and (is_before or not is_equal):
                below[at] = point
    return below


def _union(sets: Sequence[array[int]]) -> array[int]:
    """Return the bounds of all keys that are in any of some sets."""
    bounds = array("I")
    for bound in sorted({bound for one in sets for bound in one}):
        if any(_have(one, bound) for one in sets) != len(bounds) & 1:
            bounds.append(bound)
    return bounds
