"""What the methods of an embedded cache are made of: its values, and its state."""

from __future__ import annotations

import json
import math
import time
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

from volcache.embedded.errors import UnknownResultError
from volcache.sharing.wire import ALWAYS, Change, Condition, If, Operation, same_as
from volcache_client.headers import checked_type
from volcache_client.keys import KEY_BYTES_MAX, checked_ttl, encode_key
from volcache_client.messages import Stat
from volcache_client.serializers import OCTETS
from volcache_client.threads import Flights, Renewals

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from volcache.embedded.session import Session
    from volcache.store import Record
    from volcache_client.keys import Key, Ttl
    from volcache_client.serializers import Codec

V = TypeVar("V")

Text: TypeAlias = str | None

ABSENT: Final = Condition(If.ABSENT)
PRESENT: Final = Condition(If.PRESENT)

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
        session: Session,
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
        self._sets_plainly = is_plain and default_ttl == math.inf
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
        record = self._session.run(lambda link: link.get(name))
        if record is None:
            self._misses += 1
        else:
            self._hits += 1
        return record

    def _head(self, key: Key) -> Record | None:
        """Return the record of a key without its value."""
        name = encoded(key)
        return self._session.run(lambda link: link.stat(name))

    def _peek(self, name: bytes) -> Record | None:
        """Return the record of a key; it is not counted."""
        return self._session.run(lambda link: link.peek(name))

    def _loads(self, data: bytes) -> V:
        return cast("V", data) if self._is_plain else self._codec.loads(data)

    def _stat_of(self, record: Record) -> Stat:
        now_ms = self._now_ms()
        expires_ms = record.expires_ms
        return Stat(
            size=record.length,
            etag=record.etag,
            content_type=record.content_type.decode("latin-1") or OCTETS,
            ttl=max(0, expires_ms - now_ms) / _SECOND_MS if expires_ms else None,
            tier=record.source,
            position=f"{record.volume},{record.offset},{record.size}",
        )

    def _now_ms(self) -> int:
        return self._session.run(lambda link: link.clock.now_ms())

    def _expiry(self, ttl: float) -> int:
        """Return when a value expires that is stored now."""
        if ttl == math.inf:
            return 0
        return self._now_ms() + max(1, round(ttl * _SECOND_MS))

    def _put(
        self,
        name: bytes,
        data: bytes,
        ttl: float,
        kind: Text = None,
        condition: Condition = ALWAYS,
        *,
        since_us: int = 0,
    ) -> Text:
        """
        Store a value; return its ETag, None if the condition does not hold.

        `since_us`: it may have been stored by a call since then, and is not to replace a
        later one.
        """
        content_type = (checked_type(kind) if kind else self._type).encode("latin-1")
        change = Change(name, data, content_type, expires_ms=self._expiry(ttl))
        if not since_us:
            try:
                made = self._change(change, condition)
                return None if isinstance(made, bool) else made.etag
            except UnknownResultError as error:
                if condition is not ALWAYS:
                    raise
                since_us = error.since_us
        made = self._change(change, Condition(If.OLDER, since_us))
        if isinstance(made, bool):
            # It was stored, or another change came since, which may have been made on the
            # condition that it was not.
            found = self._peek(name)
            if found is None or found.value != data:
                raise UnknownResultError(self._session.path, since_us)
            return found.etag
        return made.etag

    def _delete(self, name: bytes, condition: Condition = ALWAYS) -> bool:
        """Delete a key; return whether it had a value for which the condition holds."""
        change = Change(name, None)
        try:
            return bool(self._change(change, condition))
        except UnknownResultError as error:
            older = Condition(If.OLDER, error.since_us)
            if condition is ALWAYS and self._change(change, older):
                return True
            raise

    def _change(self, change: Change, condition: Condition = ALWAYS) -> Record | bool:
        return self._session.run(
            lambda link: link.change(change, condition),
            # One that was made is newer.
            is_repeated=condition.kind == If.OLDER,
        )

    def _edit(
        self,
        name: bytes,
        edit: Callable[[Record], Change],
    ) -> Record | None:
        """Replace a record by what it is made to; None: there is none."""
        while record := self._session.run(lambda link: link.get(name)):
            made = self._change(edit(record), same_as(record))
            if not isinstance(made, bool):
                return made
        return None

    def _dumps(self, value: V) -> bytes:
        if self._is_plain and type(value) is bytes:
            return cast("bytes", value)
        return self._codec.dumps(value)

    def _ttl(self, ttl: Ttl) -> float:
        return self._default_ttl if ttl is None else checked_ttl(ttl)

    # --- State ---------------------------------------------------------------------

    def exclusive(self) -> AbstractContextManager[None]:
        """
        Return a context in which no other thread or process changes the cache.

        May be nested. Others can read. What is done within is not undone by an exception.
        """
        return self._session.exclusive()

    @property
    def closed(self) -> bool:
        """Whether the methods refuse every call."""
        return self._session.is_closed

    def stats(self) -> EmbeddedStats:
        """Return numbers for monitoring."""
        found = json.loads(self._session.ask(Operation.FACTS, value=b"disk"))
        found |= {"hits": self._hits, "misses": self._misses}
        return EmbeddedStats(**{name: found[name] for name in EmbeddedStats._fields})

    def sync(self) -> None:
        """Return when everything stored up to now survives a power loss."""
        self._session.ask(Operation.SYNC)

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
        self._session.run(lambda _: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encoded(key: Key) -> bytes:
    """Return a key as the store has it."""
    return encode_key(key, b"", KEY_BYTES_MAX)
