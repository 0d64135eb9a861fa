"""Connections of the client for threads: sockets with deadlines, and their pools."""

from __future__ import annotations

import math
import select
import socket
import ssl
import sys
import time
from collections import deque
from contextlib import suppress
from functools import cache
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, Final

from volcache_client.errors import PoolTimeoutError
from volcache_client.http1 import RECEIVE_BYTES, answer_error, connect_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache_client.errors import CacheError
    from volcache_client.nodes import Address
    from volcache_client.pipelines import Exchange

_NEVER: Final = float("inf")
_IDLE_SECONDS_MAX: Final = 60.0
_RETRY_SECONDS: Final = 0.005
_POLL_MILLISECONDS_MAX: Final = 1_000_000_000
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# A server may refuse a body before it has all of it, answer, and close.
_REFUSES: Final = (
    BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError,
)  # fmt: skip


class Connection:
    """
    A connected socket, for one exchange at a time; see `HttpConnection`.

    Deadlines are by `time.monotonic()`.

    Attributes:
        is_reusable: Whether another request may be sent after this exchange.
    """

    def __init__(self, raw: socket.socket) -> None:
        """Take over a socket, with TLS or without."""
        self._raw: Final = raw
        # Each system call lets another thread take the lock of the interpreter, which costs
        # more than the call. A socket with a timeout makes two for a `send` or `recv`, and
        # one to set it; one that does not block makes one, and `poll` waits for the answer.
        raw.setblocking(False)  # noqa: FBT003
        self._is_plain: Final = not isinstance(raw, ssl.SSLSocket)
        self._readable: Final = select.poll()
        self._readable.register(raw, select.POLLIN)
        self._exchange: Exchange
        self._deadline: Callable[[], float]
        self.is_reusable = False

    async def send(self, exchange: Exchange, deadline: Callable[[], float]) -> None:
        """Send a request; see `HttpConnection`."""
        self.is_reusable = False
        self._exchange = exchange
        self._deadline = deadline
        try:
            if self._send(exchange.first_part()):
                return
            for part in exchange.more_parts():
                if self._send(part):
                    return
        except _REFUSES:
            return
        exchange.is_sent = True

    def _send(self, part: bytes | memoryview) -> bool:
        """Send a part; return whether the answer has begun before its end."""
        view = memoryview(part)
        until = self._deadline()
        while True:
            try:
                view = view[self._raw.send(view) :]
            except _NOT_NOW as reason:
                reads = isinstance(reason, ssl.SSLWantReadError)
                writable = select.poll()
                events = select.POLLIN if reads else select.POLLIN | select.POLLOUT
                writable.register(self._raw, events)
                _wait(writable, until)
                self._receive()
                if self._exchange.status:
                    return True
            if not view:
                return False

    async def receive(self, wanted: int) -> None:
        """Receive a part of the answer; see `HttpConnection`."""
        while not self._exchange.has(wanted):
            until = self._deadline()
            if self._is_plain:  # TLS may have bytes that `poll` does not see.
                _wait(self._readable, until)
            elif time.monotonic() >= until:
                raise TimeoutError
            while not self._receive():
                _wait(self._readable, until)
        self.is_reusable = self._exchange.is_reusable

    def _receive(self) -> bool:
        """Receive a part of an answer; return whether there was one."""
        try:
            data = self._raw.recv(RECEIVE_BYTES)
        except _NOT_NOW:
            return False
        self._exchange.receive(data)
        return True

    @property
    def is_idle(self) -> bool:
        """Whether the server has neither closed the connection nor sent anything."""
        return not self._readable.poll(0)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._raw.close()


def _wait(poll: select.poll, deadline: float) -> None:
    """Return when a socket is ready; raise TimeoutError after the deadline."""
    left = deadline - time.monotonic()
    milliseconds = min(math.ceil(1000 * left), _POLL_MILLISECONDS_MAX)
    if left <= 0 or not poll.poll(milliseconds):
        raise TimeoutError


def connect(
    address: Address, deadline: float, context: ssl.SSLContext | None
) -> Connection:
    """
    Return a connection.

    The time is divided between the addresses of a host. The look-up of its name is not
    bounded: the system does it.

    Args:
        address: Of the node.
        deadline: By `time.monotonic()`.
        context: For https.

    Raises:
        OSError: Of the last address of the host; a `TimeoutError` after the deadline.
    """
    last: OSError = TimeoutError("no connection in time")
    targets = resolve(address)
    for index, (family, target) in enumerate(targets):
        share = (deadline - time.monotonic()) / (len(targets) - index)
        raw = socket.socket(family, socket.SOCK_STREAM)
        try:
            return Connection(_open(raw, target, share, address.host, context))
        except BaseException as error:
            raw.close()
            if not isinstance(error, OSError):
                raise
            last = error
    raise last


def resolve(address: Address) -> list[tuple[int, Any]]:
    """
    Return families and addresses of a node.

    Raises:
        OSError: There are none.
        UnicodeError: Of its name.
    """
    if address.socket_path:
        return [(socket.AF_UNIX, address.socket_path)]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, target) for family, _, _, _, target in found]


def _open(
    raw: socket.socket,
    target: Any,  # noqa: ANN401 - Depends on the family.
    seconds: float,
    host: str,
    context: ssl.SSLContext | None,
) -> socket.socket:
    """Return the socket when it is connected, TLS included."""
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no connection in time")
        raw.settimeout(left)
        try:
            raw.connect(target)
        except BlockingIOError:  # The queue of a unix socket is full.
            time.sleep(min(left, _RETRY_SECONDS))
        else:
            break
    if raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return raw
    raw.settimeout(max(until - time.monotonic(), _RETRY_SECONDS))
    return context.wrap_socket(raw, server_hostname=host)


def tls_context(
    address: Address, context: ssl.SSLContext | None
) -> ssl.SSLContext | None:
    """Return what verifies a server of https; None for http."""
    return context or _default_context() if address.scheme == "https" else None


@cache
def _default_context() -> ssl.SSLContext:
    """Return a context with the certificates of the system, which takes long to make."""
    return ssl.create_default_context()


class Pool:
    """
    Connections to one node; used by all threads; see `HttpPool`.

    An idle one is closed after a minute.
    """

    def __init__(
        self,
        address: Address,
        size: int,
        connect_timeout: float,
        context: ssl.SSLContext | None,
        limit: int = sys.maxsize,
    ) -> None:
        """
        Open nothing yet.

        Args:
            address: Of the node.
            size: How many connections there may be.
            connect_timeout: For each, TLS included, seconds.
            context: For https; None: the certificates of the system.
            limit: The most bytes of a value that is read as a whole.
        """
        self.limit: Final = limit
        self.name: Final = address.name
        self.host: Final = address.host_header
        self._address: Final = address
        self._size: Final = size
        self._connect_timeout: Final = connect_timeout
        self._context: Final = tls_context(address, context)
        self._lock: Final = Lock()
        self._freed: Final = Condition(self._lock)
        self._idle: Final[deque[tuple[float, Connection]]] = deque()
        self._used = self._waiting = 0
        self._is_closed = False

    @property
    def connections(self) -> int:
        """How many are in use or kept."""
        return self._used + len(self._idle)

    def clock(self) -> float:
        """Return the time of deadlines."""
        return time.monotonic()

    def error_of(self, error: OSError) -> CacheError:
        """Return the error of the client for an exchange that failed."""
        return answer_error(self.name, error)

    async def acquire(self, deadline: float) -> Connection | None:
        """Return the idle connection used last, or None; see `HttpPool`."""
        with self._lock:
            if self._used >= self._size:
                self._wait(deadline)
            self._used += 1
        try:
            while self._idle:
                with suppress(IndexError):  # Another thread was faster.
                    _, connection = self._idle.pop()
                    if connection.is_idle:
                        return connection
                    connection.close()
        except BaseException:
            self.release(None)
            raise
        return None

    def _wait(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        self._waiting += 1
        try:
            is_free = self._freed.wait_for(lambda: self._used < self._size, left)
        finally:
            self._waiting -= 1
        if not is_free:
            text = f"all {self._size} connections are in use"
            raise PoolTimeoutError(self.name, text)

    async def open(self, deadline: float) -> Connection:
        """Open a connection; see `HttpPool`."""
        until = min(deadline, time.monotonic() + self._connect_timeout)
        try:
            return connect(self._address, until, self._context)
        except (OSError, ValueError) as error:  # The latter of a name.
            raise connect_error(self.name, error) from error

    def release(self, connection: Connection | None) -> None:
        """Take a connection back; see `HttpPool`."""
        if connection is not None and not connection.is_reusable:
            connection.close()
            connection = None
        now = time.monotonic()
        with self._lock:
            if connection is not None:
                self._idle.append((now, connection))
            self._used -= 1
            if self._waiting:
                self._freed.notify()
        self._close_idle(_NEVER if self._is_closed else now - _IDLE_SECONDS_MAX)

    def _close_idle(self, before: float) -> None:
        """Close what was given back before a time; takes no lock."""
        try:
            while self._idle and self._idle[0][0] < before:
                self._idle.popleft()[1].close()
        except IndexError:  # Another thread was faster.
            pass

    def close(self) -> None:
        """Close those that are idle now, and the others when they are given back."""
        self._is_closed = True
        self._close_idle(_NEVER)

    def abandon(self) -> None:
        """Close our copies of the idle sockets, in a child process."""
        self._close_idle(_NEVER)
