"""Connections of the client for threads: sockets with deadlines, pools, what uses them."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from contextlib import suppress
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from volcache_client.errors import (
    InvalidArgumentError,
    NodeConnectionError,
    ValueTooLargeError,
)
from volcache_client.exchanges import (
    RETRY_SECONDS,
    UNCHECKED_SECONDS,
    HttpPool,
    HttpTransport,
    begin,
    readable,
    run,
)
from volcache_client.http1 import RECEIVE_BYTES, HttpExchange
from volcache_client.messages import Request
from volcache_client.nodes import parse_address
from volcache_client.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from volcache_client.messages import Answer, Operation
    from volcache_client.nodes import Address
    from volcache_client.uploads import Upload

_FETCH_SECONDS: Final = 5.0
_FETCH_BYTES_MAX: Final = 16 << 20
_IDLE_SECONDS_MAX: Final = 60.0
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# A server may refuse a body before it has all of it, answer, and close.
_REFUSES: Final = (
    BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError,
)  # fmt: skip


class Connection:
    """A connected socket, for one exchange at a time; see `HttpConnection`."""

    def __init__(self, raw: socket.socket) -> None:
        """Take over a socket, with TLS or without."""
        self.until = 0.0
        self.is_by_part = False
        self._seconds = 0.0
        self._raw: Final = raw
        self._exchange: HttpExchange
        # Each system call lets another thread take the lock of the interpreter, which costs
        # more than the call. A socket with a timeout makes two for a `send` or `recv`; one
        # that does not block makes one, and only an answer is waited for.
        raw.setblocking(False)  # noqa: FBT003
        self._is_plain: Final = not isinstance(raw, ssl.SSLSocket)
        self._is_readable: Final = readable(raw)

    def start(self, exchange: HttpExchange, until: float, seconds: float) -> None:
        """Send the first part; see `HttpConnection`."""
        self._exchange = exchange
        self.until, self._seconds, self.is_by_part = until, seconds, False
        try:
            exchange.is_sent = not self._send(exchange.first_part())
        except _REFUSES:
            return

    async def send_rest(self, exchange: HttpExchange) -> None:
        """Send the rest; see `HttpConnection`."""
        if not exchange.is_sent:
            return
        exchange.is_sent = False
        try:
            for part in exchange.more_parts():
                if exchange.is_by_part:
                    self.until = time.monotonic() + self._seconds
                if self._send(part):
                    return
        except _REFUSES:
            return
        finally:
            if exchange.is_by_part:
                self.until = time.monotonic() + self._seconds
        exchange.is_sent = True

    def _send(self, part: bytes | memoryview) -> bool:
        """Send a part; return whether the answer has begun before its end."""
        sent = 0
        while True:
            try:
                sent += self._raw.send(part[sent:] if sent else part)
                if sent == len(part):
                    return False
            except _NOT_NOW as reason:
                self._wait_for_either(reads=isinstance(reason, ssl.SSLWantReadError))
                self._receive()
                if self._exchange.has(0):
                    return True

    def _wait_for_either(self, *, reads: bool) -> None:
        """Wait until something can be received, or sent unless `reads`."""
        events = selectors.EVENT_READ | (0 if reads else selectors.EVENT_WRITE)
        left = self.until - time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._raw, events)
            if left <= 0 or not selector.select(left):
                raise TimeoutError

    async def receive(self, wanted: int) -> None:
        """Receive a part of an answer; see `HttpConnection`."""
        exchange = self._exchange
        is_waiting = self._is_plain  # TLS may have bytes that `poll` does not see.
        while not exchange.has(wanted):
            left = self.until - time.monotonic()
            if left <= 0 or (is_waiting and not self._is_readable(left)):
                raise TimeoutError
            count = len(exchange.answers)
            is_waiting = not self._receive() or self._is_plain
            if exchange.is_complete:
                return
            if self.is_by_part or count != len(exchange.answers):
                self.until = time.monotonic() + self._seconds

    def _receive(self) -> bool:
        """Receive a part of an answer; return whether there was one."""
        try:
            data = self._raw.recv(RECEIVE_BYTES)
        except _NOT_NOW:
            return False
        self._exchange.receive(data)
        return True

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent after this exchange."""
        return self._exchange.is_reusable

    def is_in_step(self, *, is_checked: bool) -> bool:
        """See `HttpConnection`."""
        if not is_checked and time.monotonic() - self.until < UNCHECKED_SECONDS:
            return True
        return not self._is_readable(0)

    def close(self) -> None:
        """Close the socket."""
        with suppress(OSError):
            self._raw.close()


class Pool(HttpPool[Connection]):
    """
    Connections to one node; used by all threads; see `HttpPool`.

    An idle one is closed after a minute.
    """

    def __init__(self, address: Address, options: Options) -> None:
        """Open nothing yet."""
        super().__init__(address, options)
        self._freed: Final = Condition(Lock())
        self._waiting = 0

    def clock(self) -> float:
        """Return the time of deadlines."""
        return time.monotonic()

    async def wait(self, until: float) -> Connection | None:
        """Wait for a connection; see `HttpPool`."""
        found: list[Connection | None] = []

        def is_free() -> bool:
            with suppress(IndexError):
                found.append(self.take(is_checked=True))
            return bool(found)

        with self._freed:
            self._waiting += 1
            try:
                if not self._freed.wait_for(is_free, until - time.monotonic()):
                    raise self._is_full()
            finally:
                self._waiting -= 1
        return found[0]

    async def _connect(
        self,
        raw: socket.socket,
        target: Any,  # noqa: ANN401 - Depends on the family.
        seconds: float,
    ) -> Connection:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            raw.settimeout(left)
            try:
                raw.connect(target)
            except BlockingIOError:  # The queue of a unix socket is full.
                time.sleep(min(left, RETRY_SECONDS))  # noqa: ASYNC251
            else:
                break
        if not self._address.socket_path:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return Connection(raw)
        raw.settimeout(max(until - time.monotonic(), RETRY_SECONDS))
        host = self._address.host
        return Connection(self._context.wrap_socket(raw, server_hostname=host))

    def _give(self, connection: Connection | None) -> None:
        if connection is None:
            self._slots.append(None)
        else:
            connection.until = now = time.monotonic()  # When it was used last.
            self._idle.append(connection)
            self._close_idle(now - _IDLE_SECONDS_MAX)
        if self._waiting:
            with self._freed:
                self._freed.notify()
        if self.is_retired:
            self.retire()

    def _close_idle(self, before: float) -> None:
        """Close those that were used before a time."""
        try:
            while self._idle[0].until < before:
                self._idle.popleft().close()
                self._slots.append(None)
        except IndexError:  # Another thread was faster.
            return


class ThreadDriver(HttpTransport[Pool]):
    """Performs steps in the thread of the caller; used by all threads."""

    def _make_pool(self, address: Address) -> Pool:
        return Pool(address, self._options)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251 - There is no loop.

    async def call(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a function."""
        return function()

    async def finish(self, steps: Operation[None], _error: BaseException) -> None:
        """Perform the last steps of an operation."""
        await steps

    def abandon(self) -> None:
        """Begin again in a child process, without the connections of its parent."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.retire()


def fetch(  # noqa: PLR0913 - By keyword.
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | Upload | None = None,
    timeout: float = _FETCH_SECONDS,
    limit_bytes: int = _FETCH_BYTES_MAX,
    ssl_context: ssl.SSLContext | None = None,
) -> Answer:
    """
    Return the answer to one request, on a connection of its own, whatever its status.

    Args:
        url: With a path and query, which are percent-encoded.
        method: Of HTTP.
        headers: Without `Host` and the length of the body.
        body: Of the request.
        timeout: For all of it, seconds; of an `Upload`, for each part, and for the answer.
        limit_bytes: Of the body of the answer.
        ssl_context: For https; None: the certificates of the system.

    Raises:
        InvalidArgumentError: The URL is wrong.
        NodeError: There is no answer in time, or it is broken, or exceeds the limit; it
            names the instance.
    """
    where = urlsplit(url)
    address = parse_address(f"{where.scheme}://{where.netloc}")
    path = (where.path or "/") + (f"?{where.query}" if where.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise InvalidArgumentError(f"{url!r}: the path is not percent-encoded")
    sent = {"Accept-Encoding": "identity", **(headers or {}), "Connection": "close"}
    options = Options(
        connect_timeout=timeout, ssl_context=ssl_context, max_value_size=limit_bytes
    )
    pool = Pool(address, options)
    pool.retire()
    try:
        request = Request(method, path, sent, body)
        exchange = HttpExchange(pool.host, (request,), pool.limit, is_whole=False)
        connection = run(begin(pool, exchange, timeout))
    except ValueTooLargeError:
        raise NodeConnectionError(
            address.name, f"the answer is longer than {limit_bytes} bytes"
        ) from None
    pool.release(connection)
    return exchange.answer()
