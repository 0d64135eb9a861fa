"""
`EmbeddedCache`: a directory as a cache, for all threads of one process.

It has the methods of the clients here, those of a dict in `mapping.py`, and its state in
`stored.py`. Atomic are the methods that read before they write: they hold the lock of the
session, as every write does. Reads take no lock; see `session.py` for how they and `close`
keep out of each other's way.
"""

from __future__ import annotations

import math
import re
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from hashlib import sha256
from io import BytesIO
from threading import Thread
from time import monotonic, sleep, time_ns
from typing import (
    TYPE_CHECKING,
    BinaryIO,
    Final,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from volcache.embedded.links import LinkLostError
from volcache.embedded.mapping import StoredMapping
from volcache.embedded.stored import ABSENT, PRESENT, Text, encoded
from volcache.sharing.wire import ALWAYS, Change, Condition, If, Operation
from volcache_client.errors import ConflictError, InvalidArgumentError, StorageError
from volcache_client.headers import checked_etag
from volcache_client.keys import (
    KEY_BYTES_MAX,
    check_counts,
    checked_ttl,
    counted,
    encode_prefix,
)
from volcache_client.many import distinct
from volcache_client.memo import SyncCachedFunction, memoized
from volcache_client.messages import Item
from volcache_client.uploads import SourceFailed, Upload

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from volcache.store import Record
    from volcache_client.keys import Key, Ttl
    from volcache_client.messages import Stat

K = TypeVar("K", bound="str | bytes")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

Number: TypeAlias = int | None

_ETAG: Final = re.compile('"([0-9a-f]{1,16})-[0-9a-f]{8}"')
_PART_BYTES: Final = 1 << 16
_LOCK_PAUSE: Final = 0.01


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


class EmbeddedCache(StoredMapping[V]):
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

    # --- Reading -------------------------------------------------------------------

    @overload
    def get(self, key: Key, default: None = None, *, touch: Ttl = None) -> V | None: ...
    @overload
    def get(self, key: Key, default: V | T, *, touch: Ttl = None) -> V | T: ...
    def get(
        self, key: Key, default: V | T | None = None, *, touch: Ttl = None
    ) -> V | T | None:
        """
        Return the value of a key; the default if there is none, or it has expired.

        `touch` is its new `ttl`.
        """
        if touch is None:
            data = self._session.value(key)
            if data is None:
                self._misses += 1
                return default
            if data is not False:
                self._hits += 1
                return self._loads(cast("bytes", data))
        elif not self.touch(key, touch):
            return default
        record = self._find(encoded(key))
        return default if record is None else self._loads(record.value)

    def exists(self, key: Key) -> bool:
        """Return whether there is a value, which is not read."""
        return key in self

    def ttl(self, key: Key) -> float | None:
        """Return the seconds until a value expires; `math.inf`: never; None: a miss."""
        found = self.stat(key)
        return None if found is None else math.inf if found.ttl is None else found.ttl

    def get_item(self, key: Key) -> Item[V] | None:
        """Return the value of a key and what is known of it; None for a miss."""
        record = self._find(encoded(key))
        if record is None:
            return None
        return Item(self._loads(record.value), self._stat_of(record))

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of those keys that have one, by the keys as given."""
        found = ((key, self._find(encoded(key))) for key in distinct(keys))
        return {key: self._loads(record.value) for key, record in found if record}

    def stat(self, key: Key) -> Stat | None:
        """Return what is known of a value, which is not read; None for a miss."""
        record = self._head(key)
        return None if record is None else self._stat_of(record)

    @contextmanager
    def stream(self, key: Key) -> Iterator[StoredReader | None]:
        """Open a value to read it in parts, without the serializer; None for a miss."""
        record = self._find(encoded(key))
        yield record and StoredReader(record.value, self._stat_of(record))

    # --- Writing -------------------------------------------------------------------

    def set(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: Text = None
    ) -> str:
        """
        Store a value; return its ETag.

        When this returns, the value survives the death of the process, and a power loss
        as `sync_mode` says.
        """
        since_us = 0
        if ttl is None and self._sets_plainly and type(value) is bytes:
            data = cast("bytes", value)
            try:
                put = None if content_type else self._session.put_value(key, data, b"")
                if put:
                    return put
            except LinkLostError as error:
                since_us = error.since_us
        ttl = self._default_ttl if ttl is None else checked_ttl(ttl)
        name, data = encoded(key), self._dumps(value)
        etag = self._put(name, data, ttl, content_type, since_us=since_us)
        return cast("str", etag)

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
            ttl: Seconds.
            content_type: Default: that of the suffix of the key.

        Raises:
            OSError: It cannot be read.
        """
        name = encoded(key)
        with closing(Upload(source)) as upload:
            try:
                data = b"".join(upload.blocks())
            except SourceFailed as failed:
                raise failed.error from None
        etag = self._put(name, data, self._ttl(ttl), content_type or "")
        return cast("str", etag)

    def add(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: Text = None
    ) -> Text:
        """Store a value if there is none; return its ETag, None if there is one."""
        return self._put(*self._given(key, value, ttl), content_type, ABSENT)

    def replace(
        self, key: Key, value: V, ttl: Ttl = None, *, content_type: Text = None
    ) -> Text:
        """Store a value if there is one; return its ETag, None if there is none."""
        return self._put(*self._given(key, value, ttl), content_type, PRESENT)

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
        given, condition = self._given(key, value, ttl), _version(etag)
        return condition and self._put(*given, content_type, condition)

    def _given(self, key: Key, value: V, ttl: Ttl) -> tuple[bytes, bytes, float]:
        return encoded(key), self._dumps(value), self._ttl(ttl)

    def touch(self, key: Key, ttl: Ttl = None) -> bool:
        """
        Let a value expire at another time; return whether there is one.

        It is written again, and keeps its ETag.
        """
        name, expires_ms = encoded(key), self._expiry(self._ttl(ttl))

        def touched(record: Record) -> Change:
            return Change(name, *record[:5], expires_ms, record.flags)

        return self._edit(name, touched) is not None

    expire = touch

    def append(self, key: Key, data: bytes) -> Number:
        """Add bytes to the end of a value; return its size, None if there is none."""
        name = encoded(key)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgumentError(
                f"append: a {type(data).__name__}; allowed are bytes"
            )

        def appended(record: Record) -> Change:
            return _rewritten(name, record, record.value + bytes(data))

        made = self._edit(name, appended)
        return None if made is None else made.length

    @contextmanager
    def lock(self, key: Key, ttl: Ttl, *, wait: float = 0.0) -> Iterator[int]:
        """
        Hold a lock, between all threads and processes, for the block, at most for `ttl`.

        Yields:
            A token, above those of all that held it before.

        Raises:
            ConflictError: Another one holds it, also after `wait` seconds.
        """
        name = f"~lock/{sha256(encoded(key)).hexdigest()}"
        seconds, last = self._ttl(ttl), monotonic() + wait
        while not (etag := self._put(name.encode(), b"", seconds, "", ABSENT)):
            if monotonic() >= last:
                raise ConflictError(f"{key!r}: the lock is held by another one")
            sleep(_LOCK_PAUSE)
        try:
            # A count that was lost begins at the time, which is above all before.
            yield self.incr(f"{name}/token", initial=time_ns(), ttl=math.inf) or 0
        finally:
            self.delete(name, etag)

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
        name, seconds = encoded(key), self._ttl(ttl)
        check_counts(delta=delta, initial=0 if initial is None else initial)

        def counted_up(record: Record) -> Change:
            return _rewritten(name, record, counted(record.value, sign * delta))

        while (made := self._edit(name, counted_up)) is None:
            if initial is None:
                return None
            if self._put(name, b"%d" % initial, seconds, "text/plain", ABSENT):
                return initial
        return int(made.value)

    # --- Deleting ------------------------------------------------------------------

    def delete(self, key: Key, etag: Text = None) -> bool:
        """Delete a value, that with the ETag if given; return whether it was there."""
        name, condition = encoded(key), ALWAYS if etag is None else _version(etag)
        return condition is not None and self._delete(name, condition)

    def delete_many(self, keys: Iterable[Key]) -> int:
        """Delete several keys, one after the other; return how many had a value."""
        return sum(map(self.delete, distinct(keys)))

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
        self._session.ask(Operation.PURGE, name)

    def clear(self) -> None:
        """Delete all keys, in constant time."""
        self._session.ask(Operation.CLEAR)

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
        name, seconds = encoded(key), self._ttl(ttl)
        if stale:
            seconds += checked_ttl(stale, "stale")
        record = self._find(name)
        if record is not None and not (stale and self._is_stale(record, stale)):
            return self._loads(record.value)

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
        self._renew(name, make_and_put)
        return self._loads(record.value)

    def _is_stale(self, record: Record, stale: float) -> bool:
        left = self._stat_of(record).ttl if stale else None
        return left is not None and left < stale

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
            try:
                Thread(target=copy_context().run, args=(renew,), daemon=True).start()
            except RuntimeError as error:  # There are too many threads.
                self._renewals.ended(name, error)

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
            InvalidArgumentError: An argument is wrong, the function is a coroutine, or its
                name is not its own. Also for `@memoize` without parentheses.
        """
        return memoized(self.get_or_set, self.delete, ttl, stale, key, prefix)


def _rewritten(name: bytes, record: Record, data: bytes) -> Change:
    """Return the change of the value of a record."""
    return Change(name, data, *record[1:4], 0, *record[5:7])


def _version(etag: str) -> Condition | None:
    """Return the condition that the value with an ETag is stored; None: it cannot be."""
    found = _ETAG.fullmatch(checked_etag(etag))
    return Condition(If.SAME, int(found[1], 16)) if found else None
