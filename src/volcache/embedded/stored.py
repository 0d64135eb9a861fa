"""What the methods of an embedded cache are made of: its values, and its state."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Final,
    Generic,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    cast,
)

from volcache.embedded.errors import translated
from volcache.errors import VolcacheError
from volcache_client.headers import checked_type
from volcache_client.keys import KEY_BYTES_MAX, checked_ttl, encode_key
from volcache_client.messages import Stat
from volcache_client.serializers import OCTETS
from volcache_client.threads import Flights, Renewals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.embedded.session import StoreSession
    from volcache.store import Record, Store
    from volcache_client.keys import Key, Ttl
    from volcache_client.serializers import Codec

V = TypeVar("V")

Text: TypeAlias = str | None

_SECOND_MS: Final = 1000
# After a renewal that has failed, the value is not renewed for these seconds.
_RENEWAL_PAUSE: Final = 10.0


class EmbeddedStats(NamedTuple):
    """Numbers of one cache; those that count begin with 0 when it is opened."""

    keys: int  # expired and purged ones included
    live_bytes: int  # of their records
    disk_bytes: int  # that the files take
    capacity: int  # that the volumes may take, without index files
    volumes: int  # that there are
    volume_size: int
    hits: int  # of `get` and everything that is made of it
    misses: int
    expired_misses: int  # of all reads
    evicted_misses: int  # of all reads, as far as known
    evicted: int  # values that were evicted
    damaged: int  # values that were read and failed a check
    read_errors: int
    write_errors: int
    sync_errors: int


class StoredValues(Generic[V]):
    """
    The values of one cache.

    Attributes:
        directory: As it was given to `open`.
        capacity: Bytes that the volumes may take.
        volume_size: Bytes of one volume; no value can be larger.
    """

    def __init__(
        self,
        session: StoreSession,
        codec: Codec[V],
        *,
        is_plain: bool,
        capacity: int,
        volume_size: int,
        default_ttl: float,
    ) -> None:
        """Use `volcache.open`."""
        self.directory = session.path
        self.capacity = capacity
        self.volume_size = volume_size
        self._default_ttl = default_ttl
        self._session = session
        self._codec = codec
        self._is_plain = is_plain  # values are bytes
        # Without a type, the service finds it by the suffix of the key.
        self._type = "" if is_plain else codec.content_type
        self._flights = Flights[bytes]()
        self._renewals = Renewals(time.monotonic, _RENEWAL_PAUSE)
        self._hits = self._misses = 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("EmbeddedCache has an open directory; do not pickle it")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__name__} {self.directory!r} {state}>"

    # --- Values ---------------------------------------------------------------------

    def _find(self, name: bytes) -> Record | None:
        """Return the record of a key, and count a hit or miss."""
        session = self._session
        calls = session.calls
        record: Record | None = None
        while True:
            # As `StoreSession.read`, without its cost.
            try:
                calls.append(None)
                if not session.end:
                    record = session.store.get(name)
                    break
            except VolcacheError as error:
                raise translated(error) from error
            finally:
                calls.pop()
            session.wait()
        if record is None:
            self._misses += 1
        else:
            self._hits += 1
        return record

    def _head(self, key: Key) -> Record | None:
        """Return the record of a key without its value."""
        name = encoded(key)
        return self._session.read(lambda store: store.stat(name))

    def _peek(self, name: bytes) -> Record | None:
        """Return the record of a key; it is not counted."""
        return self._session.read(lambda store: store.peek(name))

    def _loads(self, data: bytes) -> V:
        return cast("V", data) if self._is_plain else self._codec.loads(data)

    def _stat_of(self, record: Record) -> Stat:
        now_ms = self._session.read(lambda store: store.clock.now_ms())
        expires_ms = record.expires_ms
        return Stat(
            size=record.length,
            etag=record.etag,
            content_type=record.content_type.decode("latin-1") or OCTETS,
            ttl=max(0, expires_ms - now_ms) / _SECOND_MS if expires_ms else None,
            tier=record.source,
            position=f"{record.volume},{record.offset},{record.size}",
        )

    def _put_if(
        self,
        condition: Callable[[Record | None], bool],
        key: Key,
        value: V,
        ttl: Ttl,
        content_type: Text,
    ) -> Text:
        """Store a value if the record there is fulfils a condition; return its ETag."""
        name, data, ttl = encoded(key), self._dumps(value), self._ttl(ttl)
        with self.exclusive():
            if not condition(self._session.read(lambda store: store.stat(name))):
                return None
            return self._put(name, data, ttl, content_type).etag

    def _put(self, name: bytes, data: bytes, ttl: float, kind: Text = None) -> Record:
        content_type = (checked_type(kind) if kind else self._type).encode("latin-1")

        def put(store: Store) -> Record:
            # Without a call for what does not expire.
            expires_ms = 0 if ttl == math.inf else expiry_of(store, ttl)
            return store.put(
                name, data, content_type=content_type, expires_ms=expires_ms
            )

        return self._session.change(put)

    def _dumps(self, value: V) -> bytes:
        if self._is_plain and type(value) is bytes:
            return cast("bytes", value)
        return self._codec.dumps(value)

    def _ttl(self, ttl: Ttl) -> float:
        return self._default_ttl if ttl is None else checked_ttl(ttl)

    # --- State ---------------------------------------------------------------------

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """
        Return a context in which no other thread changes the cache; may be nested.

        Other threads can read. What is done within is not undone by an exception.
        """
        session = self._session
        if session.end:
            session.wait()
        with session.lock:
            session.wait()
            yield

    @property
    def closed(self) -> bool:
        """Whether the methods refuse every call."""
        return bool(self._session.end)

    def stats(self) -> EmbeddedStats:
        """Return numbers for monitoring."""

        def read(store: Store) -> EmbeddedStats:
            usage, counts = store.usage(volumes=False), store.stats
            return EmbeddedStats(
                keys=usage.keys,
                live_bytes=usage.live,
                disk_bytes=store.held_bytes(),
                capacity=self.capacity,
                volumes=sum(ring.volumes for ring in usage.rings),
                volume_size=self.volume_size,
                hits=self._hits,
                misses=self._misses,
                expired_misses=counts.expired_reads,
                evicted_misses=counts.evicted_reads,
                evicted=counts.evicted_records,
                damaged=counts.damaged_records,
                read_errors=counts.read_errors,
                write_errors=counts.write_errors,
                sync_errors=counts.sync_errors,
            )

        return self._session.read(read)

    def sync(self) -> None:
        """Return when everything stored up to now survives a power loss."""
        self._session.sync()

    def close(self) -> None:
        """
        Wait for the calls of other threads, sync, and release the directory.

        Later calls raise `ClientUsageError`; closing again does nothing, and neither does
        closing in a forked child.

        Raises:
            ClientUsageError: Within `exclusive` of this thread.
        """
        self._session.close()

    def __enter__(self) -> Self:
        if self._session.end:
            self._session.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encoded(key: Key) -> bytes:
    """Return a key as the store has it."""
    return encode_key(key, b"", KEY_BYTES_MAX)


def expiry_of(store: Store, ttl: float) -> int:
    """Return when a value expires that is stored now."""
    if ttl == math.inf:
        return 0
    return store.clock.now_ms() + max(1, round(ttl * _SECOND_MS))
