"""Exchanges of the client for threads: a request is sent, its answer is read."""

from __future__ import annotations

import http.client
import ssl
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as UrllibTimeoutError

from volcache_client import http1
from volcache_client.connections import (
    Pool,
    TimedConnection,
    TimedSocket,
    make_connection,
)
from volcache_client.errors import (
    CacheError,
    NodeConnectionError,
    NodeTimeoutError,
    PoolTimeoutError,
)
from volcache_client.messages import Answer, Opened
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from urllib3 import HTTPResponse

    from volcache_client.messages import Open, Request, Send
    from volcache_client.nodes import Node
    from volcache_client.options import Options

_OK: Final = 200
_NEVER: Final = float("inf")
# Of an answer other than 200: a line of text.
_TEXT_BYTES_MAX: Final = 64 << 10
_BROKEN: Final = (OSError, HTTPError, http.client.HTTPException, ValueError)


class Transport:
    """Sends requests over pools of connections; used by all threads."""

    def __init__(self, options: Options) -> None:
        """Open nothing yet."""
        self._options: Final = options
        self._pools: dict[Node, Pool] = {}
        self._lock = Lock()
        self._context: ssl.SSLContext | None = options.ssl_context

    def send(self, step: Send) -> Answer:
        """
        Send a request and read its answer.

        Raises:
            NodeError: There is none, or not all of it.
        """
        node, request, timeout = step
        until = time.monotonic() + timeout
        with _errors_of(node):
            exchange = _Exchange(self._pool(node), node, request, until)
            try:
                if isinstance(request.body, Upload):
                    return exchange.answer(exchange.begin(_NEVER, timeout))
                return exchange.whole(until)
            finally:
                exchange.end()

    def open(self, step: Open) -> Answer | Opened:
        """
        Send a request and read the head of its answer, and the body if it is not 200.

        Raises:
            NodeError: There is none, or not all of it.
        """
        node, request, timeout = step
        until = time.monotonic() + timeout
        with _errors_of(node):
            exchange = _Exchange(self._pool(node), node, request, until)
            opened = None
            try:
                response = exchange.begin(until, timeout)
                if response.status != _OK:
                    return exchange.answer(response)
                if response.length_remaining is None:
                    raise http.client.HTTPException("an answer of unknown length")
                exchange.limit(_NEVER, timeout)
                opened = Opened(_OK, response.headers, Body(exchange, response))
            finally:
                if opened is None:
                    exchange.end()
            return opened

    def connections(self) -> dict[Node, int]:
        """Return the open connections of each node."""
        return {node: pool.connections for node, pool in tuple(self._pools.items())}

    def keep(self, nodes: tuple[Node, ...]) -> None:
        """Close the pools of all other nodes."""
        with self._lock:
            others = self._pools.keys() - set(nodes)
            pools = [self._pools.pop(node) for node in others]
        for pool in pools:
            pool.close()

    def abandon(self) -> None:
        """Begin again in a child process, without the connections of its parent."""
        self._lock = Lock()
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.abandon()

    def _pool(self, node: Node) -> Pool:
        pool = self._pools.get(node)
        if pool is None:
            with self._lock:
                pool = self._pools.get(node)
                if pool is None:
                    pool = self._pools[node] = self._make_pool(node)
        return pool

    def _make_pool(self, node: Node) -> Pool:
        context = None
        if node.address.scheme == "https":
            self._context = self._context or ssl.create_default_context()
            context = self._context
        return Pool(
            lambda: make_connection(
                node.address, self._options.connect_timeout, context
            ),
            self._options.connections_max,
        )


class _Exchange:
    """One request on a connection of a pool, and its answer."""

    def __init__(self, pool: Pool, node: Node, request: Request, until: float) -> None:
        """
        Take a connection; `end` must follow.

        Raises:
            PoolTimeoutError: None is free in time.
        """
        connection = pool.acquire(until)
        if connection is None:
            raise PoolTimeoutError(
                node.name, f"all {pool.connections} connections are in use"
            )
        self.node: Final = node
        self._pool: Final = pool
        self._timed: TimedSocket | None = None
        self._connection: TimedConnection = connection
        self._request: Final = request
        self._is_reusable = False
        self._is_over = False

    # A server may close a connection that was open from before at the moment at which it is
    # used: then the request is sent once more, on a connection of its own.

    def whole(self, until: float) -> Answer:
        """Send the request and return the answer, with all of its body."""
        connection = self._connection
        connection.deadline, connection.each = until, _NEVER
        host = self.node.address.host_header
        timed = connection.timed
        done = None
        if timed is not None:
            timed.limit(until)
            try:
                done = http1.exchange(timed, self._request, host, _NEVER)
            except http1.NotAnsweredError:
                if not self._request.is_repeatable:
                    raise
                connection.close()
        if done is None:
            done = http1.exchange(self._connect(), self._request, host, _NEVER)
        self._is_reusable = done.is_reusable
        return done.answer

    def _connect(self) -> TimedSocket:
        self._connection.connect()
        timed = self._connection.timed
        assert timed is not None  # noqa: S101 - What `connect` does.
        return timed

    def begin(self, deadline: float, each: float) -> HTTPResponse:
        """Send the request and return the answer, whose body is not read."""
        before = self._connection.timed
        try:
            return self._ask(deadline, each)
        except (ConnectionError, ssl.SSLError):
            is_stale = before is not None and not before.has_received
            if not is_stale or not self._request.is_repeatable:
                raise
            self._connection.close()
            return self._ask(deadline, each)

    def _ask(self, deadline: float, each: float) -> HTTPResponse:
        self._connection.deadline, self._connection.each = deadline, each
        self._timed = self._connection.timed
        self.limit(deadline, each)
        self._send(each)
        return self._connection.getresponse()

    def limit(self, deadline: float, each: float) -> None:
        """Set the limits of what follows."""
        if self._timed is not None:
            self._timed.limit(deadline, each)

    def _send(self, each: float) -> None:
        method, path, headers, body, _ = self._request
        headers = {**headers, "Host": self.node.address.host_header}
        content: Any = body
        if isinstance(body, Upload):
            headers |= _framing(body)
            content = body.blocks()
        connection = self._connection
        try:
            connection.request(
                method,
                path,
                content,
                headers,
                preload_content=False,
                decode_content=False,
            )
        except (BrokenPipeError, ConnectionResetError):
            # It may have answered before it had read all, such as 413.
            if connection.timed is None:
                raise
        self._timed = connection.timed
        if isinstance(body, Upload):
            self.limit(time.monotonic() + each, each)

    def answer(self, response: HTTPResponse) -> Answer:
        """Read the body of an answer to an upload, or of one that is not 200."""
        body = response.read(_TEXT_BYTES_MAX, decode_content=False)
        self.ended(response)
        return Answer(response.status, response.headers, body)

    def ended(self, response: HTTPResponse) -> None:
        """
        Note that a part of the body was read: after the last one, the connection is free.

        Raises:
            NodeConnectionError: It was longer than its headers said.
        """
        is_over = response.isclosed()
        if is_over and self._timed is not None and not self._timed.is_in_step:
            raise http.client.HTTPException("the answer is longer than it announced")
        self._is_reusable = is_over and self._connection.timed is not None

    def end(self) -> None:
        """Give the connection back, or close it; harmless if that was done."""
        if self._is_over:
            return
        self._is_over = True
        if self._is_reusable:
            self._pool.give(self._connection)
            return
        # Of an answer that is the last one, the connection itself knows no socket.
        if self._timed is not None:
            self._timed.abort()
        self._pool.drop(self._connection)


class Body:
    """The body of an answer, read in parts; used by one thread at a time."""

    def __init__(self, exchange: _Exchange, response: HTTPResponse) -> None:
        """Take over the connection; `close` must follow."""
        self._exchange: Final = exchange
        self._response: Final = response

    def read(self, size: int | None) -> bytes:
        """
        Return up to `size` bytes, and none only at the end; None: all that is left.

        Raises:
            NodeError: It ended before its announced end, or no part of it came in time.
        """
        with _errors_of(self._exchange.node):
            data = self._response.read(size, decode_content=False)
            self._exchange.ended(self._response)
            return data

    def close(self) -> None:
        """Give the connection back, or close it if the body was not read to its end."""
        self._exchange.end()


def _framing(upload: Upload) -> Mapping[str, str]:
    if upload.size is None:
        return {"Transfer-Encoding": "chunked"}
    return {"Content-Length": str(upload.size)}


@contextmanager
def _errors_of(node: Node) -> Iterator[None]:
    """Raise what a library raises as an error of the node."""
    try:
        yield
    except CacheError:
        raise
    except (TimeoutError, UrllibTimeoutError) as error:
        raise NodeTimeoutError(node.name, "no answer in time") from error
    except _BROKEN as error:
        text = str(error) or type(error).__name__
        raise NodeConnectionError(node.name, text) from error
