"""
memcached servers: which are up, connections, back-off.

A thread that answers requests calls a server only while it is up, and a call takes no
longer than the time-out. The first failure marks the server down. From then on it is
bypassed, and another thread reconnects: after half a second, then after 1, 2, 4 up to 30
seconds. So only that thread ever resolves a name, connects, or waits for a server that
hangs.

A server that is up has one connection for each loop, which never waits and is in C
(`HotClient`), and one for all other threads. When one fails, all are opened again.

Threads: a call in a thread that may wait has the lock of its server. Another thread waits
for it no longer than the time-out: together with its own call,
for two time-outs at most, and only if the call of another thread took almost one. Whoever
holds this lock waits for no other one; a thread that holds the lock of the store may wait
for this one.

This module does not interpret the items.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from volcache.hot.tier import HotCalls, HotStats

_logger: Final = logging.getLogger("volcache.hot")

PROBE_SECONDS_MIN: Final = 0.5
_PROBE_SECONDS_MAX: Final = 30.0
# The back-off is not reset for a server that fails sooner than this after it came up.
_STABLE_SECONDS: Final = 60.0
_VERSION: Final = b"VERSION "
_VERSION_BYTES: Final = 512  # of the reply, at most
_RECEIVED_BYTES: Final = 1 << 18  # at a time


class _ProtocolError(Exception):
    """This is no memcached."""


class Server:
    """One server: up with connections, or down and probed with back-off."""

    def __init__(
        self,
        address: str,
        number: int,
        client: HotCalls,
        timeout: float,
        stats: HotStats,
    ) -> None:
        """
        Start down; `probe` connects.

        Args:
            address: `host:port`, `[IPv6]:port` or the path of a unix socket.
            number: Of this server in `client`.
            client: Sends commands and parses replies.
            timeout: Of one call, in seconds.
            stats: Counts calls, failures and changes of state.
        """
        self.address = address
        self._number = number
        self._client = client
        self._timeout = timeout
        self._stats = stats
        self._lock = threading.Lock()  # held by a call, and to change what follows
        self._socket: socket.socket | None = None
        self._delay = PROBE_SECONDS_MIN
        self._probe_at = 0.0  # by time.monotonic()
        self._up_since = time.monotonic()
        self._is_logged_down = False

    @property
    def is_up(self) -> bool:
        """Whether there are connections."""
        return self._socket is not None

    def get(self, name: bytes) -> bytes | None:
        """Return an item; None if there is none, or the server failed or is down."""
        result, item = self._call(self._client.get_command(name), name)
        if result == "refused":
            self._stats.failures["refused"] += 1
        return item

    def set(self, name: bytes, item: bytes, expire: int) -> bool:
        """
        Store an item.

        Args:
            name: Of the item.
            item: Its value.
            expire: Seconds since the epoch; 0 = never.

        Returns:
            Whether it was stored. If it is too large, or there is no memory, the server has
            also deleted the item it had under this name.
        """
        result, _ = self._call(self._client.set_command(name, item, expire), None)
        self._stats.refused += result == "refused"
        return result == "stored"

    def _call(self, command: bytes, name: bytes | None) -> tuple[str, bytes | None]:
        """Send a command; return what `HotCalls.parse` does for its reply, or "down"."""
        if not self._lock.acquire(timeout=self._timeout):
            self._stats.failures["timeout"] += 1
            return "down", None  # It stays up: that call will end.
        try:
            if self._socket is None:
                return "down", None
            started_ns = time.perf_counter_ns()
            try:
                return self._exchange(self._socket, command, name)
            except (OSError, _ProtocolError) as error:
                self._mark_down(_kind_of(error))
                return "down", None
            finally:
                ns = time.perf_counter_ns() - started_ns
                self._stats.calls.observe(started_ns, ns)
        finally:
            self._lock.release()

    def _exchange(
        self, opened: socket.socket, command: bytes, name: bytes | None
    ) -> tuple[str, bytes | None]:
        deadline = time.monotonic() + self._timeout
        opened.settimeout(self._timeout)
        opened.sendall(command)
        received, result, item = b"", "", None
        while not result:
            received += _receive(opened, deadline)
            result, item = self._client.parse(received, name)
        if result == "protocol":
            raise _ProtocolError
        return result, item

    def _mark_down(self, kind: str) -> None:
        self._stats.failures[kind] += 1
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            was_stable = time.monotonic() - self._up_since > _STABLE_SECONDS
            self._delay = PROBE_SECONDS_MIN if was_stable else self._next_delay()
        self._probe_at = time.monotonic() + self._delay
        if not self._is_logged_down:
            self._is_logged_down = True
            self._stats.states += 1
            _logger.warning("hot.down server=%s kind=%s", self.address, kind)

    def _next_delay(self) -> float:
        return min(_PROBE_SECONDS_MAX, 2 * self._delay)

    def probe(self) -> None:
        """Connect if the server is down and its delay is over; may block."""
        kind = self._client.failure(self._number)
        with self._lock:  # A call that takes the server down sets the delay, too.
            if kind:
                self._mark_down(kind)
            if self._socket is not None or time.monotonic() < self._probe_at:
                return
        try:
            with ExitStack() as closing:
                for_loops = [
                    closing.enter_context(self._connect())
                    for _ in range(self._client.count)
                ]
                opened = self._connect()
                self._client.give(self._number, [one.fileno() for one in for_loops])
        except (OSError, _ProtocolError) as error:
            with self._lock:
                self._mark_down(_kind_of(error))
                self._delay = self._next_delay()
            return
        with self._lock:
            self._up_since = time.monotonic()
            self._socket = opened
            if self._is_logged_down:
                self._is_logged_down = False
                self._stats.states += 1
                _logger.warning("hot.up server=%s", self.address)

    def _connect(self) -> socket.socket:
        """Return a connection to what answers as memcached does."""
        deadline = time.monotonic() + self._timeout
        with ExitStack() as failing:
            if self.address.startswith("/"):
                opened = failing.enter_context(socket.socket(socket.AF_UNIX))
                opened.settimeout(self._timeout)
                opened.connect(self.address)
            else:
                host, _, port = self.address.rpartition(":")
                place = host.strip("[]"), int(port)
                opened = socket.create_connection(place, self._timeout)
                failing.enter_context(opened)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.sendall(b"version\r\n")
            _read_version(opened, deadline)
            failing.pop_all()
        return opened

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None


def _receive(opened: socket.socket, deadline: float) -> bytes:
    """Receive some bytes until a deadline, by time.monotonic()."""
    opened.settimeout(max(deadline - time.monotonic(), 1e-6))
    received = opened.recv(_RECEIVED_BYTES)
    if not received:
        raise ConnectionResetError
    return received


def _read_version(opened: socket.socket, deadline: float) -> None:
    """Read the reply to `version`; `deadline` by time.monotonic()."""
    answer = b""
    while not answer.endswith(b"\n"):
        answer += _receive(opened, deadline)
        is_version = answer.startswith(_VERSION[: len(answer)])
        if not is_version or len(answer) > _VERSION_BYTES:
            raise _ProtocolError


def _kind_of(error: Exception) -> str:
    """Return the kind under which a failure is counted and logged."""
    if isinstance(error, _ProtocolError):
        return "protocol"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return "refused"
    return "closed" if isinstance(error, ConnectionError) else "other"
