"""
`EmbeddedCache`: a store as a mapping, for all threads of one process.

Atomic are the methods that read before they write: they hold the lock of the store, which
every write takes. Reads take no lock; see `session.py` for how they and `close` keep out of
each other's way.
"""

from __future__ import annotations

import math
from collections.abc import ItemsView, KeysView, MutableMapping, ValuesView
from contextlib import contextmanager, suppress
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)

from volcache.embedded.keys import checked_ttl, encode_key, encode_prefix
from volcache.embedded.memoize import Memoized, key_of_call, name_of
from volcache.embedded.single_flight import SingleFlight
from volcache.errors import DiskFullError, StoreIOError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from volcache.embedded.serializers import ValueCodec
    from volcache.embedded.session import StoreSession
    from volcache.store import Record, Store

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

_SECOND_MS: Final = 1000
_SECOND_US: Final = 1_000_000


class Entry(NamedTuple):
    """What is known of a value without reading it; times in seconds since the epoch."""

    size: int  # of the value, in bytes
    stored: float
    expires: float | None  # None: never
    version: int  # another one after each `set`; `touch` keeps it


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


class EmbeddedCache(MutableMapping[str | bytes, V]):
    """
    A directory as a cache; `volcache.open` returns it.

    Any thread may call any method. Keys are str, which stands for its UTF-8, or bytes, and
    are returned as bytes. See docs/EMBEDDED.md.

    All methods raise, in addition to what they name:
        BadKeyError, KeyTooLongError, TypeError: The key cannot be one.
        StoreClosedError: The cache is closed.
        ForkedProcessError: The cache was opened before this process was forked.
        UnreadableRecordError: The disk cannot be read; the key may have a value.
        StoreIOError: The disk cannot be written; the old value stays.
        DiskFullError: There is no space for the next volume; likewise.

    Attributes:
        directory: As it was given to `open`.
        capacity: Bytes that the volumes may take.
        volume_size: Bytes of one volume; no value can be larger.
    """

    def __init__(
        self,
        session: StoreSession,
        codec: ValueCodec[V],
        *,
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
        self._calls = session.calls
        self._codec = codec
        self._decode = codec.decode
        self._flights = SingleFlight[bytes]()
        self._hits = self._misses = 0

    def __repr__(self) -> str:
        state = f" {self._session.end}" if self._session.end else ""
        return f"<{type(self).__name__} {self.directory!r}{state[:10]}>"

    # Two caches are equal if they are the same one: to compare values, all were read.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    # --- Reading -------------------------------------------------------------------

    @overload
    def get(self, key: str | bytes, default: None = None) -> V | None: ...
    @overload
    def get(self, key: str | bytes, default: V | T) -> V | T: ...
    def get(self, key: str | bytes, default: V | T | None = None) -> V | T | None:
        """Return the value of a key; the default if there is none, or it has expired."""
        record = self._find(encode_key(key))
        return default if record is None else self._value_of(record)

    def __getitem__(self, key: str | bytes) -> V:
        """
        Return the value of a key.

        Raises:
            KeyError: There is none, or it has expired.
        """
        record = self._find(encode_key(key))
        if record is None:
            raise KeyError(key)
        return self._value_of(record)

    def get_many(self, keys: Iterable[str | bytes]) -> dict[str | bytes, V]:
        """Return the values of those keys that have one, under the keys as given."""
        found: dict[str | bytes, V] = {}
        for key in keys:
            record = self._find(encode_key(key))
            if record is not None:
                found[key] = self._value_of(record)
        return found

    def read(self, key: str | bytes) -> tuple[V, Entry] | None:
        """Return value and entry of a key, which belong together; None: a miss."""
        record = self._find(encode_key(key))
        return None if record is None else (self._value_of(record), _entry_of(record))

    def stat(self, key: str | bytes) -> Entry | None:
        """Return what is known of a value, which is not read; None: a miss."""
        name = encode_key(key)
        record = self._read(lambda store: store.stat(name))
        return None if record is None else _entry_of(record)

    def __contains__(self, key: object) -> bool:
        """Return whether a key has a value; a damaged value is not noticed."""
        return self.stat(cast("str | bytes", key)) is not None

    def _find(self, name: bytes) -> Record | None:
        """Return the record of a key, and count a hit or miss."""
        session, calls = self._session, self._calls
        record: Record | None = None
        while True:
            # The loop of `_read`, without its cost.
            try:
                calls.append(None)
                if not session.end:
                    record = session.store.get(name)
                    break
            finally:
                calls.pop()
            session.wait()
        if record is None:
            self._misses += 1
        else:
            self._hits += 1
        return record

    def _read(self, call: Callable[[Store], T]) -> T:
        """Return what a call returns that does not change the store."""
        while True:
            try:
                # Within, as Ctrl-C may end a method after any call.
                self._calls.append(None)
                if not self._session.end:
                    return call(self._session.store)
            finally:
                self._calls.pop()
            self._session.wait()

    def _value_of(self, record: Record) -> V:
        return self._decoded(record.value)

    def _decoded(self, data: bytes) -> V:
        decode = self._decode
        return cast("V", data) if decode is None else decode(data)

    # --- Iteration -----------------------------------------------------------------

    def __iter__(self) -> Iterator[bytes]:
        """
        Yield all keys, by reading the volumes from the oldest to the newest.

        Nothing is locked, and memory does not depend on the number of keys. A key that is
        there from the beginning to the end is returned: once if nothing changes, perhaps
        twice if it is stored again or copied meanwhile. A key that is stored or deleted
        meanwhile may be returned or not. Changing the cache within the loop is allowed.
        """
        scanned: Store | None = None
        batches: Iterator[list[bytes]] = iter(())
        while True:

            def next_batch(store: Store) -> list[bytes] | None:
                nonlocal scanned, batches
                if scanned is not store:  # The store was opened again.
                    scanned, batches = store, store.scan_keys()
                return next(batches, None)

            batch = self._read(next_batch)
            if batch is None:
                return
            yield from batch

    def keys(self) -> KeysView[bytes]:
        """Return a view of the keys; see `__iter__`."""
        return _Keys(self)

    def values(self) -> ValuesView[V]:
        """Return a view of the values; see `items`."""
        return _Values(self)

    def items(self) -> ItemsView[bytes, V]:
        """
        Return a view of keys and values, each read when it is its turn; see `__iter__`.

        Reading a value this way does not keep it from being evicted. A key whose value is
        gone meanwhile is left out.
        """
        return _Items(self)

    def read_items(self) -> Iterator[tuple[bytes, V]]:
        """Yield what `items` returns a view of."""
        for key in self:
            record = self._peek(key)
            if record is not None:
                yield key, self._value_of(record)

    def __len__(self) -> int:
        """Return the number of keys, expired and purged ones included; no disk is read."""
        return self._read(lambda store: store.count)

    # --- Writing -------------------------------------------------------------------

    def set(self, key: str | bytes, value: V, ttl: float | None = None) -> int:
        """
        Store a value.

        When this returns, the value survives the death of the process, and a power loss
        as `sync_mode` says.

        Args:
            key: The key.
            value: Bytes-like, or what the serializer takes.
            ttl: Seconds until it expires, above 0; `math.inf`: never; None: `default_ttl`.

        Returns:
            The version of the key, as in `Entry`.

        Raises:
            ValueTooLargeError: It does not fit a volume. The old value stays.
            ValueError: The time to live is out of range.
        """
        return self._put(encode_key(key), self._codec.encode(value), self._ttl(ttl))

    def __setitem__(self, key: str | bytes, value: V) -> None:
        """Store a value with `default_ttl`; see `set`."""
        self._put(encode_key(key), self._codec.encode(value), self._default_ttl)

    def set_many(
        self,
        values: Mapping[str, V] | Mapping[bytes, V] | Mapping[str | bytes, V],
        ttl: float | None = None,
    ) -> None:
        """Store several values, one after the other; see `set`."""
        for key, value in values.items():
            self.set(key, value, ttl)

    def add(self, key: str | bytes, value: V, ttl: float | None = None) -> bool:
        """Store a value if the key has none; return whether it was stored. Atomic."""
        return self._put_if(key, value, ttl, lambda found: found is None) is not None

    def replace(self, key: str | bytes, value: V, ttl: float | None = None) -> bool:
        """Store a value if the key has one; return whether it was stored. Atomic."""
        stored = self._put_if(key, value, ttl, lambda found: found is not None)
        return stored is not None

    def cas(
        self, key: str | bytes, value: V, version: int, ttl: float | None = None
    ) -> int | None:
        """
        Store a value if the key has a certain version (compare and swap). Atomic.

        Returns:
            The new version; None if nothing was stored.
        """
        return self._put_if(
            key,
            value,
            ttl,
            lambda found: found is not None and found.stored_us == version,
        )

    def setdefault(self, key: str | bytes, default: V, ttl: float | None = None) -> V:
        """Return the value of a key; if it has none, store and return this. Atomic."""
        name, data = encode_key(key), self._codec.encode(default)
        seconds = self._ttl(ttl)
        with self.exclusive():
            record = self._find(name)
            if record is not None:
                return self._value_of(record)
            self._put(name, data, seconds)
        return self._decoded(data)

    def touch(self, key: str | bytes, ttl: float | None = None) -> bool:
        """
        Let a value expire at another time; it is written again, as the same version.

        Returns:
            Whether the key has a value.
        """
        name, seconds = encode_key(key), self._ttl(ttl)

        def touch(store: Store) -> bool:
            record = store.get(name)
            if record is None:
                return False
            store.touch(name, record, _expires_ms(store, seconds))
            return True

        return self._session.change(touch)

    def _put_if(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None,
        condition: Callable[[Record | None], bool],
    ) -> int | None:
        """Store a value if the record there is fulfils a condition; return its version."""
        name, data, seconds = encode_key(key), self._codec.encode(value), self._ttl(ttl)
        with self.exclusive():
            if not condition(self._read(lambda store: store.stat(name))):
                return None
            return self._put(name, data, seconds)

    def _put(self, name: bytes, data: bytes, ttl: float) -> int:
        def put(store: Store) -> int:
            record = store.put(
                name,
                data,
                content_type=self._codec.content_type,
                expires_ms=_expires_ms(store, ttl),
            )
            return record.stored_us

        return self._session.change(put)

    def _ttl(self, ttl: float | None) -> float:
        return self._default_ttl if ttl is None else checked_ttl(ttl)

    # --- Deleting ------------------------------------------------------------------

    def delete(self, key: str | bytes) -> bool:
        """Delete a key; return whether it had a value."""
        name = encode_key(key)
        return self._session.change(lambda store: store.delete(name))

    def __delitem__(self, key: str | bytes) -> None:
        """
        Delete a key.

        Raises:
            KeyError: It has no value.
        """
        if not self.delete(key):
            raise KeyError(key)

    def delete_many(self, keys: Iterable[str | bytes]) -> int:
        """Delete several keys, one after the other; return how many had a value."""
        return sum(map(self.delete, keys))

    @overload
    def pop(self, key: str | bytes) -> V: ...
    @overload
    def pop(self, key: str | bytes, default: V) -> V: ...
    @overload
    def pop(self, key: str | bytes, default: T) -> V | T: ...
    def pop(self, key: str | bytes, *default: Any, **named: Any) -> Any:
        """
        Delete a key and return the value that it had. Atomic.

        Raises:
            KeyError: It had none, and no default is given.
        """
        name = encode_key(key)
        others = (*default, *(named.pop("default"),)) if "default" in named else default
        if named or len(others) > 1:
            raise TypeError("pop() takes a key and at most one default")
        with self.exclusive():
            record = self._find(name)
            if record is not None:
                self._session.change(lambda store: store.delete(name))
                return self._value_of(record)
        if others:
            return others[0]
        raise KeyError(key)

    def popitem(self) -> tuple[bytes, V]:
        """
        Delete one of the oldest keys; return it with its value. Atomic.

        Raises:
            KeyError: There is none.
        """
        missing = object()
        for key in self:
            value = self.pop(key, missing)
            if value is not missing:
                return key, cast("V", value)
        raise KeyError("the cache is empty")

    def purge(self, prefix: str | bytes) -> None:
        """
        Delete all keys that begin with a prefix, in constant time.

        Their space is freed when their volumes are overwritten; until then `len` includes
        them. Survives a power loss when this returns.

        Raises:
            BadPrefixError: No key can have the prefix, or it is empty.
            TooManyPurgesError: The list of purges is full.
        """
        name = encode_prefix(prefix)
        self._session.change(lambda store: store.purge(name))

    def clear(self) -> None:
        """Delete all keys, in constant time."""
        self._session.change(lambda store: store.flush())

    # --- Making values -------------------------------------------------------------

    def get_or_set(
        self, key: str | bytes, make: Callable[[], V], ttl: float | None = None
    ) -> V:
        """
        Return the value of a key; if it has none, store and return what `make` returns.

        Of all threads that ask for one key at a time, one runs `make`, and the others wait
        for it. All get what a `get` would return. If `make` raises, or the value is larger
        than a value can be, all of them get that exception, nothing is stored, and the next
        call begins again. If the disk refuses the value, it is returned all the same.
        `make` is run without a lock; it may use the cache, but not ask for its own key by
        this method.

        Raises:
            RuntimeError: `make` asks for its own key.
        """
        name, seconds = encode_key(key), self._ttl(ttl)
        record = self._find(name)
        if record is not None:
            return self._value_of(record)

        def make_and_put() -> bytes:
            # Another thread may have stored it since.
            found = self._peek(name)
            if found is not None:
                return found.value
            data = self._codec.encode(make())
            # What was made is not lost with a disk that is full or fails.
            with suppress(DiskFullError, StoreIOError):
                self._put(name, data, seconds)
            return data

        return self._decoded(self._flights.run(name, make_and_put))

    def _peek(self, name: bytes) -> Record | None:
        """Return the record of a key; it is not counted."""
        return self._read(lambda store: store.peek(name))

    def memoize(
        self,
        *,
        ttl: float | None = None,
        prefix: str | None = None,
        key: Callable[..., str | bytes] | None = None,
    ) -> Callable[[Callable[P, V]], Memoized[P, V]]:
        """
        Return a decorator that keeps the results of a function; see `get_or_set`.

        Args:
            ttl: Of each result, as for `set`.
            prefix: Of the keys, which continue with a slash and a digest of the arguments;
                None: module and name of the function. `purge` of the prefix and the slash
                drops all results.
            key: Is called with the arguments and returns the key instead; for arguments
                that are neither plain values nor collections of these.

        Raises:
            ValueError: The time to live is out of range.
        """
        seconds = self._ttl(ttl)

        def decorate(function: Callable[P, V]) -> Memoized[P, V]:
            name = name_of(function) if prefix is None else prefix
            encode_key(f"{name}/")

            def key_of(*args: P.args, **kwargs: P.kwargs) -> str | bytes:
                if key is not None:
                    return key(*args, **kwargs)
                return key_of_call(name, args, kwargs)

            get_or_set = partial(self.get_or_set, ttl=seconds)
            return Memoized(function, key_of, get_or_set, self.delete)

        return decorate

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

        return self._read(read)

    def volume(self) -> int:
        """Return how many bytes of the disk the cache takes, index files included."""
        return self._read(lambda store: store.held_bytes())

    def sync(self) -> None:
        """
        Return when everything stored up to now survives a power loss.

        Raises:
            StoreIOError: The disk refused.
        """
        self._read(lambda _: self._session.sync())

    def close(self) -> None:
        """
        Wait for the calls of other threads, sync, and release the directory.

        Later calls raise `StoreClosedError`; closing again does nothing, and neither does
        closing in a forked child.

        Raises:
            RuntimeError: Within `exclusive` of this thread.
        """
        self._session.close()

    def __enter__(self) -> Self:
        if self._session.end:
            self._session.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _expires_ms(store: Store, ttl: float) -> int:
    """Return when a value expires that is stored now."""
    if ttl == math.inf:
        return 0
    return store.clock.now_ms() + max(1, round(ttl * _SECOND_MS))


def _entry_of(record: Record) -> Entry:
    expires = record.expires_ms / _SECOND_MS if record.expires_ms else None
    return Entry(
        record.length, record.stored_us / _SECOND_US, expires, record.stored_us
    )


class _Keys(KeysView[bytes]):
    """The keys of a cache."""

    def __init__(self, cache: EmbeddedCache[Any]) -> None:
        super().__init__(cast("Mapping[bytes, Any]", cache))


class _Values(ValuesView[V]):
    """The values of a cache."""

    def __init__(self, cache: EmbeddedCache[V]) -> None:
        super().__init__(cast("Mapping[bytes, V]", cache))
        self._cache = cache

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._cache.read_items())

    def __contains__(self, value: object) -> bool:
        # The one of the base class reads the keys one by one, which may be gone by then.
        return any(found is value or found == value for found in self)


class _Items(ItemsView[bytes, V]):
    """The keys and values of a cache."""

    def __init__(self, cache: EmbeddedCache[V]) -> None:
        super().__init__(cast("Mapping[bytes, V]", cache))
        self._cache = cache

    def __iter__(self) -> Iterator[tuple[bytes, V]]:
        return self._cache.read_items()
