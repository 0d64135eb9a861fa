"""
Exchanges on connections of a pool: what threads and tasks do alike.

All that may wait is a coroutine. Those of threads wait in the system and never suspend:
`run` returns their results.

Many requests are sent in a row on few connections, so that many keys cost one trip, not one
for each. What is in flight is bounded: so many requests and bytes on a connection, and so
many connections of a call.
"""

from __future__ import annotations

import select
import socket
import ssl
import sys
from collections import deque
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from volcache_client.errors import (
    ClientUsageError,
    NodeConnectionError,
    NodeError,
    PoolTimeoutError,
)
from volcache_client.http1 import (
    Host,
    HttpExchange,
    ValueSizeError,
    answer_error,
    connect_error,
    is_short,
)
from volcache_client.messages import Answer

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Coroutine,
        Iterator,
        Mapping,
        Sequence,
    )

    from volcache_client.errors import CacheError
    from volcache_client.messages import Operation, Request
    from volcache_client.nodes import Address, Node
    from volcache_client.options import Options

T = TypeVar("T")
_OK: Final = 200
_MILLISECONDS_MAX: Final = 1_000_000_000
# A connection that was used so many seconds ago is not checked before it is used again for
# what may be sent twice: what the server did since then is noticed when it is used.
UNCHECKED_SECONDS: Final = 0.01
# Until the next try, while the queue of a unix socket is full.
RETRY_SECONDS: Final = 0.005
# On one connection: the bytes fit the buffers of its sockets.
REQUESTS_MAX: Final = 64
_BYTES_MAX: Final = 64 << 10
# Of one call: the service reads several values from its disk at a time.
_LANES_MAX: Final = 4
# Fewer requests than this are not worth another connection.
_LANE_REQUESTS_MIN: Final = 32
# What a connection has of the timeout when another one has used it up.
_SHARE_MIN: Final = 0.1
CLOSED: Final = "the client was closed before the answer came"


class HttpConnection(Protocol):
    """
    A connection, for one exchange at a time; it is closed after any error.

    Attributes:
        until: When what is waited for must be there, by the clock of its pool; of an idle
            connection when it was used last.
        is_by_part: Whether each part has the whole timeout, not each answer.
    """

    until: float
    is_by_part: bool

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent after this exchange."""

    def is_in_step(self, *, is_checked: bool) -> bool:
        """Whether it is open, and nothing was received that was not asked for."""

    def start(self, exchange: HttpExchange, until: float, seconds: float) -> None:
        """
        Send the first part of what an exchange sends.

        Args:
            exchange: Just begun.
            until: When the first answer must be there.
            seconds: For each further one.

        Raises:
            OSError: As of the socket; a `TimeoutError` after the deadline.
        """

    async def send_rest(self, exchange: HttpExchange) -> None:
        """
        Send the rest of a request, or what the server reads of it before it answers.

        Raises:
            SourceFailed: The file of an `Upload` failed.
            OSError: As of the socket; a `TimeoutError` after the deadline.
        """

    async def receive(self, wanted: int) -> None:
        """
        Receive the head of an answer and some bytes of its body, or all answers.

        Raises:
            OSError: As of the socket, or the answer is broken; a `TimeoutError` after the
                deadline.
        """

    def close(self) -> None:
        """Close it; what waits fails."""


C = TypeVar("C", bound=HttpConnection)


class HttpPool(Generic[C]):
    """
    Connections to one node.

    They are opened when no other is free, up to a limit, and the one used last is used
    first, so that those of a busy time become idle, and are closed after a while.

    Attributes:
        name: Of the node.
        host: Of requests.
        limit: The most bytes of a value that is read as a whole.
        is_retired: Whether nothing is kept any longer.
    """

    def __init__(self, address: Address, options: Options) -> None:
        """Open nothing yet."""
        self.name: Final = address.name
        self.host: Final = Host(address.host_header)
        self.limit: Final = options.max_value_size
        self.is_retired = False
        self._address: Final = address
        self._context: Final = (
            options.ssl_context or _default_context()
            if address.scheme == "https"
            else None
        )
        self._options: Final = options
        # One step of either is atomic: no lock is needed to take and to give back.
        self._idle: Final[deque[C]] = deque()
        self._slots: Final = deque([None] * options.connections_max)

    @property
    def connections(self) -> int:
        """How many are in use or kept."""
        return self._options.connections_max - len(self._slots)

    @property
    def in_use(self) -> int:
        """How many are in use."""
        return max(0, self.connections - len(self._idle))

    def clock(self) -> float:
        """Return the time of deadlines."""
        raise NotImplementedError

    def take(self, *, is_checked: bool = False) -> C | None:
        """
        Return the idle connection used last; None: `open` one. `release` must follow.

        Raises:
            IndexError: All are in use.
        """
        connection = self._idle.pop() if self._idle else self._slots.pop()
        if connection is None or connection.is_in_step(is_checked=is_checked):
            return connection
        connection.close()
        return None

    async def wait(self, until: float) -> C | None:
        """
        Return what `take` does, when something is free.

        Raises:
            PoolTimeoutError: All are in use until then.
        """
        raise NotImplementedError

    def _is_full(self) -> PoolTimeoutError:
        text = f"all {self._options.connections_max} connections are in use"
        return PoolTimeoutError(self.name, text)

    async def open(self, until: float) -> C:
        """
        Open a connection.

        Raises:
            NodeError: There is none, with its reason.
            ClientUsageError: The client was closed.
        """
        try:
            most = self.clock() + self._options.connect_timeout
            return await self._open(min(until, most))
        except (OSError, ValueError) as error:  # The latter of a name.
            raise connect_error(self.name, error) from error

    async def _open(self, until: float) -> C:
        """Open a connection; the time is divided between the addresses of a host."""
        last: OSError = TimeoutError()
        targets = await self._resolve()
        for index, (family, target) in enumerate(targets):
            share = (until - self.clock()) / (len(targets) - index)
            raw = socket.socket(family, socket.SOCK_STREAM)
            try:
                return await self._connect(raw, target, share)
            except BaseException as error:
                raw.close()
                if not isinstance(error, OSError):
                    raise
                last = error
        raise last

    async def _resolve(self) -> list[tuple[int, Any]]:
        """Return families and addresses; the system does not bound how long it takes."""
        address = self._address
        if address.socket_path:
            return [(socket.AF_UNIX, address.socket_path)]
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return [(family, target) for family, _, _, _, target in found]

    async def _connect(
        self,
        raw: socket.socket,
        target: Any,  # noqa: ANN401 - Depends on the family.
        seconds: float,
    ) -> C:
        """Return a connection, TLS included."""
        raise NotImplementedError

    def release(self, connection: C | None) -> None:
        """Take back what `take`, `wait` or `open` has returned, if it is reusable."""
        if connection is not None and (self.is_retired or not connection.is_reusable):
            connection.close()
            connection = None
        self._give(connection)

    def _give(self, connection: C | None) -> None:
        if connection is None:
            self._slots.append(None)
        else:
            self._idle.append(connection)

    def retire(self) -> None:
        """Close those that are idle now, and the others when they are given back."""
        self.is_retired = True
        while self._idle:
            try:
                self._idle.popleft().close()
            except IndexError:  # Another thread was faster.
                return
            self._slots.append(None)


def readable(raw: Any) -> Callable[[float], bool]:  # noqa: ANN401 - Of asyncio it is wrapped.
    """
    Return a function: whether a socket has something, or its other end has closed it.

    It waits for that at most the seconds that it is given.
    """
    if not hasattr(select, "poll"):  # On Windows.
        return lambda seconds: bool(select.select([raw], [], [], seconds)[0])
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return lambda seconds: bool(poll.poll(min(1000 * seconds, _MILLISECONDS_MAX)))


@cache
def _default_context() -> ssl.SSLContext:
    """Return a context with the certificates of the system, which takes long to make."""
    return ssl.create_default_context()


P = TypeVar("P", bound=HttpPool[Any])


class HttpTransport(Generic[P]):
    """
    A driver: sends requests over pools of connections, waits, and calls functions.

    That of `Client` never waits for a loop: its coroutines run to their end at once. So
    what an operation does is written once.

    Attributes:
        is_closed: Whether the client was closed.
    """

    def __init__(self, options: Options) -> None:
        """Open nothing yet."""
        self.is_closed = False
        self._options: Final = options
        self._pools: dict[Node, P] = {}

    async def send(self, node: Node, request: Request, seconds: float) -> Answer:
        """
        Send a request and read its answer.

        Args:
            node: Where to.
            request: What.
            seconds: For the whole exchange; of an `Upload`, for each part, and for
                the answer.

        Raises:
            NodeError: There is none, or not all of it.
            ClientUsageError: The client was closed meanwhile.
        """
        pool = self._pools.get(node) or self._pool(node)
        exchange = HttpExchange(pool.host, (request,), pool.limit)
        pool.release(await begin(pool, exchange, seconds))
        return exchange.answer()

    async def send_many(
        self, node: Node, requests: Sequence[Request], seconds: float
    ) -> list[Answer | CacheError | None]:
        """
        Send requests in a row, which are repeatable, with short bodies or none.

        Returns:
            For the first ones of them, as many as fit: the answer, the error of the
            connection, or None if it may be sent again.

        Raises:
            NodeError: There is no connection.
            ClientUsageError: The client was closed meanwhile.
        """
        pool = self._pool(node)
        lanes: list[_Lane] = []
        try:
            for share in _shares(requests):
                try:
                    connection = pool.take()
                except IndexError:
                    if lanes:  # The first one waits; the others take what is free.
                        break
                    connection = await pool.wait(pool.clock() + seconds)
                lanes.append(_Lane(pool, share, connection))
                await lanes[-1].send(seconds)
                if not lanes[-1].works:
                    break
            for lane in lanes:
                await lane.receive(seconds)
            return [result for lane in lanes for result in lane.results()]
        finally:
            for lane in lanes:
                lane.close()

    async def open(
        self, node: Node, request: Request, seconds: float
    ) -> tuple[Answer, HttpBody | None]:
        """
        Send a request and read the head of its answer, and the body if it is not 200.

        `seconds` are those until the head, and then between two parts.

        Returns:
            The answer, and what reads the body of a 200, which must be closed.
        """
        pool = self._pool(node)
        exchange = HttpExchange(pool.host, (request,), is_whole=False)
        body = HttpBody(
            pool, await begin(pool, exchange, seconds, 0), exchange, seconds
        )
        with ExitStack() as stack:
            stack.callback(body.close)
            if exchange.status != _OK:
                await body.receive(sys.maxsize)
                return exchange.answer(), None
            if "Content-Length" not in exchange.headers:
                raise NodeConnectionError(pool.name, "an answer of unknown length")
            stack.pop_all()
        return Answer(_OK, exchange.headers, b""), body

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        raise NotImplementedError

    async def call(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a function of the application; return its result, awaited if it can be."""
        raise NotImplementedError

    async def finish(self, steps: Operation[None], error: BaseException) -> None:
        """Perform the last steps of an operation that ends by an error."""
        raise NotImplementedError

    def connections(self) -> Mapping[Node, tuple[int, int]]:
        """Return how many are open to each node, and in use."""
        pools = tuple(self._pools.items())
        return {node: (pool.connections, pool.in_use) for node, pool in pools}

    def keep(self, nodes: Collection[Node]) -> None:
        """Close the connections to all other nodes, those in use when they are free."""
        for node in self._pools.keys() - set(nodes):
            if pool := self._pools.pop(node, None):
                pool.retire()

    def check_open(self) -> None:
        """
        Return if the client is open.

        Raises:
            ClientUsageError: It is closed.
        """
        if self.is_closed:
            raise ClientUsageError("the client is closed")

    def _pool(self, node: Node) -> P:
        self.check_open()
        pool = self._pools.get(node)
        return pool or self._pools.setdefault(node, self._make_pool(node.address))

    def _make_pool(self, address: Address) -> P:
        raise NotImplementedError


# --- One exchange -----------------------------------------------------------------------


async def begin(
    pool: HttpPool[C], exchange: HttpExchange, seconds: float, wanted: int = sys.maxsize
) -> C:
    """
    Send a request; receive its answer, or the head and so many bytes of its body.

    It is sent once more if a connection that was open from before was closed.

    Returns:
        The connection, for `release`.

    Raises:
        NodeError: There is no answer.
        SourceFailed: The file of an `Upload` failed.
        ClientUsageError: The client was closed meanwhile.
    """
    until = pool.clock() + seconds
    request = exchange.request
    try:
        connection = pool.take(is_checked=not request.is_repeatable)
    except IndexError:
        connection = await pool.wait(until)
    was_open = connection is not None
    try:
        while True:
            if connection is None:
                connection = await pool.open(until)
            try:
                connection.start(exchange, until, seconds)
                if request.body is not None and not is_short(request):
                    await connection.send_rest(exchange)
                await connection.receive(wanted)
            except OSError as error:
                if not was_open or not exchange.is_stale(error):
                    raise answer_error(pool.name, error) from error
                connection.close()
                connection, was_open = None, False
                continue
            return connection
    except BaseException:
        pool.release(connection)
        raise


class HttpBody:
    """
    The body of an answer; read by one thread or task at a time.

    Attributes:
        on_error: Called with an error of the node before `read` raises it.
    """

    on_error: Callable[[NodeError], object]

    def __init__(
        self,
        pool: HttpPool[Any],
        connection: HttpConnection,
        exchange: HttpExchange,
        seconds: float,
    ) -> None:
        """Take a connection on which a head was received; `close` must follow."""
        self._pool: Final = pool
        self._exchange: Final = exchange
        self._seconds: Final = seconds
        self._connection: HttpConnection | None = connection

    async def read(self, size: int) -> bytes:
        """
        Return up to `size` bytes, less only at the end; below 0: all that is left.

        Raises:
            NodeError: It ended before its announced end, or no part of it came in time.
            ClientUsageError: The body, or the client, is closed.
        """
        if self._connection is None:
            raise ClientUsageError("the stream is closed; read it within its block")
        self._connection.is_by_part = True
        self._connection.until = self._pool.clock() + self._seconds
        wanted = sys.maxsize if size < 0 else size
        try:
            await self.receive(wanted)
        except NodeError as error:
            self.on_error(error)
            raise
        return self._exchange.read(wanted)

    async def receive(self, count: int) -> None:
        """
        Receive the body until so many bytes of it are there, or all.

        Raises:
            NodeError: It is not complete.
        """
        assert self._connection is not None  # noqa: S101 - Not closed.
        try:
            await self._connection.receive(count)
        except OSError as error:
            raise answer_error(self._pool.name, error) from error

    def close(self) -> None:
        """Give the connection back, or close it if the answer was not read to its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    raise RuntimeError("a coroutine of threads has waited for a loop")


# --- Requests in a row ------------------------------------------------------------------


class _Lane:
    """
    Some of the requests, on one connection.

    Attributes:
        works: Whether the connection does, so far.
    """

    def __init__(
        self,
        pool: HttpPool[Any],
        requests: Sequence[Request],
        connection: Any,  # noqa: ANN401
    ) -> None:
        self.works = True
        self._pool: Final = pool
        self._count: Final = len(requests)
        self._exchange: Final = HttpExchange(pool.host, requests, pool.limit)
        self._connection: Any = connection
        self._was_open: Final = connection is not None
        # Of the first request without an answer, if its value is too large.
        self._refused: list[CacheError] = []
        # Of those that are left; None: they may be sent again.
        self._error: CacheError | None = None

    async def send(self, seconds: float) -> None:
        """Send the requests."""
        until = self._pool.clock() + seconds
        try:
            if self._connection is None:
                self._connection = await self._pool.open(until)
            self._connection.start(self._exchange, until, seconds)
        except NodeError as error:  # There is no connection.
            self.works, self._error = False, error
        except OSError as error:
            self._failed(error)

    async def receive(self, seconds: float) -> None:
        """Receive the answers; another connection may have used up the time."""
        if not self.works:
            return
        least = self._pool.clock() + _SHARE_MIN * seconds
        self._connection.until = max(self._connection.until, least)
        try:
            await self._connection.receive(sys.maxsize)
        except OSError as error:
            self._failed(error)
            return
        if not self._exchange.answers:  # More of its text is not read.
            self._exchange.answers.append(self._exchange.answer())

    def _failed(self, error: OSError) -> None:
        """
        Remember the error, unless the requests that are left may be sent again.

        A server may close a connection at any moment between two answers.
        """
        self.works = False
        has_worked = self._was_open or bool(self._exchange.answers)
        if isinstance(error, ValueSizeError):
            self._refused = [answer_error(self._pool.name, error)]
        elif not has_worked or not self._exchange.is_stale(error):
            self._error = answer_error(self._pool.name, error)

    def results(self) -> list[Answer | CacheError | None]:
        """Return what became of each request."""
        found: list[Any] = [*self._exchange.answers, *self._refused]
        return found + [self._error] * (self._count - len(found))

    def close(self) -> None:
        """Give the connection back, or close it."""
        self._pool.release(self._connection)


def _shares(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Yield the requests of each connection, of the first ones of them."""
    lengths = [len(one.path) + len(one.body or b"") for one in requests]  # type: ignore[arg-type] # No Upload.
    most = min(max(-(-len(requests) // _LANES_MAX), _LANE_REQUESTS_MIN), REQUESTS_MAX)
    begin = 0
    for _ in range(_LANES_MAX):
        end = min(begin + most, len(requests))
        while end > begin + 1 and sum(lengths[begin:end]) > _BYTES_MAX:
            end = (begin + end) // 2
        if end > begin:
            yield requests[begin:end]
        begin = end
