"""What sends the requests of `Client`, and performs the steps of its operations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from volcache_client.connections import Pool
from volcache_client.errors import (
    InvalidArgumentError,
    NodeConnectionError,
    ValueTooLargeError,
)
from volcache_client.exchanges import HttpTransport, begin, run
from volcache_client.http1 import HttpExchange
from volcache_client.messages import Request
from volcache_client.nodes import parse_address
from volcache_client.options import Options

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from volcache_client.messages import Answer, Operation
    from volcache_client.nodes import Address
    from volcache_client.uploads import Upload

_FETCH_SECONDS: Final = 5.0
_FETCH_BYTES_MAX: Final = 16 << 20


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
        exchange = HttpExchange(pool.host, (request,), pool.limit)
        connection = run(begin(pool, exchange, timeout))
    except ValueTooLargeError:
        raise NodeConnectionError(
            address.name, f"the answer is longer than {limit_bytes} bytes"
        ) from None
    pool.release(connection)
    return exchange.answer()
