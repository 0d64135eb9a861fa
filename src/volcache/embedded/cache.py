"""
`EmbeddedCache`: a store as a mapping, for all threads of one process.

Atomic are the methods that read before they write: they hold the lock of the session, as
every write does. Reads take no lock; see `session.py` for how they and `close` keep out of
each other's way.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import ItemsView, KeysView, MutableMapping, ValuesView
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Final,
    NamedTuple,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from volcache.embedded.errors import translated
from volcache.errors import VolcacheError
from volcache_client.errors import (
    InvalidArgumentError,
    StorageError,
)
from volcache_client.headers import checked_etag, checked_type
from volcache_client.keys import (
    KEY_BYTES_MAX,
    Key,
    checked_ttl,
    encode_key,
    encode_prefix,
)
from volcache_client.making import Renewals
from volcache_client.memo import CachedFunction, CallKeys, SyncCachedFunction
from volcache_client.messages import Item, Stat
from volcache_client.serializers import OCTETS
from volcache_client.threads import Flights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from volcache.embedded.session import StoreSession
    from volcache.store import Record, Store
    from volcache_client.keys import Ttl
    from volcache_client.serializers import Codec

K = TypeVar("K", bound="str | bytes")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

Text: TypeAlias = str | None
Number: TypeAlias = int | None

_SECOND_MS: Final = 1000
_PART_BYTES: Final = 1 << 16
_MISSING: Final = object()
# After a renewal that has failed, the value is not renewed for these seconds.
_RENEWAL_PAUSE: Final = 10.0
_COUNTER: Final = re.compile(rb"[0-9]{1,20}")
_COUNTER_MAX: Final = 2**64 - 1


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


class StoredReader(BytesIO):
    """
    A value that is read in parts.

    Attributes:
        stat: What is known of the value.
    """

    def __init__(self, value: bytes, stat: Stat) -> None:
        """Begin at the beginning."""
        super().__init__(value)
        self.stat: Final = stat

    def __next__(self) -> bytes:
        """Return the next part; a file would return a line."""
        if part := self.read(_PART_BYTES):
            return part
        raise StopIteration


class EmbeddedCache(MutableMapping[Key, V]):
    """
    A directory as a cache; `volcache.open` returns it.

    Any thread may call any method. Keys are str, which stands for its UTF-8, or bytes, and
    are returned as bytes. `ttl` is in seconds, above 0; None: `default_ttl`; `math.inf`: no
    expiry.

    All methods raise, in addition to what they name:
        InvalidKeyError, InvalidArgumentError: A key or time cannot be one.
        SerializationError: The serializer does not accept a value.
        ValueTooLargeError: A value does not fit a volume. The old one stays.
        ClientUsageError: The cache is closed, or was opened before this process was forked.
        StorageError: The disk refuses. After a write, the old value stays; after a read,
            the key may have a value.

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
        self._type = b"" if is_plain else codec.content_type.encode()
        self._flights = Flights[bytes]()
        self._renewals = Renewals(time.monotonic, _RENEWAL_PAUSE)
        self._hits = self._misses = 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<{type(self).__name__} {self.directory!r} {state}>"

    # Two caches are equal if they are the same one: to compare values, all were read.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    # --- Reading -------------------------------------------------------------------

    @overload
    def get(self, key: Key, default: None = None) -> V | None: ...
    @overload
    def get(self, key: Key, default: V | T) -> V | T: ...
    def get(self, key: Key, default: V | T | None = None) -> V | T | None:
        """Return the value of a key; the default if there is none, or it has expired."""
        record = self._find(_encoded(key))
        return default if record is None else self._loads(record.value)

    def __getitem__(self, key: Key) -> V:
        """
        Return the value of a key.

        Raises:
            KeyError: There is none, or it has expired.
        """
        record = self._find(_encoded(key))
        if record is None:
            raise KeyError(key)
        return self._loads(record.value)

    def get_item(self, key: Key) -> Item[V] | None:
        """Return the value of a key and what is known of it; None for a miss."""
        record = self._find(_encoded(key))
        if record is None:
            return None
        return Item(self._loads(record.value), self._stat_of(record))

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of those keys that have one, by the keys as given."""
        found = ((key, self._find(_encoded(key))) for key in _listed(keys))
        return {key: self._loads(record.value) for key, record in found if record}

    def stat(self, key: Key) -> Stat | None:
        """Return what is known of a value, which is not read; None for a miss."""
        record = self._head(key)
        return None if record is None else self._stat_of(record)

    def __contains__(self, key: object) -> bool:
        """Return whether a key has a value; a damaged value is not noticed."""
        return self._head(cast("str", key)) is not None

    @contextmanager
    def stream(self, key: Key) -> Iterator[StoredReader | None]:
        """Open a value to read it in parts, without the serializer; None for a miss."""
        record = self._find(_encoded(key))
        yield record and StoredReader(record.value, self._stat_of(record))

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
        name = _encoded(key)
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

        def next_batch(store: Store) -> list[bytes] | None:
            nonlocal scanned, batches
            if scanned is not store:  # The store was opened again.
                scanned, batches = store, store.scan_keys()
            return next(batches, None)

        while (batch := self._session.read(next_batch)) is not None:
            yield from batch

    def __len__(self) -> int:
        """Return the number of keys, expired and purged ones included; no disk is read."""
        return self._session.read(lambda store: store.count)

    def keys(self) -> KeysView[bytes]:
        """Return a view of the keys; see `__iter__`."""
        return KeysView(cast("Mapping[bytes, V]", self))

    def values(self) -> ValuesView[V]:
        """Return a view of the values; reading them does not keep them."""
        return _Values(self)

    def items(self) -> ItemsView[bytes, V]:
        """Return a view of the keys and values; reading them does not keep them."""
        return _Items(self)

    def read_items(self) -> Iterator[tuple[bytes, V]]:
        """Yield what `items` returns a view of."""
        for key in self:
            record = self._peek(key)
            if record is not None:
                yield key, self._loads(record.value)

    # --- Writing -------------------------------------------------------------------

    def set(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: Text = None
    ) -> str:
        """
        Store a value; return its ETag.

        When this returns, the value survives the death of the process, and a power loss
        as `sync_mode` says.
        """
        ttl = self._ttl(ttl)
        return self._put(_encoded(key), self._dumps(value), ttl, content_type).etag

    def __setitem__(self, key: Key, value: V) -> None:
        """Store a value with `default_ttl`; see `set`."""
        self._put(_encoded(key), self._dumps(value), self._default_ttl)

    def set_many(self, values: Mapping[K, V], ttl: Ttl = None) -> dict[K, str]:
        """Store values, one after the other; return their ETags."""
        return {key: self.set(key, value, ttl) for key, value in values.items()}

    def set_file(
        self,
        key: Key,
        source: str | os.PathLike[str] | BinaryIO,
        ttl: Ttl = None,
        *,
        content_type: Text = None,
    ) -> str:
        """
        Store a file, without the serializer; return its ETag.

        Args:
            key: Of the value.
            source: A path; or a file opened as binary, which is read from its position.
            ttl: Ttl.
            content_type: Default: that of the suffix of the key.

        Raises:
            OSError: It cannot be read.
        """
        name = _encoded(key)
        if isinstance(source, str | os.PathLike):
            data: object = Path(source).read_bytes()
        else:
            data = source.read() if hasattr(source, "read") else None
        if not isinstance(data, bytes):
            raise InvalidArgumentError(
                f"{source!r} is neither a path nor a file opened as binary"
            )
        return self._put(name, data, self._ttl(ttl), content_type or "").etag

    def add(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: Text = None
    ) -> Text:
        """Store a value if there is none; return its ETag, None if there is one."""
        return self._put_if(lambda found: not found, key, value, ttl, content_type)

    def replace(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: Text = None
    ) -> Text:
        """Store a value if there is one; return its ETag, None if there is none."""
        return self._put_if(bool, key, value, ttl, content_type)

    def cas(
        self,
        key: Key,
        value: V,
        etag: str,
        ttl: Ttl = None,
        *,
        content_type: Text = None,
    ) -> Text:
        """Store a value if that with the ETag is stored; return its ETag, else None."""
        tag = checked_etag(etag)
        return self._put_if(
            lambda found: found is not None and found.etag == tag,
            key,
            value,
            ttl,
            content_type,
        )

    def touch(self, key: Key, ttl: Ttl = None) -> bool:
        """
        Let a value expire at another time; return whether there is one.

        It is written again, and keeps its ETag.
        """
        name, seconds = _encoded(key), self._ttl(ttl)

        def touch(store: Store) -> bool:
            record = store.get(name)
            if record is None:
                return False
            store.touch(name, record, _expires_ms(store, seconds))
            return True

        return self._session.change(touch)

    def incr(
        self, key: Key, delta: int = 1, *, initial: Number = None, ttl: Ttl = None
    ) -> Number:
        """
        Add to a number of 64 bits, stored as ASCII digits; it starts again at 2**64.

        Args:
            key: Of the number.
            delta: What is added.
            initial: Stored and returned if there is no number; None: nothing is stored.
            ttl: Of `initial`; the time to live of a number that is there stays.

        Returns:
            The number; None if there is none.

        Raises:
            InvalidArgumentError: An argument is wrong, or the value is not a number.
        """
        return self._count(key, delta, initial, ttl, 1)

    def decr(
        self, key: Key, delta: int = 1, *, initial: Number = None, ttl: Ttl = None
    ) -> Number:
        """Subtract from a number, which stops at 0; otherwise as `incr`."""
        return self._count(key, delta, initial, ttl, -1)

    def _count(
        self, key: Key, delta: int, initial: Number, ttl: Ttl, sign: int
    ) -> Number:
        name, seconds = _encoded(key), self._ttl(ttl)
        for what, given in (("delta", delta), ("initial", initial or 0)):
            if type(given) is not int or not 0 <= given <= _COUNTER_MAX:
                raise InvalidArgumentError(
                    f"{what}={given!r}; allowed are integers from 0 to 2**64 - 1"
                )

        def count(store: Store) -> Number:
            record = store.get(name)
            if record is None:
                if initial is not None:
                    _put_number(store, name, initial, _expires_ms(store, seconds))
                return initial
            number = int(record.value) if _COUNTER.fullmatch(record.value) else -1
            if not 0 <= number <= _COUNTER_MAX:
                raise InvalidArgumentError(
                    "the value is not a number; allowed are ASCII digits, up to 2**64 - 1"
                )
            number = max(0, number + sign * delta) & _COUNTER_MAX
            _put_number(store, name, number, record.expires_ms, record)
            return number

        return self._session.change(count)

    def _put_if(
        self,
        condition: Callable[[Record | None], bool],
        key: Key,
        value: V,
        ttl: Ttl,
        content_type: Text,
    ) -> Text:
        """Store a value if the record there is fulfils a condition; return its ETag."""
        name, data, ttl = _encoded(key), self._dumps(value), self._ttl(ttl)
        with self.exclusive():
            if not condition(self._session.read(lambda store: store.stat(name))):
                return None
            return self._put(name, data, ttl, content_type).etag

    def _put(
        self, name: bytes, data: bytes, ttl: float, content_type: Text = None
    ) -> Record:
        kind = checked_type(content_type).encode() if content_type else self._type

        def put(store: Store) -> Record:
            # Without a call for what does not expire.
            expires_ms = 0 if ttl == math.inf else _expires_ms(store, ttl)
            return store.put(name, data, content_type=kind, expires_ms=expires_ms)

        return self._session.change(put)

    def _dumps(self, value: V) -> bytes:
        if self._is_plain and type(value) is bytes:
            return cast("bytes", value)
        return self._codec.dumps(value)

    def _ttl(self, ttl: Ttl) -> float:
        return self._default_ttl if ttl is None else checked_ttl(ttl)

    # --- Deleting ------------------------------------------------------------------

    def delete(self, key: Key, etag: Text = None) -> bool:
        """Delete a value, that with the ETag if given; return whether it was there."""
        name, tag = _encoded(key), None if etag is None else checked_etag(etag)

        def delete(store: Store) -> bool:
            if tag is not None:
                record = store.stat(name)
                if record is None or record.etag != tag:
                    return False
            return store.delete(name)

        return self._session.change(delete)

    def __delitem__(self, key: Key) -> None:
        """
        Delete a key.

        Raises:
            KeyError: It has no value.
        """
        if not self.delete(key):
            raise KeyError(key)

    def delete_many(self, keys: Iterable[Key]) -> int:
        """Delete several keys, one after the other; return how many had a value."""
        return sum(map(self.delete, _listed(keys)))

    @overload
    def pop(self, key: Key) -> V: ...
    @overload
    def pop(self, key: Key, default: V) -> V: ...
    @overload
    def pop(self, key: Key, default: T) -> V | T: ...
    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """
        Delete a key and return the value that it had. Atomic.

        Raises:
            KeyError: It had none, and no default is given.
        """
        given = () if default is _MISSING else (default,)
        with self.exclusive():
            return super().pop(key, *given)

    def popitem(self) -> tuple[bytes, V]:
        """
        Delete one of the oldest keys; return it with its value. Atomic.

        Raises:
            KeyError: There is none.
        """
        for key in self:
            value = self.pop(key, _MISSING)
            if value is not _MISSING:
                return key, cast("V", value)
        raise KeyError("the cache is empty")

    def setdefault(self, key: Key, default: V) -> V:
        """Return the value of a key; if it has none, store and return this. Atomic."""
        with self.exclusive():
            return super().setdefault(key, default)

    def purge(self, prefix: Key) -> None:
        """
        Delete all keys that begin with a prefix, in constant time.

        Their space is freed when their volumes are overwritten; until then `len` includes
        them. Survives a power loss when this returns.

        Raises:
            InvalidArgumentError: No key can have the prefix, or it is empty.
            StorageError: The list of purges is full, or the disk refuses.
        """
        name = encode_prefix(prefix, size_max=KEY_BYTES_MAX)
        self._session.change(lambda store: store.purge(name))

    def clear(self) -> None:
        """Delete all keys, in constant time."""
        self._session.change(lambda store: store.flush())

    # --- Making values -------------------------------------------------------------

    def get_or_set(
        self, key: Key, make: Callable[[], V], ttl: Ttl = None, *, stale: float = 0.0
    ) -> V:
        """
        Return the value of a key; make and store it if there is none.

        Of all threads that ask for one key at a time, one makes it, and the others wait.
        What `make` raises, and what storing its value raises, except that the disk refuses
        it, is raised for all of them. `make` is called without a lock.

        Args:
            key: Of the value.
            make: Returns the value.
            ttl: Seconds.
            stale: Seconds for which an expired value is still returned, while another
                thread renews it. It is stored for so much longer.

        Raises:
            ClientUsageError: `make` asks for its own key by this method.
        """
        name, seconds = _encoded(key), self._ttl(ttl)
        if stale:
            seconds += checked_ttl(stale, "stale")
        record = self._find(name)

        def make_and_put() -> bytes:
            # Another thread may have stored it since.
            found = self._peek(name)
            if found is not None and not self._is_stale(found, stale):
                return found.value
            data = self._dumps(make())
            # What was made is not lost with a disk that is full or fails.
            with suppress(StorageError):
                self._put(name, data, seconds)
            return data

        if record is None:
            return self._loads(self._flights.run(name, make_and_put))
        if self._is_stale(record, stale):
            self._renew(name, make_and_put)
        return self._loads(record.value)

    def _is_stale(self, record: Record, stale: float) -> bool:
        if not (stale and record.expires_ms):
            return False
        now_ms = self._session.read(lambda store: store.clock.now_ms())
        return record.expires_ms - now_ms < stale * _SECOND_MS

    def _renew(self, name: bytes, make: Callable[[], bytes]) -> None:
        """Renew a value in another thread, unless one does."""

        def renew() -> None:
            error: BaseException | None = None
            try:
                self._flights.run(name, make)
            except BaseException as caught:  # noqa: BLE001 - It has no caller.
                error = None if self.closed else caught
            finally:
                self._renewals.ended(name, error)

        if self._renewals.begin(name):
            Thread(target=copy_context().run, args=(renew,), daemon=True).start()

    def memoize(
        self,
        ttl: Ttl = None,
        *,
        key: Callable[..., Key] | None = None,
        prefix: str | None = None,
        stale: float = 0.0,
    ) -> Callable[[Callable[P, V]], SyncCachedFunction[P, V]]:
        """
        Return a decorator for a function whose results are kept, as by `get_or_set`.

        Args:
            ttl: Seconds.
            key: Returns the key for the arguments of a call. For a method it is called
                with the instance first. None: see `CallKeys`.
            prefix: In the place of module and name of the function in its keys.
            stale: See `get_or_set`.

        Raises:
            InvalidArgumentError: The function is a coroutine, or its name is not its own.
        """
        get_or_set = partial(self.get_or_set, ttl=self._ttl(ttl), stale=stale)

        def decorate(function: Callable[P, V]) -> SyncCachedFunction[P, V]:
            if iscoroutinefunction(function):
                raise InvalidArgumentError(f"{function.__qualname__} is a coroutine")
            key_of = CallKeys(function, key, prefix).of
            return CachedFunction(function, key_of, get_or_set, self.delete)

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


def _encoded(key: Key) -> bytes:
    return encode_key(key, b"", KEY_BYTES_MAX)


def _listed(keys: Iterable[K]) -> Iterable[K]:
    if isinstance(keys, str | bytes):
        raise InvalidArgumentError(
            f"{keys!r} is one key; allowed is an iterable of keys, such as a list"
        )
    return keys


def _expires_ms(store: Store, ttl: float) -> int:
    """Return when a value expires that is stored now."""
    if ttl == math.inf:
        return 0
    return store.clock.now_ms() + max(1, round(ttl * _SECOND_MS))


def _put_number(
    store: Store,
    name: bytes,
    number: int,
    expires_ms: int,
    before: Record | None = None,
) -> None:
    kind = b"text/plain" if before is None else before.content_type
    flags = 0 if before is None else before.flags
    data = b"%d" % number
    store.put(name, data, content_type=kind, expires_ms=expires_ms, flags=flags)


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
