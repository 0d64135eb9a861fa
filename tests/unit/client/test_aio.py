"""What only `AsyncClient` has: loops, cancelled tasks, and their end."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from support.client_memory import Memory
from support.client_users import client_of, numbers_of, serving, until
from support.scripted_server import (
    OK,
    ScriptedServer,
    answering,
    value,
)
from support.waiting import wait_until
from volcache_client import (
    AsyncClient,
    ClientUsageError,
    InvalidArgumentError,
    NodeDownError,
    NodeTimeoutError,
)

VALUE: Final = value(b"value")
context: ContextVar[str] = ContextVar("context", default="")


class Maker:
    """
    What makes a value, and waits until it may.

    Attributes:
        calls: How many times it was called.
        ended: How many calls have ended.
    """

    def __init__(self) -> None:
        """Wait for the first call."""
        self.calls = self.ended = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> bytes:
        """Make it."""
        self.calls += 1
        try:
            await self.may_end.wait()
        finally:
            self.ended += 1
        return b"made"


def leases(server: ScriptedServer) -> list[bytes]:
    """Return the methods of the requests for leases."""
    lines = (request.split(b" ", 2) for request in server.requests)
    return [method for method, path, _ in lines if path.startswith(b"/~lease/")]


async def callers(
    client: AsyncClient[bytes], make: Maker, count: int
) -> list[asyncio.Task[bytes]]:
    """Return tasks that ask for one key; the first one makes it, the others wait."""
    tasks = [asyncio.create_task(client.get_or_set("a", make)) for _ in range(count)]
    await until(lambda: make.calls, "the call")
    await until(lambda: client.stats()["waits"] == count - 1, "the others")
    return tasks


def other_tasks() -> set[asyncio.Task[object]]:
    """Return the tasks that run, but for the current one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_get_in_another_loop_is_an_error() -> None:
    """An error names what to do; the client still works in its own."""
    async with serving(VALUE) as (_, client):

        async def use_elsewhere() -> None:
            with pytest.raises(ClientUsageError, match="belongs to another event loop"):
                await client.get("a")

        await client.get("a")
        await asyncio.to_thread(asyncio.run, use_elsewhere())
        assert await client.get("a") == b"value"


def test_client_used_by_one_loop_after_another_ends_with_each() -> None:
    """Its connections end with the loop, and nothing warns that it was not closed."""

    async def use(client: AsyncClient[bytes]) -> None:
        assert await client.get("a") == b"value"
        assert await client.get_or_set("b", lambda: b"made") == b"value"

    with ScriptedServer(VALUE) as server:
        client = client_of(server)
        for count in range(3):
            asyncio.run(use(client))
            wait_until(lambda: not server.open, "the end of the connections")
            assert server.connections == count + 1
        del client
        gc.collect()
    with pytest.raises(InvalidArgumentError):
        client_of("127.0.0.1:1", timeout=-1)
    unused = client_of("127.0.0.1:1")
    del unused
    gc.collect()


async def test_get_or_set_within_its_own_make_is_an_error() -> None:
    """Also in a task that it starts; another key may be made within."""
    async with serving(answering(Memory())) as (_, client):

        async def ask_again() -> bytes:
            with pytest.raises(ClientUsageError, match="would wait for itself"):
                await client.get_or_set("a", lambda: b"")
            return context.get().encode()

        async def make() -> bytes:
            other = await client.get_or_set("b", lambda: b"other ")
            return other + await asyncio.create_task(ask_again())

        context.set("of the caller")
        assert await client.get_or_set("a", make) == b"other of the caller"


# --- Cancelled callers ----------------------------------------------------------------


@pytest.mark.parametrize("cancelled", [0, 1, 4])
async def test_get_or_set_with_a_cancelled_caller_goes_on_for_the_others(
    cancelled: int,
) -> None:
    """Whether or not it was the first."""
    async with serving(answering(Memory())) as (_, client):
        make = Maker()
        tasks = await callers(client, make, 5)
        tasks[cancelled].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks.pop(cancelled)
        assert not make.ended
        make.may_end.set()
        assert await asyncio.gather(*tasks) == [b"made"] * 4
        assert make.calls == 1


async def test_get_or_set_with_all_callers_cancelled_ends_make_and_lease() -> None:
    """
    It returns when the maker has ended; a later call begins another one.

    The lease is given back in the background: a cancelled task does not wait for a node.
    """
    async with serving(answering(Memory())) as (server, client):
        make = Maker()
        tasks = await callers(client, make, 5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        assert make.ended == 1
        await until(
            lambda: (
                leases(server) == [b"PUT", b"DELETE"]
                and not numbers_of(client)["in_use"]
            ),
            "the lease to be given back",
        )
        assert await client.get_or_set("a", lambda: b"later") == b"later"
        assert leases(server) == [b"PUT", b"DELETE"] * 2
        assert numbers_of(client)["in_use"] == 0
    assert not other_tasks()


async def test_operation_that_is_cancelled_leaves_no_connection_and_no_count() -> None:
    """Of each kind: its slot is free, and nothing is in work."""
    memory = Memory()

    def answer(request: bytes) -> bytes:
        return memory(request) if b" /ok " in request else b""

    options = {"connections_max": 1, "admin_token": "op"}
    async with serving(answering(answer), **options) as (server, client):
        for act in (
            partial(client.get, "slow"),
            partial(client.stat, "slow"),
            partial(client.set, "slow", bytes(5_000_000)),
            partial(client.add, "slow", b"1"),
            partial(client.delete, "slow"),
            partial(client.get_many, ["slow", "slow2"]),
            partial(client.set_many, {"slow": b"1", "slow2": b"2"}),
            partial(client.purge, "slow"),
            partial(client.get_or_set, "slow", lambda: b""),
            lambda: client.stream("slow").__aenter__(),
        ):
            before = len(server.requests)
            tasks = [asyncio.ensure_future(act()) for _ in range(2)]
            await until(
                lambda: len(server.requests) > before,  # noqa: B023 - At once.
                "the request",
            )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)
            assert await client.get("ok") is None
            numbers = numbers_of(client)
            assert (numbers["in_use"], numbers["connections"]) == (0, 1)
            assert numbers["failures"] == 0
        assert not other_tasks()
        await until(lambda: server.open == 1, "the others to be closed")


async def test_operation_that_is_cancelled_at_any_moment_leaves_nothing() -> None:
    """A task is cancelled after each number of turns of the loop."""
    async with serving(answering(Memory()), connections_max=2) as (_, client):
        for turns in range(60):
            make = str(turns).encode
            tasks = [
                asyncio.create_task(client.get_or_set(f"k{turns}", make)),
                asyncio.create_task(client.set(f"p{turns}", b"1")),
                asyncio.create_task(client.get("p0")),
                asyncio.create_task(client.get_or_set(f"k{turns}", make)),
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            numbers = numbers_of(client)
            assert numbers["connections"] <= 2
            assert await client.get_or_set(f"k{turns}", make) == make()
        await until(
            lambda: numbers_of(client)["in_use"] == 0,
            "nothing in flight",
        )
    assert not other_tasks()


async def test_probe_that_is_cancelled_lets_another_caller_probe() -> None:
    """The node does not stay down."""
    memory = Memory()
    is_up = False
    options = {"timeout": 0.05, "failures": 1, "backoff": (1e-9, 1e-9)}
    options |= {"probe_timeout": 30.0, "writes_when_down": "raise"}
    async with serving(
        answering(lambda one: memory(one) if is_up else b""), **options
    ) as (server, client):
        with pytest.raises(NodeTimeoutError):
            await client.set("a", b"1")
        probe = asyncio.create_task(client.get("a"))
        await until(lambda: b"/-/ready" in server.requests[-1], "the probe")
        with pytest.raises(NodeDownError):
            await client.set("a", b"1")
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        is_up = True
        assert await client.set("a", b"1")
        assert numbers_of(client)["up"]


# --- The end --------------------------------------------------------------------------


async def test_close_while_a_value_is_made_ends_it_and_gives_the_lease_back() -> None:
    """Those that wait get an error; no task is left."""
    memory = Memory()
    with ScriptedServer(answering(memory)) as server:
        client = client_of(server)
        make = Maker()
        tasks = await callers(client, make, 3)
        await client.close()
        assert make.ended == 1
        assert leases(server) == [b"PUT", b"DELETE"]
        assert not memory.stored
        assert client.stats()["errors"] == {}
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ClientUsageError] * 3
        assert not other_tasks()
        await until(lambda: not server.open, "the connections to be closed")


async def test_close_within_make_does_not_wait_for_itself() -> None:
    """It does not wait for itself; its value reaches the caller."""
    with ScriptedServer(answering(Memory())) as server:
        client = client_of(server, on_error="miss")

        async def make() -> bytes:
            await client.close()
            return b"made"

        with pytest.raises(ClientUsageError):
            await client.get_or_set("a", make)
        assert not other_tasks()


async def test_close_with_operations_in_work_is_an_error_of_each() -> None:
    """Also a stream, and what waits for a connection; it is no failure of the node."""

    def begin(request: bytes) -> bytes:
        return OK + b"Content-Length: 5\r\n\r\n" if b" /stream " in request else b""

    async with (
        serving(answering(begin), connections_max=2) as (server, client),
        client.stream("stream") as stream,
    ):
        assert stream is not None
        tasks = [asyncio.create_task(client.get("a")) for _ in range(3)]
        await until(lambda: len(server.requests) == 2, "a request")
        await client.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {ClientUsageError}
        assert numbers_of(client)["failures"] == 0
        assert not other_tasks()
        with pytest.raises(ClientUsageError, match="client was closed"):
            await stream.read()
    with pytest.raises(ClientUsageError, match="the stream is closed"):
        await stream.read()


@pytest.mark.slow
async def test_client_that_was_not_closed_warns_once() -> None:
    """Not one warning for each connection; they are closed."""
    with ScriptedServer(VALUE) as server:
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
def test_fork_leaves_the_connections_of_the_parent_alone(
    end: str,
) -> None:
    """Its calls are errors; what it deletes closes nothing of the parent."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    with ScriptedServer(VALUE) as server:
        command = [sys.executable, "-c", FORK, server.name, end]
        subprocess.run(command, env=environment, check=True, timeout=60)
        assert server.connections == 1
