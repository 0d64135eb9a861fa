"""
Clients of the memcached protocol: the loops in C, and the thread that may wait.

The loops (front/server.h) have the connections and execute commands. Those that may take
long are executed by the thread here, one after the other, which also has what is due at a
time. C executes them, too, and asks the `Service` for what only Python does.

What is limited: connections; the time of an incomplete command, and for a client to read;
the bytes held for all connections together.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.background import Background
from volcache.front import CommandFacts, MemcacheLoops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from volcache.access import Access
    from volcache.front import Readers
    from volcache.memcache.command_log import CommandLog
    from volcache.memcache.service import Service
    from volcache.memcache.sockets import ListeningSocket
    from volcache.monitoring.commands import CommandStats
    from volcache.ring import OwnKeys

_logger: Final = logging.getLogger(__name__)

# Of commands that are not executed and replies that are not sent; at least a few values.
HELD_BYTES: Final = 40 << 20
# A time may be years away.
_SLEEP_SECONDS_MAX: Final = 86_400.0
_LOG_SECONDS: Final = 10.0


class ConnectionLimits(NamedTuple):
    """What the listener allows."""

    connections: int
    transfer_seconds: float = 60.0  # without progress; 0 = no limit
    idle_seconds: float = 0.0  # without a command; 0 = no limit
    held_bytes: int = HELD_BYTES  # of commands not executed and replies not sent


class _RareLines:
    """Lines about what may happen often: at most one of a kind in ten seconds."""

    def __init__(self) -> None:
        """Log nothing yet."""
        self._logged: Mapping[str, int] = {}
        self._next: dict[str, float] = {}  # by event

    def figures(self, now: Mapping[str, int]) -> None:
        """Log what has become of connections."""
        before, self._logged = Counter(self._logged), now
        if now["turned_away"] > before["turned_away"] and self._may_log("full"):
            _logger.warning("memcache.full open=%d", now["open"])
        failures = now["failed_accepts"] - before["failed_accepts"]
        if failures and self._may_log("accept_failed"):
            error = OSError(now["accept_error"], os.strerror(now["accept_error"]))
            _logger.warning("memcache.accept_failed error=%r", str(error))
        closed = now["closed_for_memory"] - before["closed_for_memory"]
        if closed and self._may_log("memory_full"):
            _logger.warning("memcache.memory_full held=%d", now["held"])

    def failed(self, error: BaseException) -> None:
        """Log a bug."""
        if self._may_log("failed"):
            _logger.error("memcache.failed command=%s", "-", exc_info=error)

    def _may_log(self, event: str) -> bool:
        now = time.monotonic()
        if now < self._next.get(event, 0.0):
            return False
        self._next[event] = now + _LOG_SECONDS
        return True


class Listener:
    """Serves clients in its own threads, from `start` until `drain` or `close`."""

    def __init__(  # noqa: PLR0913 - By keyword.
        self,
        listening: ListeningSocket,
        service: Service,
        *,
        limits: ConnectionLimits,
        readers: Readers,
        stats: CommandStats,
        log: CommandLog,
        sample: Callable[[bytes], None] = lambda _: None,
        threads: int = 1,
    ) -> None:
        """
        Prepare; nothing is accepted before `start`.

        Args:
            listening: Closed by the listener when it drains.
            service: Answers what the commands ask.
            limits: What is allowed.
            readers: Read what is not in memory.
            stats: What is counted.
            log: Gets the commands.
            sample: Gets one key in 64 of those that were read.
            threads: That have connections.
        """
        self._listening = listening
        self._service = service
        self._stats = stats
        self._log = log
        self._lines = _RareLines()
        self._loops = MemcacheLoops(
            CommandFacts(service, stats, log, sample),
            self._lines,
            readers=readers,
            listening=listening.socket.fileno(),
            threads=threads,
            connections=limits.connections,
            held_bytes=limits.held_bytes,
            transfer_seconds=limits.transfer_seconds,
            idle_seconds=limits.idle_seconds,
        )
        stats.flush = self._flush
        service.statistics.connections = self._loops.connections
        self._pulse: tuple[float, Callable[[], None]] | None = None
        self._pulse_due = 0.0
        self._pulse_started = 0.0  # 0: it waits
        self._thread = Background("memcache", self._turn, self._is_over, self._failed)

    # --- From other threads ------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        self._loops.change(slow_ns=self._log.threshold_ns)
        self._loops.start()
        self._thread.start()

    def change(
        self,
        access: Access,
        *,
        may_flush: bool,
        slow_seconds: float,
        ring: OwnKeys | None = None,
    ) -> None:
        """Let other settings be in effect, for connections that are open, too."""
        self._service.change(access, may_flush=may_flush, ring=ring)
        self._log.set_slow(slow_seconds)
        self._loops.change(slow_ns=self._log.threshold_ns)

    def set_pulse(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function at an interval, in the thread; before `start`."""
        self._pulse = seconds, function

    def stalled_seconds(self) -> float:
        """Return for how long a turn has taken, or all turns have failed; 0 if it waits."""
        started = self._thread.failing_since or self._pulse_started
        stalled = time.monotonic() - started if started else 0.0
        return max(stalled, self._loops.stalled_seconds())

    @property
    def is_failing(self) -> bool:
        """Whether the last turn raised, because of a bug."""
        return self._thread.failing_since > 0

    def drain(self, seconds: float = 3.0) -> None:
        """
        Begin to end: accept no connection, answer what has arrived, close.

        Args:
            seconds: After which the connections that are left are cut.
        """
        self._loops.drain(seconds)
        self._listening.close()

    def close(self) -> None:
        """Wait until the threads have ended; they are drained if they were not."""
        self.drain()
        if self._thread.ident is not None:
            self._thread.join()

    def _flush(self) -> None:
        """Let `stats` have what the loops have counted."""
        self._loops.flush()
        now, stats = self._loops.figures(), self._stats
        stats.bytes_in, stats.bytes_out = now["bytes_in"], now["bytes_out"]
        stats.connections, stats.connections_total = now["open"], now["accepted"]
        stats.connections_refused = now["turned_away"]
        stats.connections_idle = now["closed_idle"] + now["closed_for_room"]

    # --- The thread --------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Return whether the loops have ended; all is counted then."""
        if not self._loops.has_ended:
            return False
        self._pulse_started = 0.0
        self._flush()
        _logger.info("memcache.ended cut=%d", self._loops.figures()["cut"])
        return True

    def _failed(self, _: str, error: Exception) -> None:
        self._lines.failed(error)

    def _turn(self) -> None:
        """Wait for a call or a time, and do what there is to do."""
        self._pulse_started = 0.0
        timeout = self._timeout(time.monotonic())
        # After a failure, the end of a turn tells whether it goes on.
        self._loops.serve_call(0 if self._thread.failing_since else timeout)
        self._pulse_started = now = time.monotonic()
        self._service.flush_if_due()
        if self._pulse is not None and self._pulse_due <= now:
            seconds, function = self._pulse
            self._pulse_due = now + seconds
            function()

    def _timeout(self, now: float) -> float:
        """Return the most seconds to wait; below 0: until there is a call."""
        times = []
        if (seconds := self._service.seconds_to_flush()) is not None:
            times.append(seconds)
        if self._pulse is not None:
            times.append(max(0.0, self._pulse_due - now))
        return min(*times, _SLEEP_SECONDS_MAX) if times else -1.0
