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
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from volcache.access import Access
from volcache.errors import ClientError, StoreError
from volcache.memcache.commands import (
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
from volcache.memcache.executor import refused
from volcache.tokens import GuessLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.commands import Command
    from volcache.memcache.executor import Executor
    from volcache.memcache.statistics import ServerStatistics
    from volcache.tokens import Kind, Refusals

_logger: Final = logging.getLogger(__name__)

OK: Final = Result(Status.OK)
_UNAUTHORIZED: Final = Result(Status.UNAUTHORIZED)
_DENIED: Final = Result(Status.DENIED)
_AUTHENTICATED: Final = Result(Status.AUTHENTICATED)
_FLUSH_FORBIDDEN: Final = Result(Status.FORBIDDEN, text="flush_all not allowed")
_BUG: Final = Result(Status.FAILED, text="internal error")


@dataclass(slots=True)
class ClientSession:
    """What is known of a connection."""

    remote: str  # the address of the client, without the port; "unix"
    access: Access  # the tokens in effect
    password: bytes | None = None
    is_broken: bool = False  # After a bug: the connection is to be closed.
    may_read: bool = False
    may_write: bool = False

    def __post_init__(self) -> None:
        """Find out what a client may do without a token."""
        self.renew(self.access)

    def renew(self, access: Access) -> None:
        """Let other tokens be in effect."""
        self.access = access
        self.may_read = access.allows("read", self.password)
        self.may_write = access.allows("write", self.password)

    @property
    def wants_credentials(self) -> bool:
        """Whether there is a token that the client has not given."""
        return not (self.may_read and self.may_write) and self.password is None


def _changes(command: Command) -> bool:
    """Whether a command may change what is stored."""
    if isinstance(command, Get):
        return not command.exptime is command.vivify is None
    return not isinstance(command, Statistics | Simple)


class Service:
    """Answers commands; for one thread, except where noted."""

    def __init__(
        self,
        executor: Executor,
        statistics: ServerStatistics,
        refusals: Refusals,
        *,
        access: Access | None = None,
        may_flush: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Begin.

        Args:
            executor: Executes what depends on the cache.
            statistics: Answers `stats`.
            refusals: Counts and logs what is refused for its token.
            access: The tokens.
            may_flush: Whether `flush_all` is allowed.
            clock: Seconds, monotonic.
        """
        self.access = access or Access()
        self._may_flush = may_flush
        self.executor = executor
        self._statistics = statistics
        self._refusals = refusals
        self._guesses = GuessLimit(clock)
        self._clock = clock
        self._flush_at: float | None = None  # by `clock`
        self._handlers: dict[type, Callable[..., Result]] = {
            Get: executor.get,
            Put: executor.put,
            Arithmetic: executor.arithmetic,
            Delete: executor.delete,
            Touch: executor.touch,
            FlushAll: self._flush,
            Statistics: self._report,
            Simple: lambda _: OK,
        }

    # --- Sessions --------------------------------------------------------------------

    def session(self, remote: str) -> ClientSession:
        """Return the session of a new connection."""
        return ClientSession(remote, self.access)

    def change(self, access: Access, *, may_flush: bool) -> None:
        """Let other settings be in effect, from the next command on; from any thread."""
        self.access = access
        self._may_flush = may_flush

    # --- Commands --------------------------------------------------------------------

    def execute(self, session: ClientSession, command: Command) -> Result:
        """Answer a command; see `ClientSession.is_broken`."""
        try:
            if session.access is not self.access:
                session.renew(self.access)
            if isinstance(command, Authenticate):
                return self._authenticate(session, command)
            if isinstance(command, Get | Statistics) and not session.may_read:
                return self._refuse(session, command, "read")
            if _changes(command) and not session.may_write:
                return self._refuse(session, command, "write")
            return self._handlers[type(command)](command)
        except (ClientError, StoreError) as error:
            return refused(error)
        except Exception:
            _logger.exception("memcache.failed command=%s", command.name)
            session.is_broken = True
            return _BUG

    def _refuse(
        self, session: ClientSession, command: Command, kind: Kind, reason: str = ""
    ) -> Result:
        """Count a command without the right token; the reason is one word."""
        key: bytes = getattr(command, "key", b"")
        self._refusals.add(
            kind,
            reason or ("missing" if session.password is None else "wrong"),
            address=session.remote,
            method=command.name,
            path=key.decode("latin-1"),
        )
        return _DENIED if isinstance(command, Authenticate) else _UNAUTHORIZED

    def _authenticate(self, session: ClientSession, command: Authenticate) -> Result:
        if self._guesses.seconds_left(session.remote):
            return self._refuse(session, command, "write", "limited")
        if not self.access.is_right(command.password):
            self._guesses.add(session.remote)
            return self._refuse(session, command, "write", "wrong")
        session.password = command.password
        session.renew(self.access)
        return _AUTHENTICATED

    def _report(self, command: Statistics) -> Result:
        return self._statistics.report(
            command.argument,
            needs_token=self.access.needs_token,
            may_flush=self._may_flush,
        )

    # --- Flush -----------------------------------------------------------------------

    def _flush(self, command: FlushAll) -> Result:
        if not self._may_flush:
            return _FLUSH_FORBIDDEN
        # As in memcached, the last one replaces the one that is still waiting.
        self._flush_at = None
        seconds = (
            self.executor.seconds_until(command.exptime) if command.exptime > 0 else 0
        )
        if seconds <= 0:
            return self.executor.flush(command)
        self._flush_at = self._clock() + seconds
        return OK

    def seconds_to_flush(self) -> float | None:
        """Return the time until `flush_if_due` has something to do; None: never."""
        if self._flush_at is None:
            return None
        return max(0.0, self._flush_at - self._clock())

    def flush_if_due(self) -> None:
        """Execute a `flush_all` whose delay is over; must not raise."""
        if self._flush_at is None or self._flush_at > self._clock():
            return
        self._flush_at = None
        try:
            result = self.executor.flush(FlushAll("flush_all"))
            _logger.info("memcache.flushed result=%s", result.status.value)
        except Exception:
            _logger.exception("memcache.failed command=%s", "flush_all")
