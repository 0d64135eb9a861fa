"""
Exchanges of HTTP/1.1 by `AsyncClient`, for values that are read as a whole.

aiohttp takes most of the CPU of a small GET. Here a protocol of asyncio writes the request
and reads the answer with the parser of `http1.py`: there is one future for each exchange,
no task, and one timer for each connection.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohappyeyeballs import AddrInfoType, start_connection

from volcache_client.http1 import BadAnswerError, Headers
from volcache_client.messages import Answer
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator

    from volcache_client.messages import Request
    from volcache_client.nodes import Address

# Seconds for which a connection that is not used is kept: half as long as the service and
# nginx keep it, so that they do not close it while a request is on its way.
KEPT_SECONDS: Final = 30.0

_PART_BYTES: Final = 1 << 16
_RETRY_SECONDS: Final = 0.005
# After which the next address of a host is tried as well.
_NEXT_ADDRESS_SECONDS: Final = 0.25
_LOOKUPS_MAX: Final = 4  # Names that are resolved at the same time, for all clients.


_RECEIVE_BYTES: Final = 1 << 16
_HEAD_BYTES_MAX: Final = 1 << 16
_WITHOUT_BODY: Final = frozenset({204, 304})
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_LENGTH_DIGITS_MAX: Final = 18
_END: Final = b"\r\n\r\n"
_NOT_ANSWERED: Final = "disconnected before the answer"


class NotAnsweredError(ConnectionError):
    """
    The connection ended before the first byte of an answer.

    If it was open from before, the server may have closed it meanwhile: a request that is
    repeatable may be sent again on another connection.
    """


class Exchanged(NamedTuple):
    """
    The end of an exchange.

    Attributes:
        answer: All of it.
        is_reusable: Whether another request may be sent on the connection.
    """

    answer: Answer
    is_reusable: bool


class ConnectError(ConnectionError):
    """No connection was opened."""


class ConnectTimeoutError(TimeoutError):
    """No connection was opened in time."""


class HttpConnection(asyncio.Protocol):
    """
    A connection to a node, for one exchange at a time.

    Attributes:
        is_open: Whether a request may be sent.
        ended: Done when the transport has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[HttpConnection], None],
    ) -> None:
        """
        Wait for `connection_made`.

        Args:
            loop: That of the caller.
            on_change: Called when it was opened, when it was closed, and when it has ended.
        """
        self._loop: Final = loop
        self._on_change: Final = on_change
        self._transport: asyncio.Transport
        self._readable: Final = select.poll()
        self.is_open = False
        self.ended: Final[asyncio.Future[None]] = loop.create_future()
        # Of the exchange in work.
        self._receiving: Generator[int, bytes, Exchanged] | None = None
        self._answer: asyncio.Future[Exchanged] | None = None
        self._has_received = False
        self._unsent: memoryview | None = None
        self._is_paused = False
        # A timer that is too early is set again when it fires: most exchanges set none.
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._fires = 0.0

    # --- What the caller does -----------------------------------------------------

    def exchange(
        self, request: Request, host: str, deadline: float
    ) -> asyncio.Future[Exchanged]:
        """
        Send a request and receive its answer; no other exchange may be in work.

        After any error, and after a cancellation, the connection must be closed.

        Args:
            request: As for `http1.exchange`.
            host: The header `Host`.
            deadline: For all of it, by the clock of the loop.

        Returns:
            Its result, or:
            TimeoutError: It is not complete at the deadline.
            NotAnsweredError: The connection ended before anything was received.
            BadAnswerError: What was received is not a whole answer.
            OSError: As of the transport.

        Raises:
            NotAnsweredError: The server has closed the connection, or sent something.
        """
        if not self.is_open:
            raise NotAnsweredError("disconnected before the request")
        head = head_of(request, host)
        body: Any = request.body
        self._receiving = receive(request.method)
        next(self._receiving)
        self._has_received = False
        answer = self._answer = self._loop.create_future()
        self._end_at(deadline)
        if not body:
            self._transport.write(head)
        elif len(body) <= _PART_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._unsent = memoryview(body)
            self._write_more()
        return answer

    def keep(self) -> None:
        """Close it after a while, unless it is used again."""
        self._end_at(self._loop.time() + KEPT_SECONDS)

    def is_in_step(self) -> bool:
        """Whether it is open, and nothing was received that was not asked for."""
        return self.is_open and not self._readable.poll(0)

    def close(self, error: Exception | None = None) -> None:
        """Close it at once; an exchange in work fails with the error, if there is one."""
        self._closed()
        answer, self._answer = self._answer, None
        self._receiving = self._unsent = None
        if error is not None and answer is not None and not answer.done():
            answer.set_exception(error)
            answer.exception()  # So that it is not logged if its caller is cancelled now.
        self._transport.abort()

    def _closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_open:
            self.is_open = False
            self._on_change(self)

    # --- Time ---------------------------------------------------------------------

    def _end_at(self, when: float) -> None:
        self._until = when
        if self._timer is not None:
            if self._fires <= when:
                return
            self._timer.cancel()
        self._fires = when
        self._timer = self._loop.call_at(when, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._loop.time() < self._until:
            self._end_at(self._until)
        else:
            self.close(TimeoutError("the answer is not complete in time"))

    # --- What the transport calls -------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio has set TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self._readable.register(
            transport.get_extra_info("socket").fileno(), select.POLLIN
        )
        self.is_open = True
        self._on_change(self)

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer; what was not asked for ends the connection."""
        if self._receiving is None:
            self.close()
            return
        self._has_received = True
        self._receive(data)

    def eof_received(self) -> None:
        """Take the end of an answer, or of the connection."""
        if self._receiving is not None:
            self._receive(b"")
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange in work."""
        if isinstance(exc, ConnectionError):
            self._receive_rest()
        if isinstance(exc, ConnectionError) and not self._has_received:
            exc = NotAnsweredError(f"disconnected before the answer: {exc}")
        self.close(exc)
        self.ended.set_result(None)
        self._on_change(self)

    def pause_writing(self) -> None:
        """Wait with further parts of a body."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Write further parts of a body."""
        self._is_paused = False
        self._write_more()

    def _write_more(self) -> None:
        transport = self._transport
        while self._unsent and not self._is_paused and not transport.is_closing():
            part, self._unsent = self._unsent[:_PART_BYTES], self._unsent[_PART_BYTES:]
            transport.write(part)

    def _receive_rest(self) -> None:
        """
        Read what the transport has left in its socket when a write failed.

        A server may answer before it has read a body, and close.
        """
        if self._transport.get_extra_info("ssl_object") is not None:
            return
        file = self._transport.get_extra_info("socket").fileno()
        while self._receiving is not None:
            try:
                data = os.read(file, _PART_BYTES)
            except OSError:  # There is no more.
                return
            self._has_received = self._has_received or bool(data)
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        assert self._receiving is not None  # noqa: S101
        try:
            self._receiving.send(data)
        except StopIteration as stop:
            self._answered(stop.value)
        except (NotAnsweredError, BadAnswerError) as error:
            self.close(error)

    def _answered(self, done: Exchanged) -> None:
        if self._unsent or self._transport.get_write_buffer_size():
            # A server may refuse a body before it has all of it.
            done = Exchanged(done.answer, is_reusable=False)
        answer, self._answer = self._answer, None
        self._receiving = self._unsent = None
        if answer is not None and not answer.done():
            answer.set_result(done)


class Connections:
    """
    Connections to one node; used by the tasks of one loop.

    They are opened when no other is idle. The one used last is used first, so that those of
    a busy time become idle, and are closed after `KEPT_SECONDS`. How many exchanges are in
    work is bounded by the caller.

    Attributes:
        count: How many are open.
    """

    def __init__(
        self,
        address: Address,
        connect_timeout: float,
        context: ssl.SSLContext | None,
        on_open: Callable[[], object],
    ) -> None:
        """
        Open nothing yet; called within the loop.

        Args:
            address: Of the node.
            connect_timeout: Seconds, TLS included.
            context: For https.
            on_open: Called before a connection is opened.
        """
        self._loop: Final = asyncio.get_running_loop()
        self._address: Final = address
        self._host: Final = address.host_header
        self._connect_timeout: Final = connect_timeout
        self._context: Final = context
        self._on_open: Final = on_open
        self._idle: Final[list[HttpConnection]] = []
        self._opening: Final[set[asyncio.Timeout]] = set()
        self._all: Final[set[HttpConnection]] = (
            set()
        )  # Until their transports have ended.
        self.count = 0

    async def exchange(self, request: Request, deadline: float) -> Answer:
        """
        Send a request and receive its answer.

        It is sent once more, on a new connection, if it is repeatable and was sent on one
        that was used before and ended before the answer.

        Args:
            request: Its body is no `Upload`.
            deadline: For all of it, by the clock of the loop.

        Raises:
            ConnectError: There is no connection.
            ConnectTimeoutError: There is none in time.
            OSError: See `HttpConnection.exchange`.
        """
        connection = self._newest()
        is_repeatable = connection is not None and request.is_repeatable
        if connection is None:
            connection = await self._open(deadline)
        try:
            done = await connection.exchange(request, self._host, deadline)
        except NotAnsweredError:
            connection.close()
            if not is_repeatable:
                raise
            connection = await self._open(deadline)
            done = await self._exchange_once(connection, request, deadline)
        except BaseException:
            connection.close()
            raise
        if not done.is_reusable:
            connection.close()
        elif connection.is_open:
            connection.keep()
            self._idle.append(connection)
        return done.answer

    async def _exchange_once(
        self, connection: HttpConnection, request: Request, deadline: float
    ) -> Exchanged:
        try:
            return await connection.exchange(request, self._host, deadline)
        except BaseException:
            connection.close()
            raise

    def _newest(self) -> HttpConnection | None:
        """Return the idle connection used last, if the server has not closed it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_in_step():
                return connection
            connection.close()
        return None

    @property
    def idle(self) -> int:
        """How many connections are open and not in use."""
        return len(self._idle)

    def close_idle(self) -> None:
        """Close the idle connection used first, if there is one."""
        if self._idle:
            self._idle.pop(0).close()

    def _changed(self, connection: HttpConnection) -> None:
        if connection.is_open:
            self.count += 1
            self._all.add(connection)
        elif connection.ended.done():
            self._all.discard(connection)
        else:
            self.count -= 1
            with suppress(ValueError):
                self._idle.remove(connection)

    # --- Opening ------------------------------------------------------------------

    async def _open(self, deadline: float) -> HttpConnection:
        self._on_open()
        until = min(deadline, self._loop.time() + self._connect_timeout)
        try:
            async with asyncio.timeout_at(until) as limit:
                self._opening.add(limit)
                try:
                    return await self._connect()
                finally:
                    self._opening.discard(limit)
        except TimeoutError as error:
            raise ConnectTimeoutError("no connection in time") from error
        except (OSError, UnicodeError) as error:  # The latter of a name.
            reason = getattr(error, "strerror", None) or error
            raise ConnectError(f"cannot connect: {reason}") from error

    async def _connect(self) -> HttpConnection:
        address = self._address
        if address.socket_path:
            raw = await _connect_unix(address.socket_path)
            try:
                _, made = await self._loop.create_unix_connection(self._made, sock=raw)
            except BaseException:
                raw.close()
                raise
            return made
        raw = await start_connection(
            await look_up(address.host, address.port),
            happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
            loop=self._loop,
        )
        try:
            _, made = await self._loop.create_connection(
                self._made,
                sock=raw,
                ssl=self._context,
                server_hostname=address.host if self._context is not None else None,
            )
        except BaseException:
            raw.close()
            raise
        return made

    def _made(self) -> HttpConnection:
        return HttpConnection(self._loop, self._changed)

    # --- The end ------------------------------------------------------------------

    async def close(self) -> None:
        """Close all connections; what is in work fails."""
        if self._loop.is_closed():
            return  # They ended with it.
        for limit in self._opening:
            if not limit.expired():
                limit.reschedule(self._loop.time())
        ending = [connection.ended for connection in self._all]
        for connection in tuple(self._all):
            connection.close(ConnectionAbortedError("closed"))
        if ending:
            await asyncio.wait(ending)


async def _connect_unix(path: str) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        raw.setblocking(False)  # noqa: FBT003
        while True:
            try:
                raw.connect(path)
            except BlockingIOError:  # The queue of the server is full.
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return raw
    except BaseException:
        raw.close()
        raise


async def look_up(host: str, port: int) -> list[AddrInfoType]:
    """
    Return the addresses of a name, or of an address, as `socket.getaddrinfo` does.

    Names that take long do not delay what the application does in the threads of its loop.

    Raises:
        OSError, UnicodeError: There are none.
    """
    if ":" in host or host.replace(".", "").isdigit():
        kind, flag = socket.SOCK_STREAM, socket.AI_NUMERICHOST
        return [*socket.getaddrinfo(host, port, type=kind, flags=flag)]
    resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    loop = asyncio.get_running_loop()
    return [*await loop.run_in_executor(_lookups(), resolve)]


@cache
def _lookups() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="volcache_client-names")


def head_of(request: Request, host: str) -> bytes:
    """
    Return the head of a request that is sent as a whole.

    Raises:
        TypeError: Its body is an `Upload`.
    """
    lines = [f"{request.method} {request.path} HTTP/1.1\r\nHost: {host}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in request.headers.items()]
    body = request.body
    if isinstance(body, Upload):
        raise TypeError("an upload is not sent as a whole")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


def receive(method: str) -> Generator[int, bytes, Exchanged]:
    """
    Read the answer to a request, without I/O.

    It yields how many bytes it would take next, at least 1, and is sent what was received:
    that many, or less, or more; none at the end of the connection.

    Args:
        method: Of the request: an answer to HEAD has no body.

    Returns:
        The answer; the connection is reusable if nothing but the answer was received.

    Raises:
        NotAnsweredError: The connection ended before anything was received.
        BadAnswerError: What was received is not a whole answer.
    """
    first = yield _RECEIVE_BYTES
    if not first:
        raise NotAnsweredError(_NOT_ANSWERED)
    received = _Received(first)
    status, version, headers = yield from _receive_head(received)
    while 100 <= status < 200:  # noqa: PLR2004 - Interim answers.
        status, version, headers = yield from _receive_head(received)
    is_whole = True
    if method == "HEAD" or status in _WITHOUT_BODY:
        body = b""
    elif (encoding := dict.get(headers, "transfer-encoding")) is not None:
        body = yield from _receive_chunks(received, encoding)
    elif (length := dict.get(headers, "content-length")) is not None:
        body = yield from received.exactly(_length(length))
    else:
        is_whole = False
        body = yield from received.to_end()
    is_kept = version == "1.1" and not _closes(headers)
    is_reusable = is_whole and is_kept and not received.is_any
    return Exchanged(Answer(status, headers, body), is_reusable)


class _Received:
    """Bytes received and not used yet; its generators are parts of `receive`."""

    __slots__ = ("_at", "_buffer")

    def __init__(self, first: bytes) -> None:
        self._buffer = first
        self._at = 0  # What is before was used.

    @property
    def is_any(self) -> bool:
        return len(self._buffer) > self._at

    def until(self, end: bytes, limit: int) -> Generator[int, bytes, bytes]:
        """
        Return the bytes before an end, which is skipped.

        Raises:
            BadAnswerError: They are more than the limit, or the end does not come.
        """
        while True:
            begin = self._at
            at = self._buffer.find(end, begin)
            known = at - begin if at >= 0 else len(self._buffer) - begin - len(end)
            if known > limit:
                raise BadAnswerError(f"a head or line above {limit} bytes")
            if at >= 0:
                self._at = at + len(end)
                return self._buffer[begin:at]
            data = yield _RECEIVE_BYTES
            if not data:
                raise BadAnswerError("closed within the head of the answer")
            self._buffer = self._buffer[begin:] + data
            self._at = 0

    def exactly(self, count: int) -> Generator[int, bytes, bytes]:
        """
        Return a number of bytes.

        Raises:
            BadAnswerError: The connection ended before.
        """
        begin = self._at
        missing = begin + count - len(self._buffer)
        if missing <= 0:
            self._at = begin + count
            return self._buffer[begin : self._at]
        parts = [self._buffer[begin:]]
        while missing > 0:
            data = yield min(missing, _RECEIVE_BYTES)
            if not data:
                raise BadAnswerError(f"closed with {missing} of {count} bytes missing")
            self._buffer, self._at = data, min(missing, len(data))
            parts.append(data if len(data) <= missing else data[:missing])
            missing -= len(data)
        return b"".join(parts)

    def to_end(self) -> Generator[int, bytes, bytes]:
        """Return everything until the connection ends."""
        parts = [self._buffer[self._at :]]
        self._buffer, self._at = b"", 0
        while data := (yield _RECEIVE_BYTES):
            parts.append(data)
        return b"".join(parts)


def _receive_head(
    received: _Received,
) -> Generator[int, bytes, tuple[int, str, Headers]]:
    """
    Return status, version and headers.

    Raises:
        BadAnswerError: It is not a head of HTTP/1.
    """
    head = yield from received.until(_END, _HEAD_BYTES_MAX)
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    protocol, _, version = words[0].partition("/")
    is_head = len(words) > 1 and protocol == "HTTP" and version in {"1.0", "1.1"}
    if not is_head or len(words[1]) != 3 or not _is_number(words[1]):  # noqa: PLR2004
        raise BadAnswerError(f"not an answer of HTTP/1: {first[:80]!r}")
    headers = Headers()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadAnswerError(f"not a header: {line[:80]!r}")
        name = name.lower()
        value = value.strip(" \t")
        before = dict.get(headers, name)
        headers[name] = value if before is None else f"{before}, {value}"
    return int(words[1]), version, headers


def _receive_chunks(received: _Received, encoding: str) -> Generator[int, bytes, bytes]:
    """
    Return a body that is sent in chunks.

    Raises:
        BadAnswerError: It is not.
    """
    if encoding.lower() != "chunked":
        raise BadAnswerError(f"Transfer-Encoding: {encoding[:80]}")
    parts = []
    while True:
        line = yield from received.until(b"\r\n", _HEAD_BYTES_MAX)
        line = line.partition(b";")[0].strip()
        if not _HEX.fullmatch(line):
            raise BadAnswerError(f"not a chunk: {line[:80]!r}")
        size = int(line, 16)
        if not size:
            break
        parts.append((yield from received.exactly(size)))
        if (yield from received.exactly(2)) != b"\r\n":
            raise BadAnswerError("a chunk without an end")
    while (yield from received.until(b"\r\n", _HEAD_BYTES_MAX)):
        pass  # Trailers.
    return b"".join(parts)


def _closes(headers: Headers) -> bool:
    return "close" in headers.get("connection", "").lower()


def _length(text: str) -> int:
    """
    Return a Content-Length.

    Raises:
        BadAnswerError: It is not a number.
    """
    if not _is_number(text) or len(text) > _LENGTH_DIGITS_MAX:
        raise BadAnswerError(f"Content-Length: {text[:80]!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
