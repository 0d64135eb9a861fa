"""
Connections of `AsyncClient` to one node.

Values that are read or written as a whole are exchanged by `aio_http1.py`, streams and
files by aiohttp. Each node has both of its own, with one bound: its connections are counted
and closed without regard to those of other nodes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import BaseConnector
from aiohttp.http import HttpProcessingError
from yarl import URL

from volcache_client.aio_http1 import (
    KEPT_SECONDS,
    Connections,
    ConnectTimeoutError,
    look_up,
)
from volcache_client.aio_uploads import FilePayload
from volcache_client.errors import (
    ClientUsageError,
    NodeConnectionError,
    NodeError,
    NodeTimeoutError,
    PoolTimeoutError,
)
from volcache_client.messages import Answer
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

    from volcache_client.messages import Request
    from volcache_client.nodes import Node
    from volcache_client.options import Options

_CLOSED: Final = "the client was closed before the answer came"

# What aiohttp raises when a connection breaks before the head of an answer.
_BROKEN: Final = (
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
    aiohttp.ServerDisconnectedError,
)
# Everything that means that there is no complete answer.
NO_ANSWER: Final = (aiohttp.ClientError, OSError, HttpProcessingError)


class NodePool:
    """
    Connections to one node; used by the tasks of one loop.

    Attributes:
        name: Of the node.
        session: What has the connections of streams and files.
        is_closed: Whether `close` was called.

    Invariants:
        - A request is sent once, or twice if it is repeatable, and the first time on a
          connection that was used before and broke before the head of an answer.
        - No more connections than `connections_max` are open: before one is opened, an idle
          one of the other kind is closed.
        - A retired pool has no connections when nothing is in use.
    """

    def __init__(
        self, node: Node, options: Options, on_unused: Callable[[NodePool], object]
    ) -> None:
        """
        Open no connection yet; called within the loop.

        Args:
            node: Where to.
            options: Of the client.
            on_unused: Called when nothing is in use, of a retired pool.
        """
        address = node.address
        self.name: Final = node.name
        self._base: Final = URL.build(
            scheme=address.scheme, host=address.host, port=address.port
        )
        self._loop: Final = asyncio.get_running_loop()
        self._connect_timeout: Final = options.connect_timeout
        self._connections_max: Final = options.connections_max
        context = None
        if address.scheme == "https":
            context = options.ssl_context or _default_context()
        self._whole: Final = Connections(
            address, options.connect_timeout, context, self._make_room
        )
        self._connector: Final = _open_connector(node, options, context)
        self.session: Final = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        self._once: Final = (self._send_once,)
        self._twice: Final = (self._send_twice,)
        self._on_unused: Final = on_unused
        # For both kinds of connections.
        self._free = options.connections_max
        self._waiting: Final[deque[asyncio.Future[None]]] = deque()
        self._in_use = 0  # Also those that wait.
        self.is_closed = False
        self._is_retired = False

    @property
    def connections(self) -> int:
        """Open connections, in use or kept."""
        return self._whole.count + self._connector.count()

    def _make_room(self) -> None:
        """
        Close idle connections of aiohttp if one more would be too many.

        Raises:
            ClientUsageError: The pool was closed meanwhile.
        """
        if self.is_closed:
            raise ClientUsageError(_CLOSED)
        used = self._connections_max - self._free  # Each has one, or opens it.
        while used + self._whole.idle + self._connector.idle > self._connections_max:
            if not self._connector.close_idle():
                break

    async def send(self, request: Request, seconds: float) -> Answer:
        """
        Send a request and read its answer.

        Args:
            request: What to send.
            seconds: For all of it, waiting for a connection included; of an `Upload`, for
                each part, and for the answer.

        Raises:
            NodeError: There is no complete answer.
            SourceFailed: The file of an `Upload` failed.
            ClientUsageError: The pool was closed meanwhile.
        """
        if isinstance(request.body, Upload):
            return await self._upload(request, request.body, seconds)
        deadline = self._loop.time() + seconds
        await self._begin(seconds)
        try:
            return await self._whole.exchange(request, deadline)
        except OSError as error:
            raise self.error_of(error) from error
        finally:
            self._ended()

    async def open(self, request: Request, seconds: float) -> aiohttp.ClientResponse:
        """
        Send a request; return its answer with an unread body, to be given to `closed`.

        Args:
            request: What to send.
            seconds: For a connection, for the head, and then between two parts.

        Raises:
            NodeError: There is no answer.
            ClientUsageError: The pool was closed meanwhile.
        """
        await self._begin(seconds)
        is_open = False
        try:
            response = await self._request(request, request.body, self._parts(seconds))
            is_open = True
        except NO_ANSWER as error:
            raise self.error_of(error) from error
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        finally:
            if not is_open:
                self._ended()
        return response

    def closed(self, response: aiohttp.ClientResponse) -> None:
        """Give the connection of an answer back, or close it if the body is not read."""
        response.release()
        self._ended()

    async def _begin(self, seconds: float) -> None:
        """
        Wait until a connection may be used; `_ended` must follow.

        Raises:
            PoolTimeoutError: None became free in time.
            ClientUsageError: The pool was closed meanwhile.
        """
        self._in_use += 1
        if self._free:
            self._free -= 1
        else:
            await self._wait(seconds)
        if self.is_closed:
            self._ended()
            raise ClientUsageError(_CLOSED)

    async def _wait(self, seconds: float) -> None:
        """Wait for a connection."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.cancelled():
                self._leave()
            else:
                self._ended()  # It became free at the same moment.
            if isinstance(error, TimeoutError):
                text = "no connection became free in time"
                raise PoolTimeoutError(self.name, text) from None
            raise

    def _ended(self) -> None:
        """Let the next one use the connection."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        else:
            self._free += 1
        self._leave()

    def _leave(self) -> None:
        self._in_use -= 1
        if self._is_retired and not self._in_use:
            self._on_unused(self)

    async def _upload(self, request: Request, upload: Upload, seconds: float) -> Answer:
        """Send a file; see `send`."""
        await self._begin(seconds)
        payload: FilePayload | None = None
        try:
            async with asyncio.timeout(seconds) as limit:
                payload = FilePayload(upload, limit, seconds)
                response = await self._request(request, payload, self._parts(seconds))
                body = await response.read()
        except NO_ANSWER as error:
            if payload is not None and payload.failure is not None:
                raise payload.failure from None
            raise self.error_of(error) from error
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        finally:
            self._ended()
            if payload is not None and upload.is_repeatable:
                await payload.settle()  # Soon: it is no pipe. The file is closed next.
        return Answer(response.status, response.headers, body)

    async def _request(
        self, request: Request, data: object, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send a request; return its answer with an unread body."""
        used = self._connections_max - self._free
        while used + self._whole.idle > self._connections_max:
            self._whole.close_idle()
        path = request.path
        if "?" in path:
            url = URL(str(self._base).rstrip("/") + path, encoded=True)
        else:
            url = self._base.with_path(path, encoded=True)
        return await self.session.request(
            request.method,
            url,
            data=data,
            headers=request.headers,
            timeout=limits,
            allow_redirects=False,
            middlewares=self._twice if request.is_repeatable else self._once,
        )

    def _parts(self, seconds: float) -> aiohttp.ClientTimeout:
        """Return limits for a connection, and then for each part."""
        return aiohttp.ClientTimeout(
            total=None,
            sock_connect=min(seconds, self._connect_timeout),
            sock_read=seconds,
        )

    def error_of(self, error: Exception) -> NodeError | ClientUsageError:
        """Return our error for one of aiohttp, or of `aio_http1.py`."""
        if self.is_closed:
            return ClientUsageError(_CLOSED)
        if isinstance(error, aiohttp.ConnectionTimeoutError | ConnectTimeoutError):
            return NodeTimeoutError(self.name, "no connection in time")
        if isinstance(error, TimeoutError):
            return NodeTimeoutError(self.name, "no answer in time")
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = error.os_error.strerror or error.os_error
            return NodeConnectionError(self.name, f"cannot connect: {reason}")
        if isinstance(error, aiohttp.ClientResponseError):
            reason = error.message.partition("\n")[0].rstrip(":")
            return NodeConnectionError(self.name, f"not an answer of HTTP: {reason}")
        return NodeConnectionError(self.name, str(error) or type(error).__name__)

    def _check_cancelled(self) -> None:
        """
        Return if this task was cancelled.

        Closing the session cancels what waits for a connection, but not the task.

        Raises:
            ClientUsageError: The pool was closed.
        """
        task = asyncio.current_task()
        if self.is_closed and task is not None and not task.cancelling():
            raise ClientUsageError(_CLOSED)

    async def _send_once(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request; aiohttp would repeat a PUT, whatever its condition."""
        try:
            return await send(request)
        except aiohttp.ClientConnectorError:
            raise
        except _BROKEN as error:
            raise _BrokenError(str(error)) from error

    async def _send_twice(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request, again if the connection broke that was used before."""
        try:
            return await send(request)
        except aiohttp.ClientConnectorError:
            raise
        except _BROKEN as error:
            if self._connector.was_new(request):
                raise _BrokenError(str(error)) from error
        return await self._send_once(request, send)

    # --- The end ------------------------------------------------------------------

    def retire(self) -> None:
        """Call `on_unused` when nothing is in use, which may be now."""
        self._is_retired = True
        if not self._in_use:
            self._on_unused(self)

    async def close(self) -> None:
        """Close all connections, also those in use."""
        self.is_closed = True
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        await self._whole.close()
        await self.session.close()


class Pools:
    """The pools of a client, one for each node that was asked."""

    def __init__(self, options: Options) -> None:
        self._options: Final = options
        self._pools: Final[dict[Node, NodePool]] = {}
        self._retired: Final[set[NodePool]] = set()
        self._closing: Final[set[asyncio.Task[None]]] = set()
        _all.add(self)

    def of(self, node: Node) -> NodePool:
        """Return the pool of a node."""
        pool = self._pools.get(node)
        if pool is None:
            pool = NodePool(node, self._options, self._close_soon)
            self._pools[node] = pool
        return pool

    def connections(self) -> dict[Node, int]:
        """Return how many connections are open."""
        return {node: pool.connections for node, pool in self._pools.items()}

    def keep(self, nodes: Collection[Node]) -> None:
        """Retire the pools of all other nodes."""
        for node in self._pools.keys() - set(nodes):
            pool = self._pools.pop(node)
            self._retired.add(pool)
            pool.retire()

    def _close_soon(self, pool: NodePool) -> None:
        self._retired.discard(pool)
        task = asyncio.get_running_loop().create_task(pool.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        pools = [*self._pools.values(), *self._retired]
        await asyncio.gather(*(pool.close() for pool in pools), *self._closing)

    def detach(self) -> None:
        """Let the sessions be deleted without a word, as the process ends."""
        for pool in [*self._pools.values(), *self._retired]:
            pool.session.detach()

    def abandon(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Close what is open without waiting, from any thread; return whether it was."""
        if self in _of_parent:
            return False
        pools = [*self._pools.values(), *self._retired]
        is_any = not all(pool.session.closed for pool in pools)
        if loop.is_closed():
            for pool in pools:  # Nothing is waited for: the connections ended as well.
                with suppress(StopIteration):
                    pool.close().send(None)
        elif is_any:
            loop.call_soon_threadsafe(lambda: loop.create_task(self.close()))
        return is_any


# A child process has the selector of the loop in common with its parent. Pools that were
# deleted there would remove their connections from it, and the parent would wait for ever.
_all: Final[WeakSet[Pools]] = WeakSet()
_of_parent: Final[set[Pools]] = set()


def _after_fork() -> None:
    _of_parent.update(_all)
    for pools in _of_parent:
        pools.detach()


os.register_at_fork(after_in_child=_after_fork)


class _BrokenError(aiohttp.ClientError):
    """A connection broke; unlike that of aiohttp, it does not repeat the request."""


class _Connector(BaseConnector):
    """Counts connections, and knows which requests got a new one."""

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 - Those of aiohttp.
        super().__init__(**arguments)
        self._opened: Final[set[ResponseHandler]] = set()
        self._in_use: Final[set[ResponseHandler]] = set()
        self._first_uses: Final[WeakSet[aiohttp.ClientRequest]] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - As in the base class.
    ) -> Connection:
        """Return a connection on which nothing was received that was not asked for."""
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol not in self._opened:
                break
            if not protocol.should_close:
                self._record_use(connection, protocol)
                return connection
            connection.close()
        self._opened.difference_update(
            [known for known in self._opened if not known.is_connected()]
        )
        if protocol is not None:
            self._opened.add(protocol)
            self._record_use(connection, protocol)
        self._first_uses.add(req)
        return connection

    def _record_use(self, connection: Connection, protocol: ResponseHandler) -> None:
        self._in_use.add(protocol)
        connection.add_callback(partial(self._in_use.discard, protocol))

    @property
    def idle(self) -> int:
        """How many connections are open and not in use."""
        return sum(one.is_connected() for one in self._opened - self._in_use)

    def close_idle(self) -> bool:
        """Close a connection that is not in use; return whether there was one."""
        for one in self._opened - self._in_use:
            if one.is_connected():
                one.close()
                return True
        return False

    def was_new(self, request: aiohttp.ClientRequest) -> bool:
        """Whether the request was sent on a connection that nothing had used."""
        return request in self._first_uses

    def count(self) -> int:
        """Return the number of open connections."""
        return sum(protocol.is_connected() for protocol in self._opened)


class _TcpConnector(_Connector, aiohttp.TCPConnector):
    pass


class _Resolver(AbstractResolver):
    """Resolves names as `aio_http1.py` does."""

    async def resolve(
        self, host: str, port: int = 0, family: int = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await look_up(host, port)
        return [
            ResolveResult(
                hostname=host,
                # Of IPv6, the interface of a link-local address follows its flow.
                host="%".join(map(str, filter(None, (target[0], *target[3:])))),
                port=port,
                family=kind,
                proto=protocol,
                flags=0,
            )
            for kind, _, protocol, _, target in found
            if family in {socket.AF_UNSPEC, kind}
        ]

    async def close(self) -> None:
        """Do nothing: the threads are those of all clients."""


class _UnixConnector(_Connector, aiohttp.UnixConnector):
    pass


def _open_connector(
    node: Node, options: Options, context: ssl.SSLContext | None
) -> _Connector:
    arguments: dict[str, Any] = {
        "limit": options.connections_max,
        "keepalive_timeout": KEPT_SECONDS,
    }
    if node.address.socket_path:
        return _UnixConnector(path=node.address.socket_path, **arguments)
    if context is not None:
        arguments["ssl"] = context
    return _TcpConnector(resolver=_Resolver(), **arguments)


@cache
def _default_context() -> ssl.SSLContext:
    """Return a context with the certificates of the system, which takes long to make."""
    return ssl.create_default_context()
