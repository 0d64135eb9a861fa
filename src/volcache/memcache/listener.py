"""
The sockets of the memcached protocol: one thread, one loop over epoll.

Connections take turns. In its turn a connection receives once, and has a bounded number of
commands executed; the replies of a turn are sent together. A connection that has more to do
waits for its next turn, while all others have theirs. Nothing is received from a connection
before what it sent is executed and the replies are in the socket, so a client that does not
read gets no more commands executed, and at most `_REPLY_BYTES` and one value are held.
All that is held between two turns counts for `ConnectionLimits.held_bytes`.

Nothing here waits except for epoll, and for the disk when a record is read or written. The
time that a connection is idle is not limited: clients keep connections in pools, as
memcached allows it. What is limited: connections; the time of an incomplete command, and
for a client to read; the bytes held for all connections together.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from volcache.memcache.command_log import result_of
from volcache.memcache.commands import Authenticate, Get, Simple, Status
from volcache.monitoring.requests import SAMPLE_MASK

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.memcache.command_log import CommandLog
    from volcache.memcache.commands import Command, Result
    from volcache.memcache.decoder import Decoder
    from volcache.memcache.service import ClientSession, Service
    from volcache.memcache.sockets import ListeningSocket
    from volcache.monitoring.commands import CommandStats

_logger: Final = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 65_536
# Of one turn. A command takes some 30 microseconds, so that a turn takes about one
# millisecond.
_COMMANDS_PER_TURN: Final = 32
_REPLY_BYTES: Final = 65_536
_EVENTS: Final = 64
_ACCEPTS_PER_TURN: Final = 16
# A loop that always has something to do gives others this pause that often. System calls
# release Python's lock too briefly for another thread to wake up and get it, and each
# release restarts the interval after which a thread that waits may demand it.
_BUSY_SECONDS: Final = 0.001
_REST_SECONDS: Final = 0.00005
_TICK_SECONDS: Final = 1.0
# epoll takes milliseconds in 32 bits; a flush may be due in years.
_SLEEP_SECONDS_MAX: Final = 86_400.0
# While no connection can be accepted for want of descriptors or memory.
_ACCEPT_PAUSE: Final = 0.5
# After a turn that raised: the next one may raise for the same reason.
_FAILURE_PAUSE: Final = 0.1
# Of commands that are not executed and replies that are not sent; at least a few values.
HELD_BYTES: Final = 64 << 20
_LOG_SECONDS: Final = 10.0
_DRAIN_STEP: Final = 0.01
# A client that sends less in each second of an incomplete command is disconnected.
_BYTES_PER_SECOND_MIN: Final = 500
_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REFUSAL: Final = b"ERROR Too many open connections\r\n"


class ConnectionLimits(NamedTuple):
    """What the listener allows."""

    connections: int
    transfer_seconds: float = 60.0  # without progress; 0 = no limit
    held_bytes: int = HELD_BYTES  # of commands not executed and replies not sent


class _Peer:
    """One connection."""

    __slots__ = (
        "decoder",
        "fd",
        "held",
        "is_closing",
        "is_ready",
        "progress",
        "received",
        "recv",
        "send",
        "session",
        "since",
        "socket",
        "unsent",
    )

    def __init__(self, connection: socket.socket, session: ClientSession) -> None:
        self.socket = connection
        self.fd = connection.fileno()
        self.recv = connection.recv
        self.send = connection.send
        self.decoder: Decoder | None = None  # The first byte decides.
        self.session = session
        self.unsent: memoryview | None = None
        self.is_ready = False  # It has commands to execute, and waits for its turn.
        self.is_closing = False  # It is closed when all is sent.
        # While something is held: how many bytes, since when, how much was received or
        # sent since then, and when the last of it was.
        self.held = 0
        self.since = 0.0
        self.received = 0
        self.progress = 0.0


class Listener:
    """Serves clients in its own thread, from `start` until `drain` or `close`."""

    def __init__(  # noqa: PLR0913 - By keyword.
        self,
        listening: ListeningSocket,
        service: Service,
        decoder_for: Callable[[bytes], Decoder],
        *,
        limits: ConnectionLimits,
        stats: CommandStats,
        log: CommandLog,
        sample: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """
        Prepare; nothing is accepted before `start`.

        Args:
            listening: Closed by the listener when it drains.
            service: Executes the commands.
            decoder_for: Returns what reads a connection, by its first bytes.
            limits: What is allowed.
            stats: What is counted.
            log: Gets the commands.
            sample: Gets one key in 64 of those that were read.
        """
        self._listening = listening
        self._service = service
        self._decoder_for = decoder_for
        self._limits = limits
        self._stats = stats
        self._log = log
        self._sample = sample
        self._peers: dict[int, _Peer] = {}
        self._ready: deque[_Peer] = deque()
        # Those that hold something; the one without progress for the longest time first.
        self._waiting: dict[int, _Peer] = {}
        self._held = 0
        self._calls: deque[Callable[[], None]] = deque()
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, _IN)
        self._epoll.register(listening.socket.fileno(), _IN)
        self._is_listening = True
        self._accept_at = 0.0  # 0: now
        self._next_tick = 0.0
        self._next_log: dict[str, float] = {}  # by event
        self._turn_started = 0.0  # 0: waits for epoll
        self._failing_since = 0.0  # 0: the last turn did not raise
        self._rested = 0.0  # when it waited last
        self._deadline: float | None = None  # of the drain
        self._drain_seconds: float | None = None
        self._pulse: tuple[float, Callable[[], None]] | None = None
        self._next_pulse = 0.0
        self._thread = threading.Thread(target=self._run, name="memcache", daemon=True)

    # --- From other threads ------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def set_pulse(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function at an interval, in the thread; before `start`."""
        self._pulse = seconds, function

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the thread, between two turns; it must not raise."""
        self._calls.append(function)
        self._wake()

    def drain(self, seconds: float = 3.0) -> None:
        """
        Begin to end: accept no connection, answer what has arrived, close.

        Args:
            seconds: After which the connections that are left are cut.
        """
        self._drain_seconds = seconds
        self._wake()

    def close(self) -> None:
        """Wait until the thread has ended; it is drained if it was not."""
        if self._drain_seconds is None:
            self.drain()
        if self._thread.ident is None:
            self._run()  # It was never started.
        else:
            self._thread.join()

    def stalled_seconds(self) -> float:
        """Return for how long a turn has taken, or all turns have failed; 0 if it waits."""
        started = self._failing_since or self._turn_started
        return time.monotonic() - started if started else 0.0

    @property
    def is_failing(self) -> bool:
        """Whether the last turn raised, because of a bug."""
        return self._failing_since > 0

    def _wake(self) -> None:
        with suppress(OSError):  # The loop has ended.
            os.eventfd_write(self._wake_fd, 1)

    # --- The loop ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                try:
                    self._turn()
                    self._failing_since = 0.0
                except Exception:
                    self._failing_since = self._failing_since or time.monotonic()
                    if self._may_log("failed"):
                        _logger.exception("memcache.failed command=%s", "-")
                    time.sleep(_FAILURE_PAUSE)
        finally:
            self._end()

    def _is_over(self) -> bool:
        if self._drain_seconds is None:
            return False
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._drain_seconds
            self._stop_listening()
        return not self._peers or now >= self._deadline

    def _turn(self) -> None:  # noqa: C901 - The hot path.
        """Let every connection that has something to do have its turn."""
        ready, peers = self._ready, self._peers
        events, now = self._wait()
        for fd, mask in events:
            peer = peers.get(fd)
            if peer is None:
                self._take_event(fd)
            elif peer.unsent is not None:
                self._guarded(self._send_rest, peer)
            elif not peer.is_ready:
                self._guarded(self._receive, peer)
            elif mask & ~_IN:
                self._close(peer)  # Reset: the replies are not read.
        for _ in range(len(ready)):
            peer = ready.popleft()
            peer.is_ready = False
            if peers.get(peer.fd) is peer:
                self._guarded(self._serve, peer)
        if self._deadline is not None:
            self._drain_peers()
        if now >= self._next_tick or self._calls:
            self._tick(now)

    def _wait(self) -> tuple[list[tuple[int, int]], float]:
        """Wait for events; return them and the time."""
        self._turn_started = 0.0
        asked = time.monotonic()
        if asked - self._rested > _BUSY_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested = asked
        timeout = self._timeout()
        # After a failure, the end of a turn tells whether it goes on.
        if self._ready or self._failing_since:
            timeout = 0
        events = self._epoll.poll(timeout, _EVENTS)
        now = self._turn_started = time.monotonic()
        if now - asked > _REST_SECONDS:
            self._rested = now
        return events, now

    def _timeout(self) -> float:
        """Return the seconds until something is to be done without an event."""
        if self._deadline is not None:
            return _DRAIN_STEP
        now = time.monotonic()
        # If there is nothing to watch, the loop sleeps.
        times = [self._next_tick] if self._waiting or self._accept_at else []
        if self._pulse is not None:
            times.append(self._next_pulse)
        flush = self._service.seconds_to_flush()
        if flush is not None:
            times.append(now + flush)
        if not times:
            return -1.0
        until = min(times)
        self._next_tick = min(self._next_tick, until)
        return min(max(0.0, until - now), _SLEEP_SECONDS_MAX)

    def _tick(self, now: float) -> None:
        while self._calls:
            self._calls.popleft()()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_SECONDS
            self._cut_slow(now)
        if self._accept_at and now >= self._accept_at and self._is_listening:
            self._accept_at = 0.0
            self._epoll.modify(self._listening.socket.fileno(), _IN)
        self._service.flush_if_due()
        if self._pulse is not None and now >= self._next_pulse:
            self._next_pulse = now + self._pulse[0]
            self._pulse[1]()

    def _take_event(self, fd: int) -> None:
        if fd == self._wake_fd:
            with suppress(OSError):
                os.eventfd_read(fd)
        elif self._is_listening and fd == self._listening.socket.fileno():
            self._accept()

    def _guarded(self, step: Callable[[_Peer], None], peer: _Peer) -> None:
        """Do something with a connection; a bug closes it and no other."""
        try:
            step(peer)
        except OSError:  # The client has gone.
            self._close(peer)
        except Exception:
            if self._may_log("failed"):
                _logger.exception("memcache.failed command=%s", "-")
            self._close(peer)

    # --- Connections -------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, address = self._listening.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self._pause_accepting(error)
                return  # Or the client has gone.
            stats = self._stats
            if stats.connections >= self._limits.connections:
                self._turn_away(connection)
                continue
            connection.setblocking(False)  # noqa: FBT003 - The library's.
            session = self._service.session(address[0] if address else "unix")
            peer = _Peer(connection, session)
            self._peers[peer.fd] = peer
            self._epoll.register(peer.fd, _IN)
            stats.connections += 1
            stats.connections_total += 1

    def _turn_away(self, connection: socket.socket) -> None:
        self._stats.connections_refused += 1
        with connection, suppress(OSError):
            connection.setblocking(False)  # noqa: FBT003 - The library's.
            connection.send(_REFUSAL)
        if self._may_log("full"):
            _logger.warning("memcache.full open=%d", self._stats.connections)

    def _pause_accepting(self, error: OSError) -> None:
        """Try again later: the socket stays readable, and the loop would spin."""
        self._epoll.modify(self._listening.socket.fileno(), 0)
        self._accept_at = time.monotonic() + _ACCEPT_PAUSE
        self._next_tick = min(self._next_tick, self._accept_at)
        if self._may_log("accept_failed"):
            _logger.warning("memcache.accept_failed error=%r", str(error))

    def _may_log(self, event: str) -> bool:
        now = time.monotonic()
        if now < self._next_log.get(event, 0.0):
            return False
        self._next_log[event] = now + _LOG_SECONDS
        return True

    def _close(self, peer: _Peer) -> None:
        if self._peers.pop(peer.fd, None) is None:
            return
        self._forget(peer)
        self._stats.connections -= 1
        with suppress(OSError):
            self._epoll.unregister(peer.fd)
        peer.socket.close()

    def _close_gently(self, peer: _Peer) -> None:
        """Close so that the client gets what was sent, although it sends more."""
        with suppress(OSError):
            peer.socket.shutdown(socket.SHUT_WR)
            while peer.recv(_RECEIVE_BYTES):
                if self._deadline is None:
                    break
        self._close(peer)

    # --- One turn of a connection ------------------------------------------------------

    def _receive(self, peer: _Peer) -> None:
        try:
            data = peer.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            if self._deadline is not None and not peer.held:
                self._close_gently(peer)
            return
        if not data:
            self._close(peer)
            return
        size = len(data)
        self._stats.bytes_in += size
        peer.received += size
        if peer.decoder is None:
            peer.decoder = self._decoder_for(data)
            peer.decoder.wants_credentials = peer.session.wants_credentials
        peer.decoder.receive(data)
        self._serve(peer)

    def _serve(self, peer: _Peer) -> None:  # noqa: C901, PLR0912, PLR0915 - The hot path.
        """Execute commands and send the replies."""
        decoder, session = peer.decoder, peer.session
        if decoder is None:
            return
        next_command = decoder.next_command
        execute, answers, log = self._service.execute, self._stats.answers, self._log
        timer = time.perf_counter_ns
        replies: list[bytes] = []
        size = 0
        is_over = False
        if session.access is not self._service.access:
            session.renew(self._service.access)
            decoder.wants_credentials = session.wants_credentials
        for _ in range(_COMMANDS_PER_TURN):
            command = next_command()
            if command is None:
                is_over = True
                break
            started = timer()
            result = execute(session, command)
            data = command.reply(command, result)
            took = timer() - started
            answers[command.name, result_of(command, result)].observe(started, took)
            if took > log.threshold_ns:
                log.done(session.remote, command, result, started, took, len(data))
            if not took & SAMPLE_MASK:
                self._sample_key(command, result)
            if isinstance(command, Authenticate):
                decoder.wants_credentials = session.wants_credentials
            if session.is_broken or (isinstance(command, Simple) and command.closes):
                peer.is_closing = True
            if data:
                replies.append(data)
                size += len(data)
                if size >= _REPLY_BYTES:
                    break
            if peer.is_closing:
                break
        if replies:
            self._send(peer, replies[0] if len(replies) == 1 else b"".join(replies))
        if peer.unsent is not None:
            return  # It goes on when all is sent.
        if peer.is_closing:
            self._close_gently(peer)
            return
        if not is_over:
            peer.is_ready = True
            self._ready.append(peer)
        self._hold(peer)

    def _sample_key(self, command: Command, result: Result) -> None:
        if isinstance(command, Get) and result.status is Status.HIT:
            self._sample(command.key)

    def _send(self, peer: _Peer, data: bytes) -> None:
        try:
            sent = peer.send(data)
        except BlockingIOError:
            sent = 0
        self._stats.bytes_out += sent
        if sent < len(data):
            # A copy: what is sent no longer takes memory.
            peer.unsent = memoryview(data[sent:])
            self._epoll.modify(peer.fd, _OUT)
            self._hold(peer)

    def _send_rest(self, peer: _Peer) -> None:
        rest = peer.unsent
        if rest is None:
            return
        try:
            sent = peer.send(rest)
        except BlockingIOError:
            return
        self._stats.bytes_out += sent
        if sent < len(rest):
            peer.unsent = rest[sent:]
            peer.received += sent
            self._hold(peer)
            return
        peer.unsent = None
        if peer.is_closing:
            self._close_gently(peer)
            return
        self._epoll.modify(peer.fd, _IN)
        self._forget(peer)
        self._serve(peer)  # What it has sent before, if it was not all executed.

    # --- What is held ------------------------------------------------------------------

    def _hold(self, peer: _Peer) -> None:
        """Note how many bytes are held for a connection that has just made progress."""
        count = peer.decoder.buffered if peer.decoder else 0
        if peer.unsent is not None:
            # All of it is kept as long as a part is left.
            count += len(cast("bytes", peer.unsent.obj))
        if not count:
            self._forget(peer)
            return
        now = time.monotonic()
        if peer.is_ready or not peer.held:
            peer.since, peer.received = now, 0
        self._held += count - peer.held
        peer.held, peer.progress = count, now
        self._waiting.pop(peer.fd, None)
        self._waiting[peer.fd] = peer
        while self._held > self._limits.held_bytes:
            oldest = next(iter(self._waiting.values()))
            self._close(oldest)
            if self._may_log("memory_full"):
                _logger.warning("memcache.memory_full held=%d", self._held)

    def _forget(self, peer: _Peer) -> None:
        if peer.held:
            self._held -= peer.held
            peer.held = 0
            self._waiting.pop(peer.fd, None)

    def _cut_slow(self, now: float) -> None:
        """Close connections that have made too little progress for too long."""
        limit = self._limits.transfer_seconds
        if not limit:
            return
        slow = []
        for peer in self._waiting.values():
            elapsed = now - peer.since
            is_slow = (
                elapsed > limit and peer.received < elapsed * _BYTES_PER_SECOND_MIN
            )
            if not peer.is_ready and (is_slow or now - peer.progress > limit):
                slow.append(peer)
        for peer in slow:
            self._close(peer)

    # --- The end -----------------------------------------------------------------------

    def _stop_listening(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._epoll.unregister(self._listening.socket.fileno())
            self._listening.close()

    def _drain_peers(self) -> None:
        """Close the connections that have nothing left to do."""
        for peer in list(self._peers.values()):
            if not peer.is_ready and peer.unsent is None:
                self._guarded(self._receive, peer)

    def _end(self) -> None:
        self._turn_started = 0.0
        self._stop_listening()
        cut = len(self._peers)
        for peer in list(self._peers.values()):
            self._close(peer)
        self._epoll.close()
        os.close(self._wake_fd)
        _logger.info("memcache.ended cut=%d", cut)
