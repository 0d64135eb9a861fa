"""
The commands of clients: who may give them, and what answers them.

`Service.execute` passes a command to the executor if the session of its connection allows
it, and answers the few that the cache has no part in. It never raises: a bug is logged and
answered, and the connection is closed, since it is not known what was done.

Tokens are those of HTTP: `write_token` allows everything, `read_token` reading; without
one, everyone may. A session keeps the password that it gave, so that a reload of the
tokens affects connections that are open.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.memcache.commands import (
    VERSION,
    Arithmetic,
    Authenticate,
    Delete,
    FlushAll,
    Get,
    Put,
    Result,
    Simple,
    Statistics,
    Status,
    Touch,
)
from volcache.tokens import GuessLimit, Token
from volcache.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from volcache.cache import Cache
    from volcache.memcache.commands import Command
    from volcache.memcache.executor import Executor
    from volcache.monitoring.commands import CommandStats
    from volcache.tokens import Kind, Refusals

_logger: Final = logging.getLogger(__name__)

OK: Final = Result(Status.OK)
_UNAUTHORIZED: Final = Result(Status.UNAUTHORIZED)
_DENIED: Final = Result(Status.DENIED)
_AUTHENTICATED: Final = Result(Status.AUTHENTICATED)
_FLUSH_FORBIDDEN: Final = Result(Status.FORBIDDEN, text="flush_all not allowed")
_BUG: Final = Result(Status.FAILED, text="internal error")
_ABSENT: Final = Result(Status.NOT_FOUND)
_POINTER_BITS: Final = 64


class Access:
    """The tokens in effect, and what the one that a client gave allows."""

    def __init__(self, *, read: str = "", write: str = "") -> None:
        """
        Take over tokens.

        Args:
            read: Needed to read; empty = everyone may. The one for writing will do, too.
            write: Needed to write; empty = everyone may.
        """
        self._read, self._write = Token(read), Token(write)
        self.needs_token = bool(self._read or self._write)

    def allowed(self, given: bytes | None) -> tuple[bool, bool]:
        """Return whether a client may read, and whether it may write."""
        is_write = given is not None and self._write.is_equal(given)
        is_read = given is not None and self._read.is_equal(given)
        return not self._read or is_read or is_write, not self._write or is_write

    def is_right(self, given: bytes) -> bool:
        """Return whether this is one of the tokens; without tokens, all are."""
        is_write = self._write.is_equal(given)
        return self._read.is_equal(given) or is_write or not self.needs_token


class Session:
    """What is known of a connection."""

    __slots__ = (
        "access",
        "is_broken",
        "may_read",
        "may_write",
        "password",
        "remote",
    )

    def __init__(self, remote: str, access: Access) -> None:
        """
        Begin; see `Service.session`.

        Args:
            remote: The address of the client, without the port; "unix".
            access: The tokens in effect.
        """
        self.remote = remote
        self.password: bytes | None = None
        self.is_broken = False  # After a bug: the connection is to be closed.
        self.renew(access)

    def renew(self, access: Access) -> None:
        """Let other tokens be in effect."""
        self.access = access
        self.may_read, self.may_write = access.allowed(self.password)

    @property
    def wants_credentials(self) -> bool:
        """Whether there is a token that the client has not given."""
        return not (self.may_read and self.may_write) and self.password is None


class Facts(NamedTuple):
    """What `stats` shows of the settings."""

    listen: str
    connections_max: int
    value_size: int


class Service:
    """Answers commands; for one thread, except where noted."""

    def __init__(  # noqa: PLR0913 - By keyword.
        self,
        cache: Cache,
        executor: Executor,
        stats: CommandStats,
        refusals: Refusals,
        facts: Facts,
        *,
        access: Access | None = None,
        may_flush: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Begin.

        Args:
            cache: Asked for its usage.
            executor: Of the same cache.
            stats: What the listener counts; shown by `stats`.
            refusals: Counts and logs what is refused for its token.
            facts: Of the settings.
            access: The tokens.
            may_flush: Whether `flush_all` is allowed.
            clock: Seconds, monotonic.
            wall_clock: Nanoseconds since the epoch.
        """
        self.access = access or Access()
        self._may_flush = may_flush
        self._cache = cache
        self._executor = executor
        self._stats = stats
        self._refusals = refusals
        self._guesses = GuessLimit(clock)
        self._facts = facts
        self._clock = clock
        self._wall_clock = wall_clock
        self._started = clock()
        self._baseline: dict[tuple[str, str], int] = {}  # at the last "stats reset"
        self._connections_before = 0
        self._evictions_before = 0
        self._flush_at: float | None = None  # by `clock`
        self._handlers: dict[type, Callable[..., Result]] = {
            Get: executor.get,
            Put: executor.put,
            Arithmetic: executor.arithmetic,
            Delete: executor.delete,
            Touch: executor.touch,
            FlushAll: self._flush,
            Statistics: self._report,
            Simple: self._nothing,
        }

    # --- Sessions --------------------------------------------------------------------

    def session(self, remote: str) -> Session:
        """Return the session of a new connection."""
        return Session(remote, self.access)

    def change(self, access: Access, *, may_flush: bool) -> None:
        """Let other settings be in effect, from the next command on; from any thread."""
        self.access = access
        self._may_flush = may_flush

    # --- Commands --------------------------------------------------------------------

    def execute(  # noqa: C901, PLR0911 - The hot path.
        self, session: Session, command: Command
    ) -> Result:
        """Answer a command; see `Session.is_broken`."""
        try:
            if session.access is not self.access:
                session.renew(self.access)
            if isinstance(command, Get):
                if not session.may_read:
                    return self._refuse(session, command, "read")
                if session.may_write or command.exptime is command.vivify is None:
                    return self._executor.get(command)
                return self._refuse(session, command, "write")
            if isinstance(command, Authenticate):
                return self._authenticate(session, command)
            if isinstance(command, Statistics):
                if not session.may_read:
                    return self._refuse(session, command, "read")
            elif not session.may_write and not isinstance(command, Simple):
                return self._refuse(session, command, "write")
            return self._handlers[type(command)](command)
        except Exception:
            _logger.exception("memcache.failed command=%s", command.name)
            session.is_broken = True
            return _BUG

    def _refuse(self, session: Session, command: Command, kind: Kind) -> Result:
        reason = "missing" if session.password is None else "wrong"
        self._count_refusal(session, command, kind, reason)
        return _UNAUTHORIZED

    def _count_refusal(
        self, session: Session, command: Command, kind: Kind, reason: str
    ) -> None:
        key: bytes = getattr(command, "key", b"")
        self._refusals.add(
            kind,
            reason,
            address=session.remote,
            method=command.name,
            path=key.decode("latin-1"),
        )

    def _authenticate(self, session: Session, command: Authenticate) -> Result:
        if self._guesses.seconds_left(session.remote):
            self._count_refusal(session, command, "write", "limited")
            return _DENIED
        if not self.access.is_right(command.password):
            self._guesses.add(session.remote)
            self._count_refusal(session, command, "write", "wrong")
            return _DENIED
        session.password = command.password
        session.renew(self.access)
        return _AUTHENTICATED

    def _nothing(self, _command: Simple) -> Result:
        return OK

    # --- Flush -----------------------------------------------------------------------

    def _flush(self, command: FlushAll) -> Result:
        if not self._may_flush:
            return _FLUSH_FORBIDDEN
        # As in memcached, the last one replaces the one that is still waiting.
        self._flush_at = None
        seconds = (
            self._executor.seconds_until(command.exptime) if command.exptime > 0 else 0
        )
        if seconds <= 0:
            return self._executor.flush(command)
        self._flush_at = self._clock() + seconds
        return OK

    def seconds_to_flush(self) -> float | None:
        """Return the time until `flush_if_due` has something to do; None: never."""
        return (
            None if self._flush_at is None else max(0.0, self._flush_at - self._clock())
        )

    def flush_if_due(self) -> None:
        """Execute a `flush_all` whose delay is over; must not raise."""
        if self._flush_at is None or self._flush_at > self._clock():
            return
        self._flush_at = None
        try:
            result = self._executor.flush(FlushAll("flush_all"))
            _logger.info("memcache.flushed result=%s", result.status.value)
        except Exception:
            _logger.exception("memcache.failed command=%s", "flush_all")

    # --- Statistics ------------------------------------------------------------------

    def _report(self, command: Statistics) -> Result:
        argument = command.argument
        if argument == b"reset":
            self._baseline = self._stats.commands()
            self._connections_before = self._stats.connections_total
            self._evictions_before = self._cache.store.stats.evicted_records
            return OK
        if argument in {b"items", b"slabs", b"sizes"}:
            return OK  # There are no slabs.
        if argument == b"settings":
            pairs = self._settings()
        elif not argument:
            pairs = self._general()
        else:
            return _ABSENT
        return Result(
            Status.OK, pairs=tuple((name, str(value)) for name, value in pairs)
        )

    def _settings(self) -> Iterable[tuple[str, object]]:
        facts = self._facts
        is_unix = facts.listen.startswith("/")
        host, _, port = facts.listen.rpartition(":")
        return (
            ("maxbytes", self._capacity()),
            ("maxconns", facts.connections_max),
            ("tcpport", 0 if is_unix else port),
            ("udpport", 0),
            ("inter", "NULL" if is_unix else host),
            ("evictions", "on"),
            ("domain_socket", facts.listen if is_unix else "NULL"),
            ("umask", "700"),
            ("num_threads", 1),
            ("cas_enabled", "yes"),
            ("binding_protocol", "auto-negotiate"),
            ("auth_enabled_sasl", _yes(self.access.needs_token)),
            ("auth_enabled_ascii", _yes(self.access.needs_token)),
            ("item_size_max", facts.value_size),
            ("flush_enabled", _yes(self._may_flush)),
            ("dump_enabled", "no"),
            ("idle_timeout", 0),
        )

    def _capacity(self) -> int:
        usage = self._cache.store.usage(volumes=False)
        return usage.volume_num * usage.volume_size

    def _general(self) -> Iterable[tuple[str, object]]:
        stats, store = self._stats, self._cache.store
        usage = store.usage(volumes=False)
        times = resource.getrusage(resource.RUSAGE_SELF)
        count = self._counted
        gets, touches = ("get", "gets", "mg"), ("touch", "gat", "gats")
        sets = ("set", "add", "replace", "append", "prepend", "cas", "ms")
        reads = (*gets, "gat", "gats")
        hits, misses = count(reads, "hit"), count(reads, "miss")
        return (
            ("pid", os.getpid()),
            ("uptime", int(self._clock() - self._started)),
            ("time", self._wall_clock() // 1_000_000_000),
            ("version", VERSION),
            ("volcache_version", __version__),
            ("pointer_size", _POINTER_BITS),
            ("rusage_user", f"{times.ru_utime:.6f}"),
            ("rusage_system", f"{times.ru_stime:.6f}"),
            ("max_connections", self._facts.connections_max),
            ("curr_connections", stats.connections),
            ("total_connections", stats.connections_total - self._connections_before),
            ("rejected_connections", stats.connections_refused),
            ("cmd_get", hits + misses),
            ("cmd_set", count(sets)),
            ("cmd_flush", count(("flush_all",))),
            ("cmd_touch", count(touches)),
            ("cmd_meta", count(("mg", "ms", "md", "ma", "mn", "me"))),
            ("get_hits", hits),
            ("get_misses", misses),
            ("delete_misses", count(("delete", "md"), "not_found")),
            ("delete_hits", count(("delete", "md"), "deleted")),
            ("incr_misses", count(("incr",), "not_found")),
            ("incr_hits", count(("incr",), "stored")),
            ("decr_misses", count(("decr",), "not_found")),
            ("decr_hits", count(("decr",), "stored")),
            ("cas_misses", count(("cas",), "not_found")),
            ("cas_hits", count(("cas",), "stored")),
            ("cas_badval", count(("cas",), "exists")),
            (
                "touch_hits",
                count(("touch",), "touched") + count(("gat", "gats"), "hit"),
            ),
            (
                "touch_misses",
                count(("touch",), "not_found") + count(("gat", "gats"), "miss"),
            ),
            ("store_too_large", count(sets, "too_large")),
            ("auth_cmds", count(("auth",))),
            ("auth_errors", count(("auth",), "denied")),
            ("bytes_read", stats.bytes_in),
            ("bytes_written", stats.bytes_out),
            ("limit_maxbytes", usage.volume_num * usage.volume_size),
            ("accepting_conns", 1),
            ("threads", 1),
            ("bytes", usage.live),
            ("curr_items", store.count),
            ("total_items", count(sets, "stored")),
            ("evictions", store.stats.evicted_records - self._evictions_before),
        )

    def _counted(self, names: tuple[str, ...], result: str = "") -> int:
        """Return how many commands of these names there were since the last reset."""
        before = self._baseline
        return sum(
            number - before.get(answer, 0)
            for answer, number in self._stats.commands().items()
            if answer[0] in names and (not result or answer[1] == result)
        )


def _yes(value: object) -> str:
    return "yes" if value else "no"
