"""Values that are read in parts by `AsyncClient`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache_client.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from volcache_client.aio_transport import AsyncBody
    from volcache_client.core import Streamed
    from volcache_client.messages import Stat

PART_BYTES: Final = 1 << 16


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
        try:
            return await self._body.read(None if size < 0 else size)
        except NodeError as error:
            self._on_error(error)
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield all parts that are left."""
        while part := await self.read(PART_BYTES):
            yield part
