"""Exchanges of the client for threads: a request is sent, its answer is read."""

from __future__ import annotations

import sys
import time
from threading import Lock
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from volcache_client.connections import Pool
from volcache_client.errors import (
    ClientUsageError,
    InvalidArgumentError,
    NodeConnectionError,
)
from volcache_client.http1 import TEXT_BYTES_MAX, HttpExchange, answer_error
from volcache_client.messages import Answer, Opened, Request
from volcache_client.nodes import parse_address
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from volcache_client.connections import Connection
    from volcache_client.messages import Open, Send
    from volcache_client.nodes import Node
    from volcache_client.options import Options

_OK: Final = 200
_FETCH_SECONDS: Final = 5.0
_FETCH_BYTES_MAX: Final = 16 << 20


class Transport:
    """Sends requests over pools of connections; used by all threads."""

    def __init__(self, options: Options) -> None:
        """Open nothing yet."""
        self._options: Final = options
        self._pools: dict[Node, Pool] = {}
        self._lock = Lock()

    def send(self, step: Send) -> Answer:
        """
        Send a request and read its answer.

        Raises:
            NodeError: There is none, or not all of it.
        """
        body = Body(self._pool(step.node), step.timeout)
        try:
            return body.begin(step.request, sys.maxsize).answer()
        finally:
            body.close()

    def open(self, step: Open) -> Answer | Opened:
        """
        Send a request and read the head of its answer, and the body if it is not 200.

        Raises:
            NodeError: There is none, or not all of it.
        """
        body = Body(self._pool(step.node), step.timeout)
        is_open = False
        try:
            exchange = body.begin(step.request, 0)
            if exchange.status != _OK:
                body.receive(TEXT_BYTES_MAX)
                return exchange.answer()
            if "Content-Length" not in exchange.headers:
                raise NodeConnectionError(step.node.name, "an answer of unknown length")
            is_open = True
            return Opened(_OK, exchange.headers, body)
        finally:
            if not is_open:
                body.close()

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
            options = self._options
            with self._lock:
                pool = self._pools.get(node)
                if pool is None:
                    pool = self._pools[node] = Pool(
                        node.address,
                        options.connections_max,
                        options.connect_timeout,
                        options.ssl_context,
                    )
        return pool


class Body:
    """
    One exchange, and the body of its answer; used by one thread at a time.

    There is one deadline until the head of the answer, and for the answer as a whole; one
    for each part of an `Upload`, and of a body that is read in parts.
    """

    def __init__(self, pool: Pool, timeout: float) -> None:
        """
        Take a connection of the pool, or the right to open one; `close` must follow.

        Raises:
            PoolTimeoutError: None is free in time.
        """
        self._pool: Final = pool
        self._timeout: Final = timeout
        self._until = time.monotonic() + timeout
        self._is_by_part = False
        self._is_closed = False
        self._exchange: HttpExchange
        self._connection: Connection | None = pool.acquire(self._until)

    def begin(self, request: Request, wanted: int) -> HttpExchange:
        """
        Send the request; receive the head of the answer and some bytes of its body.

        A server may close a connection that was open from before at the moment at which it
        is used: then the request is sent once more, on a new connection.

        Raises:
            NodeError: There is no answer.
            SourceFailed: The file of an `Upload` failed.
        """
        connection = self._connection
        was_open = connection is not None
        while True:
            self._is_by_part = isinstance(request.body, Upload)
            if connection is None:
                connection = self._connection = self._pool.open(self._deadline())
            exchange = self._exchange = HttpExchange(request, self._pool.host)
            try:
                connection.send(exchange, self._deadline)
                if self._is_by_part:
                    self._until = self._deadline()
                    self._is_by_part = False
                connection.receive(exchange, wanted, self._deadline)
            except OSError as error:
                if not was_open or not exchange.is_stale(error):
                    raise answer_error(self._pool.name, error) from error
                connection.close()
                connection, was_open = None, False
            else:
                return exchange

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout if self._is_by_part else self._until

    def read(self, size: int | None) -> bytes:
        """
        Return up to `size` bytes, less only at the end; None: all that is left.

        Raises:
            NodeError: It ended before its announced end, or no part of it came in time.
            ClientUsageError: The body is closed.
        """
        if self._is_closed:
            raise ClientUsageError("the stream is closed; read it within its block")
        self._is_by_part = True
        self.receive(sys.maxsize if size is None else size)
        return self._exchange.read(size)

    def receive(self, count: int) -> None:
        """
        Receive the body until so many bytes of it are there, or all.

        Raises:
            NodeError: It is not complete.
        """
        assert self._connection is not None  # noqa: S101 - After `begin`.
        try:
            self._connection.receive(self._exchange, count, self._deadline)
        except OSError as error:
            raise answer_error(self._pool.name, error) from error

    def close(self) -> None:
        """Give the connection back, or close it if the answer was not read to its end."""
        if not self._is_closed:
            self._is_closed = True
            is_reusable = self._connection is not None and self._exchange.is_reusable
            self._pool.release(self._connection, is_reusable=is_reusable)


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
    pool = Pool(address, 1, timeout, ssl_context)
    exchange = Body(pool, timeout)
    try:
        request = Request(method, path, sent, body)
        answer = exchange.begin(request, limit_bytes + 1).answer()
    finally:
        exchange.close()
        pool.close()
    if len(answer.body) > limit_bytes:
        raise NodeConnectionError(
            address.name, f"the answer is longer than {limit_bytes} bytes"
        )
    return answer
