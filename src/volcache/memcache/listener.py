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
import select
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.memcache.command_log import result_of
from volcache.memcache.commands import Authenticate, Get, Simple, Status
from volcache.memcache.loop import IN, EventLoop
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
_ACCEPTS_PER_TURN: Final = 16
# Between two looks for clients that make no progress.
_TICK_SECONDS: Final = 1.0
# While no connection can be accepted for want of descriptors or memory.
_ACCEPT_PAUSE: Final = 0.5
# Of commands that are not executed and replies that are not sent; at least a few values.
HELD_BYTES: Final = 64 << 20
# A client that sends less in each second of an incomplete command is disconnected.
_BYTES_PER_SECOND_MIN: Final = 500
_DRAIN_STEP: Final = 0.01
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REFUSAL: Final = b"ERROR Too many open connections\r\n"


class ConnectionLimits(NamedTuple):
    """What the listener allows."""

    connections: int
    transfer_seconds: float = 60.0  # without progress; 0 = no limit
    held_bytes: int = HELD_BYTES  # of commands not executed and replies not sent


@dataclass(slots=True, eq=False)
class Peer:
    """One connection."""

    socket: socket.socket
    fd: int
    session: ClientSession
    decoder: Decoder | None = None  # The first byte decides.
    unsent: memoryview[int] | None = None
    is_ready: bool = False  # It has commands to execute, and waits for its turn.
    is_closing: bool = False  # It is closed when all is sent.
    # While something is held: how many bytes, since when, how much was received or sent
    # since then, and when the last of it was.
    held: int = 0
    since: float = 0.0
    received: int = 0
    progress: float = 0.0


class HeldBytes:
    """Counts the bytes that are held: commands not executed and replies not sent."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.total = 0
        # The one without progress for the longest time first.
        self._peers: dict[int, Peer] = {}

    def update(self, peer: Peer, now: float) -> bool:
        """Count what is held for a connection that has just made progress; if anything."""
        count = peer.decoder.buffered if peer.decoder else 0
        if peer.unsent is not None:
            # All of it is kept as long as a part is left.
            count += len(peer.unsent.obj)  # type: ignore[arg-type]
        if peer.is_ready or not peer.held:
            peer.since, peer.received = now, 0
        if peer.held:
            self.forget(peer)
        if not count:
            return False
        self.total += count
        peer.held, peer.progress = count, now
        self._peers[peer.fd] = peer
        return True

    def forget(self, peer: Peer) -> None:
        """Count nothing for a connection."""
        if self._peers.pop(peer.fd, None) is not None:
            self.total -= peer.held
            peer.held = 0

    def oldest(self) -> Peer:
        """Return the connection without progress for the longest time."""
        return next(iter(self._peers.values()))

    def slow(self, now: float, limit: float) -> list[Peer]:
        """Return those that have made too little progress for too long."""

        def is_slow(peer: Peer) -> bool:
            elapsed = now - peer.since
            sends_little = peer.received < elapsed * _BYTES_PER_SECOND_MIN
            return now - peer.progress > limit or (elapsed > limit and sends_little)

        return [
            peer for peer in self._peers.values() if not peer.is_ready and is_slow(peer)
        ]


class Listener(EventLoop):
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
        super().__init__("memcache")
        self._listening = listening
        self._service = service
        self._decoder_for = decoder_for
        self._limits = limits
        self._stats = stats
        self._log = log
        self._sample = sample
        self._peers: dict[int, Peer] = {}
        self._ready: deque[Peer] = deque()
        self._held = HeldBytes()
        self._accept_fd = listening.socket.fileno()  # -1: no more
        self._epoll.register(self._accept_fd, IN)
        self._deadline: float | None = None  # of the drain
        self._drain_seconds: float | None = None

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
        self._join()

    # --- Turns -------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._drain_seconds is None:
            return False
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._drain_seconds
            self._stop_listening()
        return not self._peers or now >= self._deadline

    def _timeout(self, now: float) -> float:
        flush = self._service.seconds_to_flush()
        if flush is not None:
            self._timers[self._service.flush_if_due] = now + flush
        if self._ready:
            return 0
        return -1 if self._deadline is None else _DRAIN_STEP

    def _turn(self, events: list[tuple[int, int]]) -> None:  # noqa: C901 - The hot path.
        """Let every connection that has something to do have its turn."""
        ready, peers = self._ready, self._peers
        for fd, mask in events:
            peer = peers.get(fd)
            if peer is None:
                if fd == self._accept_fd:
                    self._accept()
            elif peer.unsent is not None:
                self._guarded(self._send_rest, peer)
            elif not peer.is_ready:
                self._guarded(self._receive, peer)
            elif mask & ~IN:
                self._close(peer)  # Reset: the replies are not read.
        for _ in range(len(ready)):
            peer = ready.popleft()
            peer.is_ready = False
            if peers.get(peer.fd) is peer:
                self._guarded(self._serve, peer)
        # Those that have nothing left to do are closed.
        for peer in [] if self._deadline is None else list(peers.values()):
            if not peer.is_ready and peer.unsent is None:
                self._guarded(self._receive, peer)

    def _guarded(self, step: Callable[[Peer], None], peer: Peer) -> None:
        """Do something with a connection; a bug closes it and no other."""
        try:
            step(peer)
        except OSError:  # The client has gone.
            self._close(peer)
        except Exception:
            if self._may_log("failed"):
                _logger.exception("memcache.failed command=%s", "-")
            self._close(peer)

    def _stop_listening(self) -> None:
        if self._accept_fd >= 0:
            self._epoll.unregister(self._accept_fd)
            self._accept_fd = -1
            self._listening.close()

    def _end(self) -> None:
        self._stop_listening()
        cut = len(self._peers)
        for peer in list(self._peers.values()):
            self._close(peer)
        _logger.info("memcache.ended cut=%d", cut)

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
            connection.setblocking(False)  # noqa: FBT003 - The library's.
            if self._stats.connections >= self._limits.connections:
                self._turn_away(connection)
                continue
            session = self._service.session(address[0] if address else "unix")
            peer = Peer(connection, connection.fileno(), session)
            self._peers[peer.fd] = peer
            self._epoll.register(peer.fd, IN)
            self._stats.connections += 1
            self._stats.connections_total += 1

    def _turn_away(self, connection: socket.socket) -> None:
        self._stats.connections_refused += 1
        with connection, suppress(OSError):
            connection.send(_REFUSAL)
        if self._may_log("full"):
            _logger.warning("memcache.full open=%d", self._stats.connections)

    def _pause_accepting(self, error: OSError) -> None:
        """Try again later: the socket stays readable, and the loop would spin."""
        self._epoll.modify(self._accept_fd, 0)
        self._timers[self._resume_accepting] = time.monotonic() + _ACCEPT_PAUSE
        if self._may_log("accept_failed"):
            _logger.warning("memcache.accept_failed error=%r", str(error))

    def _resume_accepting(self) -> None:
        if self._accept_fd >= 0:
            self._epoll.modify(self._accept_fd, IN)

    def _close(self, peer: Peer) -> None:
        if self._peers.pop(peer.fd, None) is None:
            return
        self._held.forget(peer)
        self._stats.connections -= 1
        with suppress(OSError):
            self._epoll.unregister(peer.fd)
        peer.socket.close()

    def _close_gently(self, peer: Peer) -> None:
        """Close so that the client gets what was sent, although it sends more."""
        with suppress(OSError):
            peer.socket.shutdown(socket.SHUT_WR)
            while peer.socket.recv(_RECEIVE_BYTES):
                if self._deadline is None:
                    break
        self._close(peer)

    # --- One turn of a connection ------------------------------------------------------

    def _receive(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(_RECEIVE_BYTES)
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

    def _serve(self, peer: Peer) -> None:
        """Execute commands and send the replies."""
        decoder, session = peer.decoder, peer.session
        if decoder is None:
            return  # It has sent nothing.
        if session.access is not self._service.access:
            session.renew(self._service.access)
            decoder.wants_credentials = session.wants_credentials
        replies, is_over = self._execute(peer, decoder)
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

    def _execute(self, peer: Peer, decoder: Decoder) -> tuple[list[bytes], bool]:
        """Execute the commands of one turn; return the replies, and if these were all."""
        session, next_command = peer.session, decoder.next_command
        execute, answers, log = self._service.execute, self._stats.answers, self._log
        timer = time.perf_counter_ns
        replies: list[bytes] = []
        size = 0
        for _ in range(_COMMANDS_PER_TURN):
            command = next_command()
            if command is None:
                return replies, True
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
            if data:
                replies.append(data)
                size += len(data)
            is_last = isinstance(command, Simple) and command.closes
            peer.is_closing = is_last or session.is_broken
            if peer.is_closing or size >= _REPLY_BYTES:
                break
        return replies, False

    def _sample_key(self, command: Command, result: Result) -> None:
        if isinstance(command, Get) and result.status is Status.HIT:
            self._sample(command.key)

    def _send(self, peer: Peer, data: bytes | memoryview[int]) -> None:
        """Send what the socket has room for, and keep the rest."""
        try:
            sent = peer.socket.send(data)
        except BlockingIOError:
            sent = 0
        self._stats.bytes_out += sent
        if sent == len(data):
            peer.unsent = None
        elif peer.unsent is None:
            # A copy: what is sent no longer takes memory.
            peer.unsent = memoryview(bytes(data[sent:]))
            self._epoll.modify(peer.fd, select.EPOLLOUT)
            self._hold(peer)
        elif sent:
            peer.unsent = peer.unsent[sent:]
            peer.received += sent
            self._hold(peer)

    def _send_rest(self, peer: Peer) -> None:
        if peer.unsent is not None:
            self._send(peer, peer.unsent)
        if peer.unsent is not None:
            return
        if peer.is_closing:
            self._close_gently(peer)
            return
        self._epoll.modify(peer.fd, IN)
        self._held.forget(peer)
        self._serve(peer)  # What it has sent before, if it was not all executed.

    # --- What is held ------------------------------------------------------------------

    def _hold(self, peer: Peer) -> None:
        """Count what is held for a connection that has just made progress."""
        now = time.monotonic()
        if not self._held.update(peer, now):
            return
        self._timers.setdefault(self._cut_slow, now + _TICK_SECONDS)
        while self._held.total > self._limits.held_bytes:
            self._close(self._held.oldest())
            if self._may_log("memory_full"):
                _logger.warning("memcache.memory_full held=%d", self._held.total)

    def _cut_slow(self) -> None:
        """Close connections that have made too little progress for too long."""
        now, limit = time.monotonic(), self._limits.transfer_seconds
        for peer in self._held.slow(now, limit) if limit else []:
            self._close(peer)
        if self._held.total:
            self._timers[self._cut_slow] = now + _TICK_SECONDS
