"""What only `AsyncClient` has: loops, and their end."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import warnings
from pathlib import Path
from typing import Final

import pytest

from support.raw_server import Heard, RawServer, client_of, ok, until
from volcache_client import AsyncClient, ClientUsageError, InvalidArgumentError


async def test_is_used_in_one_loop_only() -> None:
    """An error names what to do; the client still works in its own."""
    name = ""

    async def read_list() -> list[str]:
        return [name]

    client = client_of(read_list)

    async def use_elsewhere() -> None:
        with pytest.raises(ClientUsageError, match="belongs to another event loop"):
            await client.get("a")

    async with RawServer(ok) as server, client:
        name = server.name
        await client.get("a")
        await asyncio.to_thread(asyncio.run, use_elsewhere())
        assert await client.get("a") == b"value"


async def test_close_ends_what_is_in_work_with_an_error_that_says_so() -> None:
    """Also a stream, and what waits for a connection; it is no failure of the node."""

    async def begin(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if heard.path == "/stream":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    async with (
        RawServer(begin) as server,
        client_of(server, connections_max=2) as client,
        client.stream("stream") as stream,
    ):
        assert stream is not None
        tasks = [asyncio.create_task(client.get("a")) for _ in range(3)]
        await until(lambda: len(server.heard) == 2, "a request")
        await client.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {ClientUsageError}
        assert client.stats().nodes[server.name].failures == 0
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert all("_serve" in repr(task) for task in others)
        with pytest.raises(ClientUsageError, match="client was closed"):
            await stream.read()
    with pytest.raises(ClientUsageError, match="the stream is closed"):
        await stream.read()


@pytest.mark.slow
async def test_a_client_that_was_not_closed_is_named_once() -> None:
    """Not one warning for each connection; they are closed."""
    async with RawServer(ok) as server:
        client = client_of(server)
        await client.get("a")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del client
            gc.collect()
            await until(lambda: not server.open, "the connection to be closed")
        (warning,) = caught
        assert warning.category is ResourceWarning
        assert "an AsyncClient was not closed" in str(warning.message)


# The parent uses the client before and after its child.
FORK: Final = """
import asyncio, gc, os, sys, warnings
from volcache_client import AsyncClient, ClientUsageError

warnings.simplefilter("error", ResourceWarning)
client = AsyncClient(sys.argv[1], timeout=30.0, connect_timeout=30.0)

async def use():
    return await client.get("a")

def child():
    global client
    sys.unraisablehook = lambda _: os._exit(8)
    try:
        asyncio.run(use())
    except ClientUsageError:
        pass
    else:
        os._exit(9)
    if sys.argv[2] == "deleted":
        del client
        gc.collect()
        os._exit(7)
    sys.unraisablehook = lambda _: None
    sys.exit(7)

runner = asyncio.Runner()
with runner:
    assert runner.run(use()) == b"value"
    pid = os.fork()
    if not pid:
        runner.close = lambda: None
        child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert runner.run(use()) == b"value"
    runner.run(client.close())
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["deleted", "exit"])
async def test_the_child_of_a_fork_leaves_the_connections_of_its_parent_alone(
    end: str,
) -> None:
    """Its calls are errors; what it deletes closes nothing of the parent."""
    async with RawServer(ok) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FORK, server.name, end,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
        )  # fmt: skip
        assert await process.wait() == 0
        assert server.connections == 1


def test_a_client_may_be_forgotten_when_its_loop_has_ended() -> None:
    """The warning of asyncio for a connection that ended with it is not ours."""

    async def run() -> AsyncClient[bytes]:
        async with RawServer(ok) as server:
            client = client_of(server)
            await client.get("a")
            server.drop()
            await until(
                lambda: client.stats().nodes[server.name].connections == 0,
                "the connection to be closed",
            )
            return client

    clients = [asyncio.run(run())]
    with pytest.warns(ResourceWarning, match="an AsyncClient was not closed") as caught:
        clients.clear()
    assert len(caught) == 1


@pytest.mark.slow
def test_a_client_that_was_never_used_needs_no_close() -> None:
    """It has nothing that could be closed."""
    client = AsyncClient("127.0.0.1:1")
    del client
    gc.collect()
    with pytest.raises(InvalidArgumentError):
        AsyncClient("127.0.0.1:1", timeout=-1)
    gc.collect()
