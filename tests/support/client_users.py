"""Both clients with one interface, for tests of what holds for either."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from volcache_client import AsyncClient, Client, NodeEvent


class ThreadUser:
    """A `Client`."""

    client: Any = Client

    def __init__(self, nodes: Any, **options: Any) -> None:
        self.events: list[NodeEvent] = []
        self._client = self.client(nodes, on_event=self.events.append, **options)
        self.metrics = self._client.metrics

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of an operation."""
        return getattr(self._client, method)(*arguments)

    def close(self) -> None:
        """Close all connections."""
        self.call("close")


class TaskUser(ThreadUser):
    """An `AsyncClient`, and its event loop, which any thread may use."""

    client = AsyncClient

    def __init__(self, nodes: Any, **options: Any) -> None:
        super().__init__(nodes, **options)
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of an operation."""

        async def run() -> Any:
            return await getattr(self._client, method)(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def close(self) -> None:
        """Close all connections and the loop."""
        super().close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()
