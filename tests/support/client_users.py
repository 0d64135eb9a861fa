"""`AsyncClient` with the interface of `Client`, for tests of what holds for either."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self

from support.scripted_server import Peer, ScriptedServer
from support.waiting import DEADLINE_SECONDS
from volcache_client import AsyncClient
from volcache_client.methods import AsyncReader

# Longer than a loaded machine needs; only what must end by a timeout has a short one.
PATIENT: Final = 30.0
PATIENCE: Final[dict[str, Any]] = {"timeout": PATIENT, "connect_timeout": PATIENT}


def client_of(node: Any, **options: Any) -> AsyncClient[bytes]:
    """Return a client with patience."""
    return AsyncClient(getattr(node, "name", node), **{**PATIENCE, **options})


@asynccontextmanager
async def serving(
    serve: Callable[[Peer], None] | bytes, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, AsyncClient[bytes]]]:
    """Run a server, and a client of it in this loop."""
    with ScriptedServer(serve) as server:
        async with client_of(server, **options) as client:
            yield server, client


def numbers_of(client: Any) -> Any:
    """Return the numbers of the only node of a client."""
    (numbers,) = client.stats()["nodes"].values()
    return numbers


async def until(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; fail after 30 seconds, naming it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_SECONDS
    while not condition():
        assert loop.time() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.002)


class TaskClient:
    """An `AsyncClient` with the methods of `Client`; its loop runs in a thread."""

    def __init__(self, nodes: Any, **options: Any) -> None:
        """Start the loop; it ends with the block of `with`."""
        self._client = AsyncClient[bytes](nodes, **options)
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        """Return a method of the client that waits for its result."""
        method = getattr(self._client, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *values, **named: self.wait(method(*values, **named))

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Return what a task returns."""

        async def run() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    @contextmanager
    def stream(self, key: str | bytes) -> Iterator[TaskStream | None]:
        """Read a value in parts."""
        context = self._client.stream(key)
        stream = self.wait(context.__aenter__())
        try:
            yield stream and TaskStream(stream, self.wait)
        finally:
            self.wait(context.__aexit__(None, None, None))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client, and end the loop."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()


class TaskStream:
    """An `AsyncReader` with the methods of `Reader`."""

    def __init__(self, stream: AsyncReader, wait: Callable[..., Any]) -> None:
        """Take the stream, and what waits for its parts."""
        self.stat = stream.stat
        self._stream = stream
        self._wait = wait

    def read(self, size: int = -1) -> Any:
        """Return up to `size` bytes."""
        return self._wait(self._stream.read(size))

    def __iter__(self) -> Iterator[bytes]:
        """Yield all parts that are left."""
        parts = aiter(self._stream)
        while part := self._wait(anext(parts, b"")):
            yield part
