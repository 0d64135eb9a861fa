"""Files that `AsyncClient` sends; they are read in a thread."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiohttp import Payload

from volcache_client.uploads import SourceFailed, Upload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp.abc import AbstractStreamWriter

# Blocks of a file that are read at a time, 1 MiB: a thread costs more than a block.
_BLOCKS: Final = 16


class FilePayload(Payload):
    """
    A file as aiohttp sends it; each time from its beginning.

    Attributes:
        failure: Why the file could not be read; None: it could.
    """

    def __init__(self, upload: Upload, limit: asyncio.Timeout, seconds: float) -> None:
        """
        Read nothing yet.

        Args:
            upload: The file.
            limit: Moved on with each part that is sent; it does not run while the file is
                read.
            seconds: For each part.
        """
        super().__init__(upload)
        self._size = upload.size
        self._upload: Final = upload
        self._limit: Final = limit
        self._seconds: Final = seconds
        self._reading: asyncio.Future[list[bytes]] | None = None
        self.failure: SourceFailed | None = None

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the file as text."""
        return b"".join(self._upload.blocks()).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the file."""
        await self.settle()  # A first attempt that failed may still read.
        blocks = self._upload.blocks()
        try:
            while parts := await self._read(blocks):
                for part in parts:
                    self._move_limit(self._seconds)
                    await writer.write(part)
        except SourceFailed as failure:
            self.failure = failure
            raise

    async def write_with_length(
        self,
        writer: AbstractStreamWriter,
        content_length: int | None,  # noqa: ARG002 - It is that of the file.
    ) -> None:
        """Send the file."""
        await self.write(writer)

    async def settle(self) -> None:
        """Wait until the thread has stopped to read."""
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading])

    async def _read(self, blocks: Iterator[bytes]) -> list[bytes]:
        self._move_limit(None)
        self._reading = asyncio.get_running_loop().run_in_executor(
            None, lambda: list(islice(blocks, _BLOCKS))
        )
        # A thread cannot be stopped; it is left alone if the task is cancelled.
        parts = await asyncio.shield(self._reading)
        self._move_limit(self._seconds)
        return parts

    def _move_limit(self, seconds: float | None) -> None:
        if self._limit.expired():
            return
        now = asyncio.get_running_loop().time()
        self._limit.reschedule(None if seconds is None else now + seconds)
