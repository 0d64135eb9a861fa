"""How `AsyncClient` resolves the names of nodes."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from support.raw_server import Memory, RawServer, client_of

NAMES = [f"n{number}.test" for number in range(64)]
resolve = socket.getaddrinfo


async def read(name: str, port: int, *, is_stream: bool) -> bytes | None:
    """Read a key of one node."""
    async with client_of(f"http://{name}:{port}") as client:
        if not is_stream:
            return await client.get("key")
        async with client.stream("key") as stream:
            assert stream is None
            return None


async def test_names_that_take_long_leave_the_threads_of_the_loop_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether a value is read as a whole or in pieces."""
    may_end = threading.Event()

    def resolve_slowly(host: str, *arguments: Any, **named: Any) -> Any:
        if host in NAMES:
            may_end.wait(60)
            host = "127.0.0.1"
        return resolve(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_slowly)
    async with RawServer(Memory()) as server:
        reads = [
            asyncio.create_task(read(name, server.port, is_stream=number % 2 == 0))
            for number, name in enumerate(NAMES)
        ]
        await asyncio.sleep(0)
        try:
            await asyncio.get_running_loop().run_in_executor(None, int)
            assert not any(task.done() for task in reads)
        finally:
            may_end.set()
        assert set(await asyncio.gather(*reads)) == {None}
