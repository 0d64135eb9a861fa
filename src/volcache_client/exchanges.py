"""
One exchange on a connection of a pool: what threads and tasks do alike.

All that may wait is a coroutine. Those of threads wait in the system and never suspend:
`run` returns their results.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from volcache_client.errors import ClientUsageError, NodeConnectionError
from volcache_client.http1 import HttpExchange
from volcache_client.messages import Answer, Opened
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from volcache_client.errors import CacheError
    from volcache_client.messages import Open, Request, Send
    from volcache_client.pipelines import Exchange

T = TypeVar("T")
_OK: Final = 200


class HttpConnection(Protocol):
    """A connection, for one exchange at a time; it is closed after any error."""

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent after this exchange."""

    async def send(self, exchange: Exchange, deadline: Callable[[], float]) -> None:
        """
        Send a request, or what the server reads of it before it answers.

        Args:
            exchange: Just begun.
            deadline: Returns that of the next part.

        Raises:
            SourceFailed: The file of an `Upload` failed.
            OSError: As of the socket; a `TimeoutError` after the deadline.
        """

    async def receive(self, wanted: int) -> None:
        """
        Receive the head of the answer, and some bytes of its body, or all of it.

        Raises:
            OSError: As of the socket, or the answer is broken; a `TimeoutError` after the
                deadline.
        """

    def close(self) -> None:
        """Close it; what waits fails."""


C = TypeVar("C", bound=HttpConnection)


class HttpPool(Protocol[C]):
    """
    Connections to one node.

    They are opened when no other is free, up to a limit, and the one used last is used
    first, so that those of a busy time become idle, and are closed after a while.
    """

    @property
    def host(self) -> str:
        """The header `Host`."""

    @property
    def limit(self) -> int:
        """The most bytes of a value that is read as a whole."""

    def clock(self) -> float:
        """Return the time of deadlines."""

    async def acquire(self, deadline: float) -> C | None:
        """
        Return the idle connection used last; None: `open` one. `release` must follow.

        Raises:
            PoolTimeoutError: All are in use until the deadline.
        """

    async def open(self, deadline: float) -> C:
        """
        Open a connection.

        Raises:
            NodeError: There is none, with its reason.
        """

    def release(self, connection: C | None) -> None:
        """Take back what `acquire` or `open` has returned; close what is not reusable."""

    def error_of(self, error: OSError) -> CacheError:
        """Return the error of the client for an exchange that failed."""


class HttpBody(Generic[C]):
    """
    One exchange, and the body of its answer; used by one thread or task at a time.

    There is one deadline until the head of the answer, and for the answer as a whole; one
    for each part of an `Upload`, and of a body that is read in parts.
    """

    def __init__(self, pool: HttpPool[C], timeout: float) -> None:
        """Begin with the time; `close` must follow."""
        self._pool: Final = pool
        self._timeout: Final = timeout
        self._until = pool.clock() + timeout
        self._is_by_part = False
        self._is_open = False
        self._exchange: HttpExchange
        self._connection: C | None = None

    async def begin(
        self, request: Request, wanted: int, limit: int = sys.maxsize
    ) -> HttpExchange:
        """
        Send the request; receive the head of the answer and some bytes of its body.

        What has more than `limit` bytes is an error before it is in memory.

        It is sent once more if a connection that was open from before was closed.

        Raises:
            NodeError: There is no answer.
            SourceFailed: The file of an `Upload` failed.
            ClientUsageError: The client was closed meanwhile.
        """
        pool = self._pool
        connection = self._connection = await pool.acquire(self._until)
        self._is_open = True
        was_open = connection is not None
        while True:
            self._is_by_part = isinstance(request.body, Upload)
            if connection is None:
                connection = self._connection = await pool.open(self._deadline())
            exchange = self._exchange = HttpExchange(request, pool.host, limit)
            try:
                await connection.send(exchange, self._deadline)
                self._until = self._deadline()
                self._is_by_part = False
                await connection.receive(wanted)
            except OSError as error:
                if not was_open or not exchange.is_stale(error):
                    raise pool.error_of(error) from error
                connection.close()
                connection, was_open = None, False
            else:
                return exchange

    def _deadline(self) -> float:
        if self._is_by_part:
            return self._pool.clock() + self._timeout
        return self._until

    async def read(self, size: int | None) -> bytes:
        """
        Return up to `size` bytes, less only at the end; None: all that is left.

        Raises:
            NodeError: It ended before its announced end, or no part of it came in time.
            ClientUsageError: The body, or the client, is closed.
        """
        if not self._is_open:
            raise ClientUsageError("the stream is closed; read it within its block")
        self._is_by_part = True
        await self.receive(sys.maxsize if size is None else size)
        return self._exchange.read(size)

    async def receive(self, count: int) -> None:
        """
        Receive the body until so many bytes of it are there, or all.

        Raises:
            NodeError: It is not complete.
        """
        assert self._connection is not None  # noqa: S101 - After `begin`.
        try:
            await self._connection.receive(count)
        except OSError as error:
            raise self._pool.error_of(error) from error

    def close(self) -> None:
        """Give the connection back, or close it if the answer was not read to its end."""
        if self._is_open:
            self._is_open = False
            connection, self._connection = self._connection, None
            self._pool.release(connection)


async def send(pool: HttpPool[Any], step: Send) -> Answer:
    """
    Send a request and read its answer.

    Raises:
        NodeError: There is none, or not all of it.
        ClientUsageError: The client was closed meanwhile.
    """
    body = HttpBody(pool, step.timeout)
    try:
        return (await body.begin(step.request, sys.maxsize, pool.limit)).answer()
    finally:
        body.close()


async def open_body(pool: HttpPool[Any], step: Open) -> Answer | Opened:
    """
    Send a request and read the head of its answer, and the body if it is not 200.

    Raises:
        NodeError: There is none, or not all of it.
        ClientUsageError: The client was closed meanwhile.
    """
    body = HttpBody(pool, step.timeout)
    is_open = False
    try:
        exchange = await body.begin(step.request, 0)
        if exchange.status != _OK:
            await body.receive(sys.maxsize)
            return exchange.answer()
        if "Content-Length" not in exchange.headers:
            raise NodeConnectionError(step.node.name, "an answer of unknown length")
        is_open = True
        return Opened(_OK, exchange.headers, body)
    finally:
        if not is_open:
            body.close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    raise RuntimeError("a coroutine of threads has waited for a loop")
