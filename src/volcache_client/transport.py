"""Exchanges of the client for threads: a request is sent, its answer is read."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from volcache_client.connections import Pool
from volcache_client.errors import (
    ClientUsageError,
    InvalidArgumentError,
    NodeConnectionError,
)
from volcache_client.exchanges import HttpBody, open_body, run, send
from volcache_client.messages import Answer, Opened, Request
from volcache_client.nodes import parse_address
from volcache_client.pipelines import send_many

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from volcache_client.connections import Connection
    from volcache_client.errors import CacheError
    from volcache_client.messages import Open, Send, SendMany
    from volcache_client.nodes import Node
    from volcache_client.options import Options
    from volcache_client.uploads import Upload

_FETCH_SECONDS: Final = 5.0
_FETCH_BYTES_MAX: Final = 16 << 20


class Transport:
    """
    Sends requests over pools of connections; used by all threads.

    Attributes:
        is_closed: Whether the client was closed.
    """

    def __init__(self, options: Options) -> None:
        """Open nothing yet."""
        self.is_closed = False
        self._options: Final = options
        self._pools: dict[Node, Pool] = {}
        self._lock = Lock()

    async def send(self, step: Send) -> Answer:
        """Send a request and read its answer; see `exchanges.send`."""
        return await send(self._pool(step.node), step)

    async def send_many(self, step: SendMany) -> list[Answer | CacheError | None]:
        """Send requests in a row; see `pipelines.send_many`."""
        return await send_many(self._pool(step.node), step)

    async def open(self, step: Open) -> Answer | Opened:
        """Send a request and open its answer; see `exchanges.open_body`."""
        opened = await open_body(self._pool(step.node), step)
        if isinstance(opened, Opened):
            return opened._replace(body=Body(opened.body))
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

    def check_open(self) -> None:
        """
        Return if the client is open.

        Raises:
            ClientUsageError: It is closed.
        """
        if self.is_closed:
            raise ClientUsageError("the client is closed")

    def _pool(self, node: Node) -> Pool:
        self.check_open()
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
                        options.max_value_size,
                    )
        return pool


class Body:
    """The body of an answer; used by one thread at a time."""

    def __init__(self, body: HttpBody[Connection]) -> None:
        """Take a body that was opened."""
        self._body: Final = body
        self.close: Final = body.close

    def read(self, size: int | None) -> bytes:
        """Return up to `size` bytes, or all that are left; see `HttpBody`."""
        return run(self._body.read(size))


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
    exchange = HttpBody(pool, timeout)
    try:
        request = Request(method, path, sent, body)
        answer = run(exchange.begin(request, limit_bytes + 1)).answer()
    finally:
        exchange.close()
        pool.close()
    if len(answer.body) > limit_bytes:
        raise NodeConnectionError(
            address.name, f"the answer is longer than {limit_bytes} bytes"
        )
    return answer
