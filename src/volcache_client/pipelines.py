"""
Many exchanges at once: requests in a row on few connections, and their answers in order.

So many keys cost one trip, not one trip for each. What is in flight is bounded: so many
requests and bytes on a connection, and so many connections of a call.
"""

from __future__ import annotations

import re
import ssl
import sys
from typing import TYPE_CHECKING, Any, Final

from volcache_client.errors import NodeError, PoolTimeoutError
from volcache_client.headers import has_end
from volcache_client.http1 import (
    BadAnswerError,
    Headers,
    HttpExchange,
    ValueSizeError,
    head_of,
    lines_of,
)
from volcache_client.messages import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from volcache_client.errors import CacheError
    from volcache_client.exchanges import HttpPool
    from volcache_client.messages import Request, SendMany

# On one connection: the bytes fit the buffers of its sockets.
REQUESTS_MAX: Final = 64
_BYTES_MAX: Final = 64 << 10
# Of one call: the service reads several values from its disk at a time.
_LANES_MAX: Final = 4
# Fewer requests than this are not worth another connection.
_LANE_REQUESTS_MIN: Final = 16
# What a connection has of the timeout when another one has used it up.
_SHARE_MIN: Final = 0.1
# An answer whose head is complete.
_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [^\r\n]*)?\r\n((?:[!-9;-~]+:[^\n]*\r\n)*)\r\n"
)
# Headers that say where an answer ends.
_LENGTH: Final = b"\ncontent-length:"
_CODING: Final = b"\ntransfer-encoding:"
_CONNECTION: Final = b"\nconnection:"
_WITHOUT_BODY: Final = frozenset({b"204", b"304"})
_DIGITS_MAX: Final = 18


class Pipeline:
    """
    Requests in a row and their answers: what a connection takes as an `HttpExchange`.

    Attributes:
        request: The first.
        answers: Those that are complete, in the order of the requests.
        is_sent: Whether all was sent; set by who sends it.
        is_complete: Whether no more answers come.
        status, buffered: Of an exchange; no answer ends the sending of a pipeline.
    """

    is_short: Final = True
    status: Final = 0
    buffered: Final = 0

    def __init__(self, requests: Sequence[Request], host: str, limit: int) -> None:
        """Begin; `host` is the header, and `limit` the most bytes of a value."""
        self._limit: Final = limit
        self.request: Final = requests[0]
        self._requests: Final = requests
        self._host: Final = host
        self.answers: Final[list[Answer]] = []
        self.is_sent = self.is_complete = False
        self._is_last = False
        self._received = b""
        # Of an answer that is not received as a whole at once.
        self._exchange: HttpExchange | None = None

    def first_part(self) -> bytes:
        """Return all requests."""
        parts: list[bytes] = []
        headers, lines = None, ""
        for request in self._requests:
            if request.headers is not headers:
                headers = request.headers
                lines = lines_of(headers)
            parts.append(head_of(request, self._host, lines))
            if isinstance(request.body, bytes):
                parts.append(request.body)
        return b"".join(parts)

    def more_parts(self) -> Iterator[bytes | memoryview]:
        """There are none."""
        return iter(())

    def receive(self, data: bytes) -> None:
        """
        Parse a part of the answers; none: the end of the connection.

        Raises:
            BadAnswerError: It is not an answer, or the connection ended before its end.
        """
        if not data and self._exchange is None:
            raise BadAnswerError("disconnected before the answer")
        if self._exchange is None:
            self._parse(data)
        else:
            self._exchange.receive(data)
            self._end_exchange()

    def _parse(self, data: bytes) -> None:
        """Take complete answers; what is left begins an exchange of its own."""
        at = 0
        answers, requests = self.answers, self._requests
        while at < len(data) and not self.is_complete:
            request = requests[len(answers)]
            head = _HEAD.match(data, at)
            if head is None or head[1] in _WITHOUT_BODY or request.method == "HEAD":
                break
            begin = head.end()
            size = _plain_size(head[0].lower())
            # An exchange takes all else.
            if size < 0 or size > self._limit or begin + size > len(data):
                break
            end = begin + size
            headers = Headers(head[2].decode("latin-1"))
            answers.append(Answer(int(head[1]), headers, data[begin:end]))
            at = end
            self.is_complete = len(answers) == len(requests)
        if at == len(data):
            return
        if self.is_complete:
            raise BadAnswerError("an answer that was not asked for")
        request = requests[len(answers)]
        self._exchange = HttpExchange(request, self._host, self._limit)
        self._exchange.receive(data[at:])
        self._end_exchange()

    def _end_exchange(self) -> None:
        """Take an answer that was received in parts, and go on with what follows."""
        exchange = self._exchange
        assert exchange is not None  # noqa: S101 - Called while there is one.
        if not exchange.is_complete:
            return
        answer = exchange.answer()
        if exchange.request.method == "GET" and not has_end(answer):
            raise BadAnswerError("an answer of unknown length")
        self._exchange = None
        self.answers.append(answer)
        self._is_last = exchange.is_last
        self.is_complete = self._is_last or len(self.answers) == len(self._requests)
        if exchange.rest:
            self._parse(exchange.rest)

    def has(self, _wanted: int) -> bool:
        """Whether no more is to be received."""
        return self.is_complete

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent on the connection."""
        return self.is_sent and self.is_complete and not self._is_last

    @property
    def is_between(self) -> bool:
        """Whether nothing of the next answer was received."""
        return self._exchange is None


def _plain_size(head: bytes) -> int:
    """
    Return the bytes of a body by a head in lower case.

    -1: it has not just one length, is in chunks, or ends the connection.
    """
    at = head.find(_LENGTH) + len(_LENGTH)
    if at < len(_LENGTH) or _LENGTH in head[at:] or _CODING in head:
        return -1
    digits = head[at : head.index(b"\r", at)].strip(b" \t")
    if not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return -1
    if (at := head.find(_CONNECTION) + len(_CONNECTION)) >= len(_CONNECTION):
        kept = head[at : head.index(b"\r", at)].strip(b" \t") == b"keep-alive"
        if not kept or _CONNECTION in head[at:]:
            return -1
    return int(digits)


Exchange = HttpExchange | Pipeline


class _Lane:
    """Some of the requests, on one connection."""

    def __init__(self, pool: HttpPool[Any], requests: Sequence[Request]) -> None:
        self.requests: Final = requests
        self._pool: Final = pool
        self._pipeline: Final = Pipeline(requests, pool.host, pool.limit)
        self._error: CacheError | None = None
        # Of the first value without an answer, if it is too long; others are asked again.
        self._refused: list[CacheError] = []
        self._is_again = False
        self._is_open = self._was_open = False
        self._timeout = self._until = 0.0
        self._answered = 0
        self._connection: Any = None

    async def send(self, seconds: float, acquire_until: float) -> None:
        """
        Acquire a connection, and send the requests.

        Raises:
            PoolTimeoutError: None is free.
        """
        pool, self._timeout = self._pool, seconds
        self._until = pool.clock() + seconds
        self._connection = await pool.acquire(acquire_until)
        self._is_open = True
        self._was_open = self._connection is not None
        try:
            if self._connection is None:
                self._connection = await pool.open(self._until)
            await self._connection.send(self._pipeline, self._deadline)
        except NodeError as error:  # There is none.
            self._error = error
        except OSError as error:
            self._failed(error)

    @property
    def is_sent(self) -> bool:
        """Whether the connection works so far."""
        return self._error is None

    async def receive(self) -> None:
        """Receive the answers."""
        if self._error is not None or self._is_again:
            return
        # Another connection may have used up the time.
        now = self._pool.clock()
        self._until = max(self._until, now + _SHARE_MIN * self._timeout)
        try:
            await self._connection.receive(sys.maxsize)
        except OSError as error:
            self._failed(error)

    def _deadline(self) -> float:
        """Return the time of the next answer."""
        count = len(self._pipeline.answers)
        if count != self._answered:
            self._answered = count
            self._until = self._pool.clock() + self._timeout
        return self._until

    def _failed(self, error: OSError) -> None:
        """
        Remember the error, unless the requests that are left may be sent again.

        A server may close a connection at any moment between two answers.
        """
        pipeline = self._pipeline
        if isinstance(error, ValueSizeError):
            self._refused = [self._pool.error_of(error)]
            return
        is_broken = isinstance(error, ConnectionError | ssl.SSLError)
        has_worked = self._was_open or bool(pipeline.answers)
        if is_broken and has_worked and pipeline.is_between:
            self._is_again = True
        else:
            self._error = self._pool.error_of(error)

    def results(self) -> list[Answer | CacheError | None]:
        """Return what became of each request."""
        found: list[Answer | CacheError | None] = [*self._pipeline.answers]
        found += self._refused
        return found + [self._error] * (len(self.requests) - len(found))

    def close(self) -> None:
        """Give the connection back, or close it."""
        if self._is_open:
            self._is_open = False
            self._pool.release(self._connection)


async def send_many(
    pool: HttpPool[Any], step: SendMany
) -> list[Answer | CacheError | None]:
    """
    Perform a step: begin on each connection, then receive from each.

    Raises:
        NodeError: There is no connection.
        ClientUsageError: The client was closed meanwhile.
    """
    lanes: list[_Lane] = []
    try:
        for requests in _shares(step.requests):
            lane = _Lane(pool, requests)
            # The first one waits for a connection; the others take what is free.
            until = 0.0 if lanes else pool.clock() + step.timeout
            try:
                await lane.send(step.timeout, until)
            except PoolTimeoutError:
                if not lanes:
                    raise
                break
            except BaseException:
                lane.close()
                raise
            lanes.append(lane)
            if not lane.is_sent:
                break
        for lane in lanes:
            await lane.receive()
        return [result for lane in lanes for result in lane.results()]
    finally:
        for lane in lanes:
            lane.close()


def _shares(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Yield the requests of each connection, of the first ones of them."""
    count = len(requests)
    size = min(max(-(-count // _LANES_MAX), _LANE_REQUESTS_MIN), REQUESTS_MAX)
    begin = 0
    for _ in range(_LANES_MAX):
        end, length = begin, 0
        while end < min(begin + size, count):
            body = requests[end].body
            length += len(requests[end].path)
            length += len(body) if isinstance(body, bytes) else 0
            if end > begin and length > _BYTES_MAX:
                break
            end += 1
        if end > begin:
            yield requests[begin:end]
        begin = end
