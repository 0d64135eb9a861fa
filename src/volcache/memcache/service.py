"""
What the commands in C ask Python for, and who may give them.

front/memcache.h says which questions there are. One thread asks; it never gets an
exception: a bug is logged and answered, and the connection is closed, since it is not known
what was done.

Tokens are those of HTTP: `write_token` allows everything, `read_token` reading; without
one, everyone may. Of a token that a client gave, its connection keeps a digest, so that a
reload of the tokens affects connections that are open.
"""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING, Final

from volcache.access import Access
from volcache.errors import ClientError, StoreError, ValueTooLargeError
from volcache.histogram import NS_PER_SECOND
from volcache.store import Record
from volcache.tokens import GuessLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.access import Limits
    from volcache.cache import Cache
    from volcache.memcache.statistics import ServerStatistics
    from volcache.ring import OwnKeys
    from volcache.tokens import Kind, Refusals

_logger: Final = logging.getLogger(__name__)

KEY_BYTES_MAX: Final = 250  # that memcached allows
# Times up to this are from now; longer ones are seconds since the epoch.
_RELATIVE_SECONDS_MAX: Final = 60 * 60 * 24 * 30
# What a client may do: read; write; and whether it has to give a token first.
Rights = tuple[bool, bool, bool]


class Service:
    """Answers the questions of commands; for one thread, except where noted."""

    def __init__(  # noqa: PLR0913 - By keyword.
        self,
        cache: Cache,
        limits: Limits,
        statistics: ServerStatistics,
        refusals: Refusals,
        *,
        access: Access | None = None,
        may_flush: bool = False,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Begin.

        Args:
            cache: Used by other threads, too; closed by the caller.
            limits: What is stored.
            statistics: Answers `stats`.
            refusals: Counts and logs what is refused for its token.
            access: The tokens.
            may_flush: Whether `flush_all` is allowed.
            clock: Nanoseconds since the epoch, by the machine's clock.
            timer: Seconds, monotonic.
        """
        self.cache = cache
        self.limits = limits
        self.clock = clock
        self.access = access or Access()
        self._may_flush = may_flush
        self._ring: OwnKeys | None = None
        self.statistics = statistics
        self._refusals = refusals
        self._guesses = GuessLimit(timer)
        self._timer = timer
        self._flush_at: float | None = None  # by `timer`

    def change(
        self, access: Access, *, may_flush: bool, ring: OwnKeys | None = None
    ) -> None:
        """Let other settings be in effect, from the next question on; from any thread."""
        self.access = access
        self._may_flush = may_flush
        self._ring = ring

    def put(
        self,
        key: bytes,
        value: bytes,
        types: tuple[bytes, bytes, bytes],
        stored_us: int,
        expires_ms: int,
        flags: int,
    ) -> Record:
        """
        Store a value.

        Args:
            key: Of the value.
            value: The bytes.
            types: Content type, content encoding and cache directives.
            stored_us: 0; or that of the record there is, of which only the expiry changes.
            expires_ms: As for `Cache.put`.
            flags: Likewise.

        Raises:
            ValueTooLargeError: No volume holds it.
            StoreError: The disk refused.
        """
        if not stored_us:
            return self.cache.put(
                key,
                value,
                content_type=types[0],
                content_encoding=types[1],
                cache_control=types[2],
                expires_ms=expires_ms,
                flags=flags,
            )
        place = 0, 0, 0
        record = Record(
            value, *types, stored_us, expires_ms, flags, *place, len(value), 0
        )
        return self.cache.touch(key, record, expires_ms)

    def refused(self, error: BaseException) -> bytes | None:
        """Return why something was refused; None: too large, empty: because of a bug."""
        if isinstance(error, ValueTooLargeError):
            return None
        if not isinstance(error, ClientError | StoreError):
            return b""
        _logger.warning("memcache.refused error=%r", str(error))
        text = str(error)
        if isinstance(error, OSError):  # Its text names files of the instance.
            text = f"the disk refused: {error.strerror or 'no reason given'}"
        return text.encode("latin-1", "replace")

    # --- Tokens ----------------------------------------------------------------------

    def access_table(self) -> tuple[Rights, list[tuple[bytes, Rights]]]:
        """Return the rights of a client without a token, and those of each token."""
        access = self.access
        may_read, may_write = access.allows("read", None), access.allows("write", None)
        forms = {*access.forms("read"), *access.forms("write")}
        return (
            (may_read, may_write, not (may_read and may_write)),
            [(_digest(form), self._rights(form)) for form in sorted(forms)],
        )

    def _rights(self, token: bytes) -> Rights:
        access = self.access
        return access.allows("read", token), access.allows("write", token), False

    def authenticate(self, remote: str, token: bytes) -> tuple[bytes, Rights] | None:
        """Return the digest of a token, and what it allows; None: it is wrong."""
        is_limited = self._guesses.seconds_left(remote) > 0
        if not is_limited and self.access.is_right(token):
            return _digest(token), self._rights(token)
        if not is_limited:
            self._guesses.add(remote)
        reason = "limited" if is_limited else "wrong"
        self.refuse("write", reason, remote, "auth", "")
        return None

    def refuse(
        self, kind: Kind, reason: str, remote: str, command: str, key: str
    ) -> None:
        """Count and log a command without the right token; from any thread."""
        self._refusals.add(kind, reason, address=remote, method=command, path=key)

    # --- Statistics --------------------------------------------------------------------

    def report(self, argument: bytes) -> bytes | None:
        """Return the lines of `stats`; None: there are no such ones."""
        return self.statistics.report(
            argument, needs_token=self.access.needs_token, may_flush=self._may_flush
        )

    def config(self, name: bytes) -> bytes | None:
        """
        Return the list of instances that `config get` asks for; None: there is none.

        It has the form of ElastiCache: a version, and "HOST|IP|PORT" of each instance. All
        are taken to listen on the same port.
        """
        port = self.statistics.port
        if name != b"cluster" or self._ring is None or not port:
            return None
        nodes = " ".join(f"{host}|{host}|{port}" for host in self._ring.hosts)
        return f"{self._ring.version}\n{nodes}\n".encode()

    # --- Flush -----------------------------------------------------------------------

    def flush(self, exptime: int) -> bytes:
        """
        Execute `flush_all`, in this many seconds or at this time.

        Returns:
            Why it is not allowed; empty if it is.

        Raises:
            StoreError: The disk refused.
        """
        if not self._may_flush:
            return b"flush_all not allowed"
        # As in memcached, the last one replaces the one that is still waiting.
        self._flush_at = None
        seconds: float = exptime
        if exptime > _RELATIVE_SECONDS_MAX:
            seconds = exptime - self.clock() / NS_PER_SECOND
        if seconds > 0:
            self._flush_at = self._timer() + seconds
        else:
            self.cache.flush()
        return b""

    def seconds_to_flush(self) -> float | None:
        """Return the time until `flush_if_due` has something to do; None: never."""
        if self._flush_at is None:
            return None
        return max(0.0, self._flush_at - self._timer())

    def flush_if_due(self) -> None:
        """Execute a `flush_all` whose delay is over; must not raise."""
        if self._flush_at is None or self._flush_at > self._timer():
            return
        self._flush_at = None
        result = "ok"
        try:
            self.cache.flush()
        except StoreError as error:
            self.refused(error)
            result = "failed"
        except Exception:
            _logger.exception("memcache.failed command=%s", "flush_all")
            return
        _logger.info("memcache.flushed result=%s", result)


def _digest(token: bytes) -> bytes:
    """Return what tells a token from others."""
    return hashlib.sha256(token).digest()
