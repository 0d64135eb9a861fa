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
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

from volcache.errors import ConfigError
from volcache_client.discovery import parse_list, read_file
from volcache_client.errors import CacheError
from volcache_client.ring import HashRing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SLASH: Final = crc32(b"/")
_HASHES: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """The keys that this instance serves, and those that it stores."""

    reads: array[int]
    writes: array[int]
    servers: tuple[tuple[str, int], ...]  # the list, with weights
    _ring: HashRing = field(compare=False, repr=False)
    hosts: tuple[str, ...] = ()  # of the instances that are listed
    version: int = 0  # of the list: when it was changed, in seconds since the epoch

    def may_read(self, key: bytes) -> bool:
        """Return whether a key may be served."""
        return _have(self.reads, crc32(key, _SLASH))

    def may_write(self, key: bytes) -> bool:
        """Return whether a key may be stored or deleted."""
        return _have(self.writes, crc32(key, _SLASH))

    def owner(self, key: bytes) -> str:
        """Return the instance that stores a key, as the list names it."""
        return self._ring.node(key)


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
    rings: list[HashRing] = []
    first: tuple[tuple[str, int], ...] = ()
    hosts: list[str] = []
    version = 0
    for file in files:
        try:
            listed = parse_list(read_file(Path(file)))
            version = max(version, int(Path(file).stat().st_mtime))
        except (CacheError, OSError) as error:
            raise ConfigError(f"ring: {error}") from error
        servers = tuple((address.name, weight) for address, weight in listed)
        names = [name for name, _ in servers]
        if own not in names and not rings:
            raise ConfigError(
                f"ring: {file} does not have this instance, ring_self = {own!r}; it has"
                f" {len(names)}, such as {names[0]!r}"
            )
        if not rings:
            first = servers
            hosts = [one.host for one, _ in listed if not one.socket_path]
        rings.append(HashRing(servers))
    if not rings:
        return None
    found = [_bounds(ring.parts(own)) for ring in rings]
    named = tuple(dict.fromkeys(hosts))
    return OwnKeys(_union(found), found[0], first, rings[0], named, version)


def _have(bounds: array[int], number: int) -> bool:
    return bool(bisect_right(bounds, number) & 1)


def _bounds(parts: Iterable[tuple[int, int]]) -> array[int]:
    """Return the bounds of some parts."""
    bounds: set[int] = set()
    for start, end in parts:
        bounds ^= {start} ^ {end}  # What ends where another one begins is no bound.
    return array("I", sorted(bounds - {_HASHES}))


def _union(sets: Sequence[array[int]]) -> array[int]:
    """Return the bounds of all keys that are in any of some sets."""
    bounds = array("I")
    for bound in sorted({bound for one in sets for bound in one}):
        if any(_have(one, bound) for one in sets) != len(bounds) & 1:
            bounds.append(bound)
    return bounds
