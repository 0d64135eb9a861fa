"""
`volcache.open`: options to a store, and how large its volumes are.

A cache has 64 volumes if nothing else is said: with fewer, more is evicted at a time, and
each takes a descriptor. In a directory that has volumes, their size is kept as long as it
fits the capacity. On a disk that has less space, it is a 64th of that.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    overload,
)

from volcache import kinds
from volcache.embedded.cache import EmbeddedCache
from volcache.embedded.session import Session
from volcache.kinds import GIB, MIB, TIB, VOLUME_SIZE_MIN, format_size
from volcache.store import Store
from volcache.store.directory import DATA
from volcache.store.eviction import FREQUENCY_VOLUMES_MIN
from volcache.store.files import STAT_BLOCK_BYTES
from volcache_client.errors import InvalidArgumentError
from volcache_client.keys import checked_ttl
from volcache_client.serializers import make_codec

if TYPE_CHECKING:
    from typing import Unpack

    from volcache.kinds import Kind
    from volcache.store import SyncMode
    from volcache.store.eviction import Eviction
    from volcache_client.serializers import ValueSerializer

T = TypeVar("T")
V = TypeVar("V")

_VOLUMES: Final = 64
# With smaller volumes, a value of 1 MiB would not fit.
_SIZE_ADVISED: Final = 2 * MIB
_VOLUMES_ADVISED: Final = 32
_VOLUMES_MIN: Final = FREQUENCY_VOLUMES_MIN
# Of volumes that are there; with more, each would take a descriptor for nothing.
_VOLUMES_KEPT_MAX: Final = 512
_VOLUMES_MAX: Final = 65535

_CAPACITY_DEFAULT: Final = GIB
_CAPACITY_MAX: Final = 64 * TIB
_CAPACITY: Final = kinds.size(_VOLUMES_MIN * VOLUME_SIZE_MIN, _CAPACITY_MAX)
_VOLUME_SIZE: Final = kinds.size(VOLUME_SIZE_MIN, TIB)
_SYNC_MODE: Final = kinds.choice("periodic", "always", "none")
_SYNC_INTERVAL: Final = kinds.number(0.01, 3600, "seconds")
_EVICTION: Final = kinds.choice("frequency", "fifo")

# A library is silent unless the program configures logging.
logging.getLogger("volcache").addHandler(logging.NullHandler())


class OpenOptions(TypedDict, total=False):
    """The options of `volcache.open`, besides the serializer."""

    capacity: int | str | None
    volume_size: int | str | None
    sync_mode: SyncMode
    sync_interval: float
    eviction: Eviction
    default_ttl: float


@overload
def open_cache(
    directory: str | os.PathLike[str],
    *,
    serializer: None = None,
    **options: Unpack[OpenOptions],
) -> EmbeddedCache[bytes]: ...
@overload
def open_cache(
    directory: str | os.PathLike[str],
    *,
    serializer: Literal["json", "msgpack"],
    **options: Unpack[OpenOptions],
) -> EmbeddedCache[Any]: ...
@overload
def open_cache(
    directory: str | os.PathLike[str],
    *,
    serializer: ValueSerializer[V],
    **options: Unpack[OpenOptions],
) -> EmbeddedCache[V]: ...
def open_cache(  # noqa: PLR0913 - By keyword.
    directory: str | os.PathLike[str],
    *,
    capacity: int | str | None = None,
    volume_size: int | str | None = None,
    sync_mode: SyncMode = "periodic",
    sync_interval: float = 1.0,
    eviction: Eviction = "frequency",
    default_ttl: float = math.inf,
    serializer: object = None,
) -> EmbeddedCache[Any]:
    """
    Open a directory as a cache; create it where there is none.

    Any number of processes can open a directory. The options of the one that owns it, which
    is the first, are in effect.

    Args:
        directory: Path; empty, new, or written by a cache or a server before.
        capacity: Bytes of disk space for all volumes, as a number or as text with a unit,
            such as "10GiB". If it is less than last time, the oldest values are dropped.
            None: 1 GiB, or the length of the volumes that are there, if that is more.
        volume_size: Bytes of a volume, likewise; no value can be larger. None: the size
            of the volumes that are there; if there are none, or too many would be needed,
            a 64th of the capacity.
        sync_mode: When writes reach the disk: "periodic": each `sync_interval`, by a
            thread; "always": before a write returns; "none": when the system decides.
            `close` always syncs.
        sync_interval: Seconds, for "periodic".
        eviction: "frequency" keeps what is read again, "fifo" drops the oldest.
        default_ttl: Seconds until a value expires that is stored without a `ttl`.
        serializer: None: values are bytes. "json", "msgpack": what these can express.
            Otherwise an object with `dumps` and `loads`.

    Raises:
        InvalidArgumentError: An option is not allowed.
        StorageLockedError: Another process has it open, and does not share it.
        StorageError: It contains something else, its files do not belong together, it was
            written by another version of volcache, or the disk cannot be used.
    """
    path = _path_of(directory)
    found = _Present.of(path)
    total = max(_CAPACITY_DEFAULT, found.length)
    if capacity is not None:
        total = _checked("capacity", capacity, _CAPACITY)
    _checked("sync_mode", sync_mode, _SYNC_MODE)
    _checked("eviction", eviction, _EVICTION)
    interval = _checked("sync_interval", sync_interval, _SYNC_INTERVAL)
    size, number = _volumes(path, found, total, volume_size)
    open_store = partial(
        Store.open,
        volume_size=size,
        volume_num=number,
        sync_mode=sync_mode,
        eviction=eviction,
        is_sparse=True,
    )
    ttl, codec = checked_ttl(default_ttl, "default_ttl"), make_codec(serializer)
    is_periodic = sync_mode == "periodic"
    return EmbeddedCache(
        Session(path, open_store, interval if is_periodic else None),
        codec,
        is_plain=serializer is None,
        capacity=total,
        volume_size=size,
        default_ttl=ttl,
    )


def _path_of(directory: object) -> str:
    if isinstance(directory, str | os.PathLike):
        path = os.fspath(directory)
        if isinstance(path, str) and path and "\0" not in path:
            return path
    raise InvalidArgumentError(
        f"directory = {directory!r} is not allowed; allowed is a path: str or"
        " os.PathLike[str], not empty"
    )


def _checked(name: str, value: object, kind: Kind[T]) -> T:
    try:
        return kind.from_toml(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"{name} = {value!r} is not allowed; allowed is {kind.allowed}"
        ) from None


class _Present(NamedTuple):
    """What is in a directory before it is opened; bytes."""

    length: int  # of all volumes
    volume_size: int  # of most of them; 0: there are none
    room: int  # what the directory holds, and what is free for it

    @classmethod
    def of(cls, path: str) -> _Present:
        """Look at a path; what cannot be read is reported when it is opened."""
        sizes, held, free = Counter[int](), 0, _CAPACITY_MAX
        with suppress(OSError):
            place = Path(path).absolute()
            parents = (one for one in (place, *place.parents) if one.exists())
            space = os.statvfs(next(parents))
            free = space.f_bavail * space.f_frsize
        with suppress(OSError), os.scandir(Path(path, DATA)) as files:
            for file in files:
                found = file.stat()
                held += found.st_blocks * STAT_BLOCK_BYTES
                # The file of an id that was never used is empty.
                if file.name.isdecimal() and found.st_size >= VOLUME_SIZE_MIN:
                    sizes[found.st_size] += 1
        size = max(sizes, key=lambda size: (sizes[size], size), default=0)
        return cls(sum(sizes.elements()), size, held + free)


def _volumes(
    path: str, found: _Present, capacity: int, wanted: int | str | None
) -> tuple[int, int]:
    """
    Return the size of the volumes, and how many there may be.

    Raises:
        InvalidArgumentError: It does not fit the capacity.
    """
    if wanted is not None:
        size = _checked("volume_size", wanted, _VOLUME_SIZE)
        number = capacity // size
        if not _VOLUMES_MIN <= number <= _VOLUMES_MAX:
            raise InvalidArgumentError(
                f"volume_size = {wanted!r} is not allowed; with capacity ="
                f" {format_size(capacity)} there are {number} volumes; allowed are"
                f" {_VOLUMES_MIN} to {_VOLUMES_MAX}"
            )
        return size, number
    size, most = found.volume_size, min(capacity, found.room)
    if not size or most // size > _VOLUMES_KEPT_MAX:
        size = volume_size_for(most)
    elif capacity // size < _VOLUMES_MIN:
        raise InvalidArgumentError(
            f"capacity = {format_size(capacity)} is not allowed; {path!r} has volumes"
            f" of {format_size(size)}, so allowed is at least"
            f" {format_size(_VOLUMES_MIN * size)}; or give a lower volume_size"
        )
    return size, min(capacity // size, _VOLUMES_KEPT_MAX)


def volume_size_for(capacity: int) -> int:
    """Return the size of the volumes of a new cache; a multiple of 1 MiB."""
    size = max(capacity // _VOLUMES, min(_SIZE_ADVISED, capacity // _VOLUMES_ADVISED))
    return max(VOLUME_SIZE_MIN, size // MIB * MIB)
