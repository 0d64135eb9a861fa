"""
Connections of the client for threads: urllib3's, with one deadline for a whole exchange.

The timeouts of urllib3 are those of single calls of a socket: a server that sends a byte
per second would hold the caller for as long as it likes.
"""

from __future__ import annotations

import io
import math
import select
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, Any, Final, TypeVar

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import wait_for_read

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

    from volcache_client.nodes import Address

T = TypeVar("T")

_IDLE_SECONDS_MAX: Final = 60.0
_BUFFER_BYTES: Final = 16 << 10
_RETRY_SECONDS: Final = 0.005
_NEVER: Final = float("inf")


class TimedSocket:
    """
    A connected socket whose calls end at a deadline.

    As with a real one, a file made of it stays readable when it is closed: http.client
    closes the connection of an answer that is the last one before its body is read.

    Attributes:
        has_received: Whether anything was received since `limit` was called.
        is_in_step: Whether each answer ended where its headers said.
    """

    def __init__(self, raw: socket.socket) -> None:
        """Take over a socket."""
        self._raw: Final = raw
        # Each system call lets another thread take the lock of the interpreter, which costs
        # more than the call. A socket with a timeout makes two for a `send` or `recv`, and
        # one to set it; one that does not block makes one, and `poll` waits for the answer.
        is_plain = not isinstance(raw, ssl.SSLSocket)
        self._poll: Final = select.poll() if is_plain else None
        if self._poll is not None:
            raw.settimeout(0)
            self._poll.register(raw, select.POLLIN)
        self._deadline = _NEVER
        self._each = _NEVER
        self._files = 0
        self._is_closed = False
        self.has_received = False
        self.is_in_step = True

    def limit(self, deadline: float, each: float = _NEVER) -> None:
        """Set when calls end, by `time.monotonic()`, and how long each takes at most."""
        self._deadline = deadline
        self._each = each
        self.has_received = False

    def sendall(self, data: bytes, /) -> None:
        """
        Send all bytes.

        Raises:
            TimeoutError: Not before the deadline.
        """
        view = memoryview(data)
        while view:
            self._arm()
            try:
                view = view[self._raw.send(view) :]
            except BlockingIOError:
                writable = select.poll()
                writable.register(self._raw, select.POLLOUT)
                self._wait(writable)

    def recv_into(self, buffer: WriteableBuffer) -> int:
        """
        Receive bytes; 0 is the end.

        Raises:
            TimeoutError: None before the deadline.
        """
        count = self._receive(lambda: self._raw.recv_into(buffer))
        self.has_received = self.has_received or count > 0
        return count

    def recv(self, count: int, /) -> bytes:
        """
        Receive up to some bytes; none at the end.

        Raises:
            TimeoutError: None before the deadline.
        """
        return self._receive(lambda: self._raw.recv(count))

    def _receive(self, call: Callable[[], T]) -> T:
        """Wait for bytes, or the end, and return the result of the call that takes them."""
        while True:
            if self._poll is None:
                self._arm()
            else:
                self._wait(self._poll)
            with suppress(BlockingIOError):
                return call()

    @property
    def is_idle(self) -> bool:
        """Whether the server has neither closed the connection nor sent anything."""
        if self._poll is not None:
            return not self._poll.poll(0)
        return not wait_for_read(self._raw, timeout=0.0)

    def _arm(self) -> None:
        """Raise TimeoutError after the deadline; limit the next call of a TLS socket."""
        left = self._left()
        if self._poll is None:
            self._raw.settimeout(None if left == _NEVER else left)

    def _left(self) -> float:
        left = min(self._deadline - time.monotonic(), self._each)
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _wait(self, poll: select.poll) -> None:
        """Return when a plain socket is ready; one of TLS waits by itself."""
        left = self._left()
        if not poll.poll(None if left == _NEVER else math.ceil(1000 * left)):
            raise TimeoutError("timed out")

    def settimeout(self, seconds: float | None, /) -> None:
        """Do nothing: `limit` is what counts."""

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a file of what is received."""
        assert mode == "rb", mode  # noqa: S101 - What http.client asks for.
        self._files += 1
        return _SocketFile(self)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._raw.fileno()

    def shutdown(self, how: int) -> None:
        """End the connection."""
        self._raw.shutdown(how)

    def close(self) -> None:
        """Close the socket, when its files are closed."""
        self._is_closed = True
        if not self._files:
            self._raw.close()

    def abort(self) -> None:
        """Close the socket at once."""
        self._is_closed = True
        self._raw.close()

    def file_closed(self, *, is_in_step: bool) -> None:
        """Note that a file was closed, and whether all that was received was read."""
        self._files -= 1
        self.is_in_step = self.is_in_step and is_in_step
        if self._is_closed:
            self.close()


class _Bytes(io.RawIOBase):
    """What a socket receives; its position is how much that is."""

    def __init__(self, connection: TimedSocket) -> None:
        self._connection: Final = connection
        self._received = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._received

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self._connection.recv_into(buffer)
        self._received += count
        return count


class _SocketFile(io.BufferedReader):
    """What a socket receives, with a buffer."""

    def __init__(self, connection: TimedSocket) -> None:
        self._bytes: Final = _Bytes(connection)
        super().__init__(self._bytes, _BUFFER_BYTES)
        self._connection: Final = connection

    def close(self) -> None:
        if self.closed:
            return
        is_all_read = self.tell() == self._bytes.tell()
        super().close()
        self._connection.file_closed(is_in_step=is_all_read)


class TimedConnection(HTTPConnection):
    """A connection to an address, with a `TimedSocket`."""

    address: Address
    connect_timeout: float
    # Of the exchange that opens it; see `TimedSocket.limit`.
    deadline: float = _NEVER
    each: float = _NEVER

    def _new_conn(self) -> socket.socket:
        until = min(self.deadline, time.monotonic() + self.connect_timeout)
        return connect(self.address, until)

    def connect(self) -> None:
        """Open it; see `connect`."""
        super().connect()
        timed: Any = TimedSocket(self.sock)
        timed.limit(self.deadline, self.each)
        self.sock = timed

    @property
    def is_connected(self) -> bool:
        """Whether it is open and can be used again."""
        timed = self.timed
        return timed is not None and timed.is_idle

    @property
    def timed(self) -> TimedSocket | None:
        """The socket; None: there is none yet."""
        timed: Any = self.sock
        return timed  # type: ignore[no-any-return]


class _TlsConnection(TimedConnection, HTTPSConnection):
    """The same with TLS."""


def make_connection(
    address: Address, connect_timeout: float, context: ssl.SSLContext | None
) -> TimedConnection:
    """Return a connection that is opened by its first request; a context is for TLS."""
    made: TimedConnection
    if context is None:
        made = TimedConnection(address.host, address.port)
    else:
        made = _TlsConnection(address.host, address.port, ssl_context=context)
    made.address = address
    made.connect_timeout = connect_timeout
    return made


def connect(address: Address, deadline: float) -> socket.socket:
    """
    Return a connected socket.

    Raises:
        OSError: Of the last address of the host.
        TimeoutError: The deadline, by `time.monotonic()`, has passed. The look-up of the
            name of a host is not bounded: the system does it.
    """
    last: OSError = TimeoutError("no connection in time")
    for family, kind, protocol, target in _targets(address):
        raw = socket.socket(family, kind, protocol)
        try:
            _connect(raw, target, deadline)
        except OSError as error:
            raw.close()
            last = error
        except BaseException:
            raw.close()
            raise
        else:
            return raw
    raise last


def _targets(address: Address) -> list[tuple[int, int, int, Any]]:
    if address.socket_path:
        return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, address.socket_path)]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [
        (family, kind, protocol, target) for family, kind, protocol, _, target in found
    ]


def _connect(
    raw: socket.socket,
    target: Any,  # noqa: ANN401 - Depends on the family.
    deadline: float,
) -> None:
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no connection in time")
        raw.settimeout(left)
        try:
            raw.connect(target)
        except BlockingIOError:  # The queue of a unix socket is full.
            time.sleep(min(left, _RETRY_SECONDS))
            continue
        if raw.family in {socket.AF_INET, socket.AF_INET6}:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What is left is for the handshake of TLS.
        raw.settimeout(max(deadline - time.monotonic(), _RETRY_SECONDS))
        return


class Pool:
    """
    Connections to one node; used by all threads.

    They are opened when no other is free, up to a limit, and the one used last is used
    first, so that those of a busy time become idle, and are closed after a minute.
    """

    def __init__(self, make: Callable[[], TimedConnection], size: int) -> None:
        """
        Open nothing yet.

        Args:
            make: Returns a connection that is not open yet.
            size: How many there may be.
        """
        self._make: Final = make
        self._free: Final = Semaphore(size)
        self._lock: Final = Lock()
        self._idle: deque[tuple[float, TimedConnection]] = deque()
        self._used = 0
        self._is_closed = False

    @property
    def connections(self) -> int:
        """How many are in use or kept."""
        return self._used + len(self._idle)

    def acquire(self, deadline: float) -> TimedConnection | None:
        """Return a connection, open or not; None: all are in use until the deadline."""
        if not self._free.acquire(blocking=False):
            left = deadline - time.monotonic()
            if left <= 0 or not self._free.acquire(timeout=left):
                return None
        with self._lock:
            self._used += 1
        try:
            return self._newest() or self._make()
        except BaseException:
            self._release()
            raise

    def _newest(self) -> TimedConnection | None:
        """Return the idle connection used last, if the server has not closed it."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                _, connection = self._idle.pop()
            if connection.is_connected:
                return connection
            connection.close()

    def give(self, connection: TimedConnection) -> None:
        """Take back a connection that can be used again."""
        now = time.monotonic()
        old = []
        with self._lock:
            if self._is_closed:
                old.append(connection)
            else:
                self._idle.append((now, connection))
                while self._idle[0][0] < now - _IDLE_SECONDS_MAX:
                    old.append(self._idle.popleft()[1])
        self._release()
        for one in old:
            one.close()

    def drop(self, connection: TimedConnection) -> None:
        """Close a connection that cannot be used again."""
        try:
            with suppress(OSError):
                connection.close()
        finally:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._used -= 1
        self._free.release()

    def close(self) -> None:
        """Close those that are idle now, and the others when they are given back."""
        with self._lock:
            self._is_closed = True
            idle = [connection for _, connection in self._idle]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """Close our copies of the sockets, in a child process; takes no lock."""
        for _, connection in self._idle:
            connection.close()
