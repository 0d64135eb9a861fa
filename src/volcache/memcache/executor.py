"""
What the commands do in the cache.

Keys are those of HTTP: `a/b` is what HTTP calls `/a/b`. What no path leads to cannot be
stored and is never found. The cas unique of a record is the time at which it was stored, in
microseconds: it is different for every version of every key, and stays the same when the
record is moved and when the instance is restarted.

A command that depends on the record there is holds the lock of the cache, so that no
request over HTTP comes between reading and writing.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import BadKeyError, ClientError, StoreError, ValueTooLargeError
from volcache.front import Marks
from volcache.histogram import NS_PER_SECOND
from volcache.keys import parse_key
from volcache.memcache.commands import (
    NUMBER_MAX,
    RELATIVE_SECONDS_MAX,
    Arithmetic,
    Delete,
    FlushAll,
    Get,
    Put,
    Result,
    Status,
    Touch,
)
from volcache.store import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.cache import Cache

_logger: Final = logging.getLogger(__name__)

_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000
MISSED: Final = Result(Status.MISS)
NOT_FOUND: Final = Result(Status.NOT_FOUND)
NOT_STORED: Final = Result(Status.NOT_STORED)
EXISTS: Final = Result(Status.EXISTS)
DELETED: Final = Result(Status.DELETED)
TOO_LARGE: Final = Result(Status.TOO_LARGE)
NON_NUMERIC: Final = Result(Status.NON_NUMERIC)
# What strtoull reads: the number ends at a space, a NUL byte or the end of the value.
_NUMBER: Final = re.compile(
    rb"[ \t\n\v\f\r]*(?:\+|-(?=0+\b))?0*([0-9]{1,20})(?:[ \t\n\v\f\r\0]|\Z)"
)
_BAD_KEY: Final = 'bad key: it holds a segment "." or ".."; a key is the path of a URL'
_WON: Final = b"W"
_OTHER_WON: Final = b"Z"
# Beyond, the oldest is forgotten, and another client wins.
_WON_MAX: Final = 65_536
# Beyond, the key that was not read for the longest time counts as never read.
_READS_MAX: Final = 16_384
# A longer time to live is shortened to this, which is 544 years.
_TTL_SECONDS_MAX: Final = 2**34
# What was stored with a time in the past: nothing.
_EXPIRED: Final = Record(b"", b"", b"", b"", 0, 1, 0, 0, 0, 0, 0, 0)


class ValueLimits(NamedTuple):
    """What the executor accepts; as in the settings."""

    key_size: int  # bytes
    value_size: int  # bytes
    default_ttl: int = 0  # seconds; 0 = values do not expire
    max_ttl: int = 0  # seconds; 0 = no limit


class Executor:
    """
    Executes the commands that depend on the cache; for one thread.

    What the cache raises, ClientError or StoreError, reaches the caller; see `refused`.
    """

    def __init__(
        self,
        cache: Cache,
        limits: ValueLimits,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Use a cache, which other threads use, too.

        Args:
            cache: Closed by the caller.
            limits: What is accepted.
            clock: Nanoseconds since the epoch, by the machine's clock.
        """
        self.cache = cache
        self.limits = limits
        self.clock = clock
        # Versions that a client has won the right to replace. After a restart, another
        # client wins.
        self.won = Marks(_WON_MAX)
        # When versions were read, in seconds since the epoch, by the clock of the store.
        self.reads = Marks(_READS_MAX)

    # --- Reading -------------------------------------------------------------------

    def get(self, command: Get) -> Result:
        """Execute `Get`."""
        if command.exptime is command.vivify is command.recache is None:
            return self._get_and_change(command)
        with self.cache.exclusive():
            return self._get_and_change(command)

    def _get_and_change(self, command: Get) -> Result:
        key, exptime = command.key, command.exptime
        has_value = command.wants_value or exptime is not None
        found = self.cache.get(key) if has_value else self.cache.stat(key)
        if found is None:
            return MISSED if command.vivify is None else self._vivify(command)
        has_won = self.won.get(found.stored_us) is not None
        record = found
        if exptime is not None:
            record = self._touch(key, found, exptime)
        token = _OTHER_WON if has_won else b""
        if command.recache is not None and not has_won:
            seconds = self._ttl(record if command.is_recache_late else found)
            if 0 <= seconds < self.seconds_until(command.recache):
                self.won.put(record.stored_us, 0)
                token = _WON
        return self._hit(command, found, record, token)

    def _hit(self, command: Get, found: Record, record: Record, token: bytes) -> Result:
        """Return what became of a record, and note that it was read."""
        now = self._second()
        read = self.reads.get(record.stored_us)
        if not command.is_peek and record is not _EXPIRED:
            self.reads.put(record.stored_us, now)
        return Result(
            Status.HIT,
            record,
            ttl=self._ttl(found if command.ttl == "before" else record),
            token=token,
            idle=-1 if read is None else max(0, now - read),
        )

    def _vivify(self, command: Get) -> Result:
        """Store an empty value, which the client has won the right to replace."""
        key = command.key
        self._check_key(key)
        stored = self._store(key, b"", 0, self._expiry(command.vivify or 0))
        record = stored.record or _EXPIRED
        if record is not _EXPIRED:
            self.won.put(record.stored_us, 0)
        # Before the command there was none, of which "t" says that it does not expire.
        return self._hit(command, record._replace(expires_ms=0), record, _WON)

    def _ttl(self, record: Record) -> int:
        """Return the seconds until a record expires, rounded up; -1 = it does not."""
        if not record.expires_ms:
            return -1
        return -(-self.cache.remaining_ms(record.expires_ms) // _MS)

    # --- Writing -------------------------------------------------------------------

    def put(self, command: Put) -> Result:
        """Execute `Put`."""
        key = command.key
        self._check_key(key)
        if command.is_too_large or len(command.value) > self.limits.value_size:
            # As in memcached, so that no client gets the value that it wanted to replace.
            if command.mode == "set":
                self.cache.delete(key)
            return TOO_LARGE
        if command.mode == "set" and not command.cas:
            expires_ms = self._expiry(command.exptime)
            return self._store(key, command.value, command.flags, expires_ms)
        with self.cache.exclusive():
            return self._put_if_allowed(command)

    def _put_if_allowed(self, command: Put) -> Result:
        key, mode = command.key, command.mode
        if mode in {"append", "prepend"}:
            return self._edit(command)
        found = self.cache.stat(key)
        if found is None:
            if command.cas:
                return NOT_FOUND
            if mode == "replace":
                return NOT_STORED
        elif mode == "add":
            return NOT_STORED
        elif command.cas and command.cas != found.stored_us:
            return EXISTS
        expires_ms = self._expiry(command.exptime)
        return self._store(key, command.value, command.flags, expires_ms)

    def _edit(self, command: Put) -> Result:
        """Append or prepend to the value there is."""
        key, value = command.key, command.value
        found = self.cache.get(key)
        if found is None:
            if command.vivify is None:
                return NOT_STORED
            return self._store(key, value, command.flags, self._expiry(command.vivify))
        if command.cas and command.cas != found.stored_us:
            return EXISTS
        is_append = command.mode == "append"
        value = found.value + value if is_append else value + found.value
        if len(value) > self.limits.value_size:
            return TOO_LARGE
        return self._replace(key, found, value, found.expires_ms)

    def arithmetic(self, command: Arithmetic) -> Result:
        """Execute `Arithmetic`."""
        try:
            self._check_key(command.key)
        except ClientError:
            if command.initial is None:
                return NOT_FOUND
            raise
        with self.cache.exclusive():
            found = self.cache.get(command.key)
            if found is None:
                return self._store_initial(command)
            return self._count(command, found)

    def _count(self, command: Arithmetic, found: Record) -> Result:
        """Replace a number."""
        if not found.value:
            return NON_NUMERIC
        if command.cas and command.cas != found.stored_us:
            return EXISTS
        number = parse_number(found.value)
        if number is None:
            return NON_NUMERIC
        if command.is_decrement:
            number = max(0, number - command.delta)
        else:
            number = (number + command.delta) & NUMBER_MAX
        # As in memcached, a value does not become shorter.
        value = b"%d" % number
        is_longer = len(value) > len(found.value)
        value = value.ljust(len(found.value))
        expires_ms = found.expires_ms
        if command.exptime is not None:
            expires_ms = self._expiry(command.exptime)
        stored = self._replace(command.key, found, value, expires_ms)
        record = stored.record or found
        if not is_longer:
            # As in memcached, which changes the number in place.
            self.won.move(found.stored_us, record.stored_us)
            self.reads.move(found.stored_us, record.stored_us)
        ttl = self._ttl(found if command.ttl == "before" else record)
        return Result(Status.STORED, record, number, ttl=ttl)

    def _store_initial(self, command: Arithmetic) -> Result:
        number = command.initial
        if number is None:
            return NOT_FOUND
        expires_ms = self._expiry(command.initial_exptime)
        stored = self._store(command.key, b"%d" % number, 0, expires_ms)
        record = stored.record or _EXPIRED
        ttl = -1 if command.ttl == "before" else self._ttl(record)
        return Result(Status.STORED, record, number, ttl=ttl)

    def touch(self, command: Touch) -> Result:
        """Execute `Touch`."""
        key = command.key
        with self.cache.exclusive():
            found = self.cache.get(key)
            if found is None:
                return NOT_FOUND
            record = self._touch(key, found, command.exptime)
            self.reads.put(record.stored_us, self._second())
        return Result(Status.TOUCHED, record)

    def _touch(self, key: bytes, found: Record, exptime: int) -> Record:
        """Set when a record expires; one that has expired is deleted."""
        expires_ms = self._expiry(exptime)
        if expires_ms < 0:
            self.cache.delete(key)
            return found._replace(expires_ms=1)
        if expires_ms == found.expires_ms:
            return found
        return self.cache.touch(key, found, expires_ms)

    def delete(self, command: Delete) -> Result:
        """Execute `Delete`."""
        key = command.key
        if not command.cas:
            return DELETED if self.cache.delete(key) else NOT_FOUND
        with self.cache.exclusive():
            found = self.cache.stat(key)
            if found is None:
                return NOT_FOUND
            if found.stored_us != command.cas:
                return EXISTS
            self.cache.delete(key)
        return DELETED

    def flush(self, _command: FlushAll) -> Result:
        """Execute `FlushAll` now, whatever its time is."""
        try:
            self.cache.flush()
        except StoreError as error:
            return refused(error)
        return Result(Status.OK)

    # --- Parts ---------------------------------------------------------------------

    def _check_key(self, key: bytes) -> None:
        """
        Check the key of what is to be stored.

        Raises:
            ClientError: No path of HTTP leads to it.
        """
        if not is_key(key, self.limits.key_size):
            raise BadKeyError(_BAD_KEY)

    def _second(self) -> int:
        """Return the time by the clock of the store, in seconds since the epoch."""
        return self.cache.store.clock.now_ms() // _MS

    def seconds_until(self, exptime: int) -> float:
        """Return how many seconds from now on a time is, as `exptime` gives it."""
        if exptime > RELATIVE_SECONDS_MAX:
            return exptime - self.clock() / NS_PER_SECOND
        return exptime

    def _expiry(self, exptime: int) -> int:
        """
        Return when a record expires, for `Cache.put`; 0 = never, below 0 = now.

        Args:
            exptime: 0 = `default_ttl`; up to 30 days, seconds from now; above, seconds
                since the epoch; below 0, in the past.
        """
        limits = self.limits
        if not exptime:
            ttl: float = limits.default_ttl or limits.max_ttl
            if not ttl:
                return 0
        else:
            ttl = self.seconds_until(exptime)
            if ttl <= 0:
                return -1
        ttl = min(ttl, limits.max_ttl or _TTL_SECONDS_MAX)
        return self.cache.expiry_of(self.clock() // _NS_PER_MS + round(ttl * _MS))

    def _store(self, key: bytes, value: bytes, flags: int, expires_ms: int) -> Result:
        """Store a value; one that has expired deletes what there is."""
        if expires_ms < 0:
            self.cache.delete(key)
            return Result(Status.STORED)
        record = self.cache.put(key, value, flags=flags, expires_ms=expires_ms)
        return Result(Status.STORED, record)

    def _replace(
        self, key: bytes, found: Record, value: bytes, expires_ms: int
    ) -> Result:
        """Store another value with all else as it is."""
        if expires_ms < 0:
            self.cache.delete(key)
            return Result(Status.STORED, found._replace(value=value))
        record = self.cache.put(
            key,
            value,
            content_type=found.content_type,
            content_encoding=found.content_encoding,
            cache_control=found.cache_control,
            expires_ms=expires_ms,
            flags=found.flags,
        )
        return Result(Status.STORED, record)


def is_key(key: bytes, size_max: int) -> bool:
    """
    Return whether a path of HTTP leads to a key.

    Args:
        key: 1 to 250 bytes.
        size_max: The longest key accepted, in bytes.

    Raises:
        ClientError: No path is like it.
    """
    return parse_key("/" + key.decode("latin-1"), size_max) == key


def parse_number(value: bytes) -> int | None:
    """Return the number that "incr" counts from; None if the value is none."""
    found = _NUMBER.match(value)
    if found is None:
        return None
    number = int(found[1])
    return number if number <= NUMBER_MAX else None


def refused(error: ClientError | StoreError) -> Result:
    """Return what becomes of a command for which the cache has raised an error."""
    if isinstance(error, ValueTooLargeError):
        return TOO_LARGE
    if isinstance(error, ClientError):
        return Result(Status.BAD_KEY, text=str(error))
    _logger.warning("memcache.refused error=%r", str(error))
    text = str(error)
    if isinstance(error, OSError):  # Its text names files of the instance.
        text = f"the disk refused: {error.strerror or 'no reason given'}"
    return Result(Status.FAILED, text=text)
