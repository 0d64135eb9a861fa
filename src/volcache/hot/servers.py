"""
memcached servers: connections, time-outs, back-off. The only import of pymemcache.

A thread that answers requests calls a server only while it is up, and a call takes no
longer than the time-out. The first failure marks the server down. From then on it is
bypassed, and another thread reconnects: after half a second, then after 1, 2, 4 up to 30
seconds. So only that thread ever resolves a name, connects, or waits for a server that
hangs.

pymemcache's own time-out restarts with each socket call, and a server that sends one byte
at a time could extend it without end. `_DeadlineSocket` bounds the calls together.

Threads: a client of pymemcache serves one thread at a time, so each server has a lock, held
for a call. A thread waits for it no longer than the time-out: together with its own call,
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
from typing import TYPE_CHECKING, Any, Final

from google_crc32c import value as crc32c
from pymemcache.client.base import Client
from pymemcache.client.rendezvous import RendezvousHash
from pymemcache.exceptions import (
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from volcache.hot.tier import HotStats

_logger: Final = logging.getLogger("volcache.hot")

_PROBE_SECONDS_MIN: Final = 0.5
_PROBE_SECONDS_MAX: Final = 30.0
# The back-off is not reset for a server that fails sooner than this after it came up.
_STABLE_SECONDS: Final = 60.0


class ServerDownError(Exception):
    """The server does not answer this call; `kind` is the kind of failure."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class RefusedError(Exception):
    """The server answered with an error: no memory, or the item is too large."""


class Servers:
    """All servers. A key belongs to one of them, also while that one is down."""

    def __init__(
        self, addresses: Sequence[str], timeout: float, stats: HotStats
    ) -> None:
        """Try to connect to each server; see `Server` for the arguments."""
        self._is_closed = False
        self._wake = threading.Event()
        self.by_address = {
            address: Server(address, timeout, stats, self._wake.set)
            for address in addresses
        }
        self._only = self.by_address[addresses[0]] if len(addresses) == 1 else None
        # The hash of pymemcache's HashClient, with a checksum in C. HashClient itself
        # moves the keys of a failed server to the others, where each of them is slower
        # than the disk until it has been promoted again.
        self._ring = RendezvousHash(
            list(addresses), hash_function=lambda text, _seed: crc32c(text.encode())
        )
        for server in self.by_address.values():
            server.probe()
        self._prober = threading.Thread(target=self._probe, name="hot", daemon=True)
        self._prober.start()

    def of(self, name: bytes) -> Server:
        """Return the server that an item belongs to."""
        if self._only is not None:
            return self._only
        return self.by_address[self._ring.get_node(name.decode())]

    @property
    def up(self) -> dict[str, bool]:
        """Whether each server is up, by its address."""
        return {address: server.is_up for address, server in self.by_address.items()}

    def _probe(self) -> None:
        while not self._is_closed:
            self._wake.wait(_PROBE_SECONDS_MIN / 5)
            self._wake.clear()
            for server in self.by_address.values():
                server.probe()

    def close(self) -> None:
        """Close the connections; the servers keep their items."""
        self._is_closed = True
        self._wake.set()
        self._prober.join()
        for server in self.by_address.values():
            server.close()


class Server:
    """One server: up with a connection, or down and probed with back-off."""

    def __init__(
        self, address: str, timeout: float, stats: HotStats, wake: Callable[[], None]
    ) -> None:
        """
        Start down; `probe` connects.

        Args:
            address: `host:port`, `[IPv6]:port` or the path of a unix socket.
            timeout: Of one call, in seconds.
            stats: Counts calls, failures and changes of state.
            wake: Called when the server should be probed at once.
        """
        self.address = address
        self._wake = wake
        self._timeout = timeout
        self._stats = stats
        self._lock = threading.Lock()  # held by a call, and to change what follows
        self._connection: tuple[Client, _DeadlineSockets] | None = None
        self._delay = _PROBE_SECONDS_MIN
        self._probe_at = 0.0  # by time.monotonic()
        self._up_since = time.monotonic()
        self._is_logged_down = False

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def get(self, name: bytes) -> bytes | None:
        """
        Return an item; None if there is none.

        Raises:
            ServerDownError: The server is down, perhaps since this call.
            RefusedError: The server answered with an error.
        """
        item: bytes | None = self._call(lambda client: client.get(name))
        return item

    def set(self, name: bytes, item: bytes, expire: int) -> bool:
        """
        Store an item.

        Args:
            name: memcached's key.
            item: Its value.
            expire: Seconds since the epoch; 0 = never.

        Returns:
            Whether it was stored.

        Raises:
            ServerDownError: The server is down, perhaps since this call.
            RefusedError: The item is too large or there is no memory. The server has
                also deleted the item it had under this name.
        """
        is_stored: bool = self._call(
            lambda client: client.set(name, item, expire=expire)
        )
        return is_stored

    def _call(self, command: Callable[[Client], Any]) -> Any:  # noqa: ANN401
        if not self._lock.acquire(timeout=self._timeout):
            self._stats.failures["timeout"] += 1
            raise ServerDownError("timeout")  # It stays up: that call will end.
        try:
            return self._call_alone(command)
        finally:
            self._lock.release()

    def _call_alone(self, command: Callable[[Client], Any]) -> Any:  # noqa: ANN401
        connection = self._connection
        if connection is None:
            raise ServerDownError("down")
        client, sockets = connection
        if client.sock is None:
            # pymemcache would reconnect here, in the thread that answers requests.
            self._mark_down("closed")
            raise ServerDownError("closed")
        sockets.set_deadline()
        started_ns = time.perf_counter_ns()
        try:
            return command(client)
        except MemcacheUnexpectedCloseError as error:
            self._mark_down("closed")
            raise ServerDownError("closed") from error
        except MemcacheServerError as error:
            # The server is healthy, but pymemcache has closed the connection.
            self._reconnect()
            raise RefusedError from error
        except Exception as error:
            # A server that answers anything else than memcached makes pymemcache raise
            # anything: KeyError for a key that was not requested, for example.
            kind = _kind_of(error)
            self._mark_down(kind)
            raise ServerDownError(kind) from error
        finally:
            self._stats.calls.observe(started_ns, time.perf_counter_ns() - started_ns)

    def _reconnect(self) -> None:
        """Mark the server down for the time of a reconnect; this is not a failure."""
        self._connection = None
        self._probe_at = 0.0
        self._wake()

    def _mark_down(self, kind: str) -> None:
        self._stats.failures[kind] += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[0].close()
            was_stable = time.monotonic() - self._up_since > _STABLE_SECONDS
            self._delay = _PROBE_SECONDS_MIN if was_stable else self._next_delay()
        self._probe_at = time.monotonic() + self._delay
        if not self._is_logged_down:
            self._is_logged_down = True
            self._stats.states += 1
            _logger.warning("hot.down server=%s kind=%s", self.address, kind)

    def _next_delay(self) -> float:
        return min(_PROBE_SECONDS_MAX, 2 * self._delay)

    def probe(self) -> None:
        """Connect if the server is down and its delay is over; may block."""
        with self._lock:  # A call that takes the server down sets the delay, too.
            if self._connection is not None or time.monotonic() < self._probe_at:
                return
        sockets = _DeadlineSockets(self._timeout)
        client = Client(
            _socket_address(self.address),
            connect_timeout=self._timeout,
            timeout=self._timeout,
            no_delay=True,
            socket_module=sockets,
            default_noreply=False,
        )
        sockets.set_deadline()
        try:
            client.version()
        except Exception as error:  # noqa: BLE001 - As above.
            client.close()
            with self._lock:
                self._mark_down(_kind_of(error))
                self._delay = self._next_delay()
            return
        with self._lock:
            self._up_since = time.monotonic()
            self._connection = (client, sockets)
            if self._is_logged_down:
                self._is_logged_down = False
                self._stats.states += 1
                _logger.warning("hot.up server=%s", self.address)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection[0].close()


def _socket_address(text: str) -> str | tuple[str, int]:
    """Return an address in the form pymemcache expects."""
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _kind_of(error: Exception) -> str:
    """Return the kind under which a failure is counted and logged."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return "refused"
    if isinstance(error, MemcacheUnexpectedCloseError | ConnectionError):
        return "closed"
    if isinstance(error, OSError):
        return "other"
    return "protocol"


class _DeadlineSocket(socket.socket):
    """A socket whose calls together end at a deadline."""

    deadline = 0.0  # by time.monotonic()

    def _set_timeout(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)

    def connect(self, address: Any) -> None:  # noqa: ANN401 - As in the base class.
        self._set_timeout()
        super().connect(address)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ANN401
        self._set_timeout()
        super().sendall(data, flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._set_timeout()
        return super().recv(size, flags)


class _DeadlineSockets:
    """Replaces the module `socket` in pymemcache; its sockets share one deadline."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._deadline = 0.0
        self._socket: _DeadlineSocket | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - Any name of the module.
        return getattr(socket, name)

    def socket(self, *arguments: int) -> _DeadlineSocket:
        """Create a socket with the present deadline."""
        created = _DeadlineSocket(*arguments)
        created.deadline = self._deadline
        self._socket = created
        return created

    def set_deadline(self) -> None:
        """Let the calls from now on take `timeout` seconds together."""
        self._deadline = time.monotonic() + self._timeout
        if self._socket is not None:
            self._socket.deadline = self._deadline
