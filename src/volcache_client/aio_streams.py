"""Values that are read in parts by `AsyncClient`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache_client.aio_pools import NO_ANSWER
from volcache_client.errors import ClientUsageError, NodeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import aiohttp

    from volcache_client.aio_pools import NodePool
    from volcache_client.core import Streamed
    from volcache_client.messages import Stat

PART_BYTES: Final = 1 << 16


class AsyncBody:
    """The body of an answer, and the pool to which its connection is given back."""

    def __init__(self, pool: NodePool, response: aiohttp.ClientResponse) -> None:
        """Take a response that the pool has opened."""
        self._pool: Final = pool
        self._response: Final = response
        self._is_closed = False

    async def read(self, size: int) -> bytes:
        """
        Return up to `size` bytes, at least one; none at the end; all that is left for -1.

        Raises:
            NodeError: The node does not send them; the connection is closed.
            ClientUsageError: The body is closed.
        """
        if self._is_closed:
            raise ClientUsageError("the stream is closed; read it within `async with`")
        if self._pool.is_closed:
            raise self._pool.error_of(ConnectionError())
        try:
            return await self._response.content.read(size)
        except NO_ANSWER as error:
            self._response.close()
            raise self._pool.error_of(error) from error

    def close(self) -> None:
        """Give the connection back; close it if there is more to read."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.closed(self._response)


class AsyncStream:
    """
    A value that is read in parts, by one task at a time.

    Attributes:
        stat: Of the value.
    """

    def __init__(
        self, streamed: Streamed, on_error: Callable[[NodeError], object]
    ) -> None:
        """Take what `Core.stream` returned; `on_error` counts an error that is raised."""
        self.stat: Final[Stat] = streamed.stat
        self._body: Final[AsyncBody] = streamed.body
        self._on_error: Final = on_error

    async def read(self, size: int = -1) -> bytes:
        """
        Return up to `size` bytes, less only at the end; with -1 all that are left.

        Raises:
            NodeError: The value ends before its size; what was read is not complete.
            ClientUsageError: The stream is closed.
        """
        part = await self._read(size)
        if size < 0 or len(part) == size:
            return part
        parts = [part]
        while part and (size := size - len(part)):
            part = await self._read(size)
            parts.append(part)
        return b"".join(parts)

    async def _read(self, size: int) -> bytes:
        try:
            return await self._body.read(size)
        except NodeError as error:
            self._on_error(error)
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield all parts that are left."""
        while part := await self.read(PART_BYTES):
            yield part
