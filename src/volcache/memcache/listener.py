"""
Clients of the memcached protocol: the loops in C, and the thread of Python that they need.

The loops (front/mc_loop.h) have the connections: they receive, send, and apply the limits.
What they do not execute themselves are jobs for one thread here, which has a decoder and a
session for each connection that needs them, and executes the commands by the `Service`. In
one job it executes a bounded number of commands, so that all connections have their turns.

Idle connections are not limited in time: clients keep connections in pools, as memcached
allows it. What is limited: connections; the time of an incomplete command, and for a client
to read; the bytes held for all connections together.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.background import Background
from volcache.front import CommandFacts, MemcacheLoops
from volcache.memcache.command_log import result_of
from volcache.memcache.commands import Authenticate, Get, Simple, Status, WireLimits
from volcache.memcache.protocol import decoder_for
from volcache.monitoring.requests import SAMPLE_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from volcache.access import Access
    from volcache.front import Job, Readers
    from volcache.memcache.command_log import CommandLog
    from volcache.memcache.commands import Command, Result
    from volcache.memcache.decoder import Decoder
    from volcache.memcache.service import ClientSession, Service
    from volcache.memcache.sockets import ListeningSocket
    from volcache.monitoring.commands import CommandStats

_logger: Final = logging.getLogger(__name__)

# Of one job. A command takes some 30 microseconds, so that a job takes about one
# millisecond.
_COMMANDS_PER_JOB: Final = 32
_REPLY_BYTES: Final = 65_536
# Of commands that are not executed and replies that are not sent; at least a few values.
HELD_BYTES: Final = 64 << 20
# While there are always jobs, others get this pause that often. System calls release
# Python's lock too briefly for another thread to wake up and get it, and each release
# restarts the interval after which a thread that waits may demand it.
_SWITCH_SECONDS: Final = 0.001  # The longest time that one waits for the other.
_BUSY_SECONDS: Final = 0.001
_REST_SECONDS: Final = 0.00005
# A time may be years away.
_SLEEP_SECONDS_MAX: Final = 86_400.0
_LOG_SECONDS: Final = 10.0


class ConnectionLimits(NamedTuple):
    """What the listener allows."""

    connections: int
    transfer_seconds: float = 60.0  # without progress; 0 = no limit
    held_bytes: int = HELD_BYTES  # of commands not executed and replies not sent


@dataclass(slots=True)
class Peer:
    """One connection, of which Python executes commands."""

    session: ClientSession
    decoder: Decoder


class _RareLines:
    """Lines about what may happen often: at most one of a kind in ten seconds."""

    def __init__(self) -> None:
        """Log nothing yet."""
        self._logged: Mapping[str, int] = {}
        self._next: dict[str, float] = {}  # by event

    def figures(self, now: Mapping[str, int]) -> None:
        """Log what has become of connections."""
        before, self._logged = Counter(self._logged), now
        if now["refused"] > before["refused"] and self._may_log("full"):
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
            service: Executes the commands.
            limits: What is allowed.
            readers: Read what is not in memory.
            stats: What is counted.
            log: Gets the commands.
            sample: Gets one key in 64 of those that were read.
            threads: That have connections.
        """
        self._listening = listening
        self._service = service
        sizes = service.executor.limits
        self._wire_limits = WireLimits(sizes.key_size, sizes.value_size)
        self._stats = stats
        self._log = log
        self._sample = sample
        self._lines = _RareLines()
        self._loops = MemcacheLoops(
            CommandFacts(service.executor, stats, log, sample),
            self._lines,
            readers=readers,
            listening=listening.socket.fileno(),
            threads=threads,
            connections=limits.connections,
            held_bytes=limits.held_bytes,
            transfer_seconds=limits.transfer_seconds,
        )
        stats.flush = self._flush
        self._peers: dict[int, Peer] = {}
        self._pulse: tuple[float, Callable[[], None]] | None = None
        self._pulse_due = 0.0
        self._turn_started = 0.0  # 0: waits for a job
        self._rested = 0.0  # when it waited last
        self._thread = Background("memcache", self._turn, self._is_over, self._failed)

    # --- From other threads ------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._apply()
        self._loops.start()
        self._thread.start()

    def change(self, access: Access, *, may_flush: bool, slow_seconds: float) -> None:
        """Let other settings be in effect, for connections that are open, too."""
        self._service.change(access, may_flush=may_flush)
        self._log.set_slow(slow_seconds)
        self._apply()

    def _apply(self) -> None:
        client = self._service.session("")
        self._loops.change(
            may_read=client.may_read,
            may_write=client.may_write,
            wants_credentials=client.wants_credentials,
            slow_ns=self._log.threshold_ns,
        )

    def set_pulse(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function at an interval, in the thread; before `start`."""
        self._pulse = seconds, function

    def stalled_seconds(self) -> float:
        """Return for how long a turn has taken, or all turns have failed; 0 if it waits."""
        started = self._thread.failing_since or self._turn_started
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
        stats.connections_refused = now["refused"]

    # --- The thread --------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Return whether the loops have ended; all is counted then."""
        if not self._loops.has_ended:
            return False
        self._turn_started = 0.0
        self._flush()
        _logger.info("memcache.ended cut=%d", self._loops.figures()["cut"])
        return True

    def _failed(self, _: str, error: Exception) -> None:
        self._lines.failed(error)

    def _turn(self) -> None:
        """Wait for a job or a time, and do what there is to do."""
        job = self._wait()
        if job is not None:
            self._serve(job)
        self._service.flush_if_due()
        if self._pulse is not None and self._pulse_due <= self._turn_started:
            seconds, function = self._pulse
            self._pulse_due = self._turn_started + seconds
            function()

    def _wait(self) -> Job | None:
        """Wait for a job; return it."""
        self._turn_started = 0.0
        asked = time.monotonic()
        if asked - self._rested > _BUSY_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested = asked
        timeout = self._timeout(asked)
        # After a failure, the end of a turn tells whether it goes on.
        job = self._loops.next_job(0 if self._thread.failing_since else timeout)
        self._turn_started = time.monotonic()
        if self._turn_started - asked > _REST_SECONDS:
            self._rested = self._turn_started
        return job

    def _timeout(self, now: float) -> float:
        """Return the most seconds to wait; below 0: until there is a job."""
        times = []
        if (seconds := self._service.seconds_to_flush()) is not None:
            times.append(seconds)
        if self._pulse is not None:
            times.append(max(0.0, self._pulse_due - now))
        return min(*times, _SLEEP_SECONDS_MAX) if times else -1.0

    def _serve(self, job: Job) -> None:
        """Execute commands of a connection, and let its loop send the replies."""
        number, data, is_binary, remote = job
        if data is None:
            self._peers.pop(number, None)
            return
        peer = self._peers.get(number)
        if peer is None:
            decoder = decoder_for(self._wire_limits, b"\x80" if is_binary else b"")
            peer = Peer(self._service.session(remote), decoder)
            self._peers[number] = peer
        try:
            if peer.session.access is not self._service.access:
                peer.session.renew(self._service.access)
            peer.decoder.wants_credentials = peer.session.wants_credentials
            peer.decoder.receive(data)
            replies, has_more, closes = self._execute(peer)
            sent = b"".join(replies)
            rest = peer.decoder.give_back() if has_more else b""
        except Exception as error:  # noqa: BLE001 - It closes this connection only.
            self._lines.failed(error)
            replies, sent, rest, has_more, closes = [], b"", b"", False, True
        session, decoder = peer.session, peer.decoder
        self._loops.finish_job(
            sent,
            rest,
            decoder.buffered,
            has_executed=bool(replies),
            has_more=has_more and not rest,
            keeps=not decoder.is_empty,
            closes=closes,
            has_token=session.password is not None,
            may_read=session.may_read,
            may_write=session.may_write,
            wants_credentials=session.wants_credentials,
        )

    def _execute(self, peer: Peer) -> tuple[list[bytes], bool, bool]:
        """Return replies, if there may be more commands, and if the connection ends."""
        session, decoder = peer.session, peer.decoder
        execute, answers, log = self._service.execute, self._stats.answers, self._log
        timer = time.perf_counter_ns
        replies: list[bytes] = []
        size = 0
        for _ in range(_COMMANDS_PER_JOB):
            command = decoder.next_command()
            if command is None:
                return replies, False, False
            started = timer()
            result = execute(session, command)
            reply = command.reply(command, result)
            took = timer() - started
            answers[command.name, result_of(command, result)].observe(started, took)
            if took > log.threshold_ns:
                log.done(session.remote, command, result, started, took, len(reply))
            if not took & SAMPLE_MASK:
                self._sample_key(command, result)
            if isinstance(command, Authenticate):
                decoder.wants_credentials = session.wants_credentials
            replies.append(reply)
            size += len(reply)
            is_last = isinstance(command, Simple) and command.closes
            if is_last or session.is_broken:
                return replies, False, True
            if size >= _REPLY_BYTES:
                break
        return replies, True, False

    def _sample_key(self, command: Command, result: Result) -> None:
        if isinstance(command, Get) and result.status is Status.HIT:
            self._sample(command.key)
