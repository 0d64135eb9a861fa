"""Tasks of `AsyncClient`: values that are made once, and what is left by cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from support.raw_server import Heard, Memory, RawServer, client_of, until
from volcache_client import (
    AsyncClient,
    ClientUsageError,
    NodeDownError,
    NodeTimeoutError,
)

context: ContextVar[str] = ContextVar("context", default="")


class Maker:
    """
    What makes a value, and waits until it may.

    Attributes:
        calls: How many times it was called.
        ended: How many calls have ended.
    """

    def __init__(self, value: bytes = b"made") -> None:
        """Take what it returns."""
        self.value = value
        self.calls = self.ended = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> bytes:
        """Make it."""
        self.calls += 1
        try:
            await self.may_end.wait()
        finally:
            self.ended += 1
        return self.value


def leases(server: RawServer) -> list[str]:
    """Return the requests for leases."""
    return [h.method for h in server.heard if h.path.startswith("/~lease/")]


def own_tasks() -> list[str]:
    """Return the tasks but for the current one and those of the server."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return [text for text in map(repr, tasks) if "RawServer" not in text]


async def test_what_makes_a_value_may_be_asynchronous_or_not_and_has_the_context() -> (
    None
):
    """Its task begins with the context of the caller."""

    async def make() -> bytes:
        return context.get().encode()

    async with RawServer(Memory()) as server, client_of(server) as client:
        context.set("of the caller")
        assert await client.get_or_set("a", make) == b"of the caller"
        assert await client.get_or_set("b", lambda: b"2") == b"2"
        assert await client.get_many(["a", "b"]) == {"a": b"of the caller", "b": b"2"}


async def test_a_call_for_the_key_that_is_being_made_is_an_error() -> None:
    """Also in a task that the maker starts; another key may be made within."""
    async with RawServer(Memory()) as server, client_of(server) as client:

        async def make() -> bytes:
            other = await client.get_or_set("b", lambda: b"other")
            with pytest.raises(ClientUsageError, match="would wait for itself"):
                await client.get_or_set("a", lambda: b"")
            async with asyncio.TaskGroup() as group:
                task = group.create_task(inner())
            return other + task.result()

        async def inner() -> bytes:
            with pytest.raises(ClientUsageError, match="would wait for itself"):
                await client.get_or_set("a", lambda: b"")
            return b"!"

        assert await client.get_or_set("a", make) == b"other!"


# --- Cancelled callers ----------------------------------------------------------------


@pytest.mark.parametrize("cancelled", [0, 1, 4])
async def test_a_cancelled_caller_ends_nothing_for_the_others(cancelled: int) -> None:
    """Whether or not it was the first."""
    async with RawServer(Memory()) as server, client_of(server) as client:
        make = Maker()
        tasks = [asyncio.create_task(client.get_or_set("a", make)) for _ in range(5)]
        await until(lambda: make.calls, "the call")
        tasks[cancelled].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks.pop(cancelled)
        assert not make.ended
        make.may_end.set()
        assert await asyncio.gather(*tasks) == [b"made"] * 4
        assert make.calls == 1


async def test_the_last_caller_that_is_cancelled_ends_the_making_and_the_lease() -> (
    None
):
    """It returns when the maker has ended; a later call begins another one."""
    async with RawServer(Memory()) as server, client_of(server) as client:
        make = Maker()
        tasks = [asyncio.create_task(client.get_or_set("a", make)) for _ in range(5)]
        await until(lambda: make.calls, "the call")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        assert make.ended == 1
        assert await client.get_or_set("a", lambda: b"later") == b"later"
        assert leases(server) == ["PUT", "DELETE", "PUT", "DELETE"]
        assert client.stats().nodes[server.name].in_flight == 0
    assert not own_tasks()


async def test_a_timeout_around_a_call_ends_what_it_started() -> None:
    """Nothing of it runs after the block; so does the end of a TaskGroup."""
    async with RawServer(Memory()) as server, client_of(server) as client:
        make = Maker()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.05):
                await client.get_or_set("a", make)
        assert type(caught.value) is TimeoutError
        assert make.calls == make.ended

        async def fail() -> None:
            await until(lambda: make.calls > make.ended, "the call")
            raise ZeroDivisionError

        with pytest.raises(ExceptionGroup) as group:
            await both(client.get_or_set("a", make), fail())
        assert group.group_contains(ZeroDivisionError)
        assert make.calls == make.ended
        await until(  # The lease is given back in the background.
            lambda: client.stats().nodes[server.name].in_flight == 0,
            "nothing in flight",
        )


async def both(
    first: Coroutine[Any, Any, object], second: Coroutine[Any, Any, object]
) -> None:
    """Run two tasks of a group."""
    async with asyncio.TaskGroup() as group:
        group.create_task(first)
        group.create_task(second)


def has_more(server: RawServer, before: int) -> bool:
    """Whether a server has heard more requests."""
    return len(server.heard) > before


def calls_of(client: AsyncClient[bytes]) -> list[Callable[[], Any]]:
    """Return calls of each kind."""
    return [
        *(lambda: client.get("slow"), lambda: client.stat("slow")),
        lambda: client.set("slow", bytes(5_000_000)),
        *(lambda: client.add("slow", b"1"), lambda: client.delete("slow")),
        lambda: client.get_many(["slow", "slow2"]),
        lambda: client.set_many({"slow": b"1", "slow2": b"2"}),
        *(lambda: client.purge("slow"), lambda: client.get_or_set("slow", lambda: b"")),
        lambda: client.stream("slow").__aenter__(),
    ]


async def test_a_cancelled_operation_leaves_no_connection_and_no_count() -> None:
    """Of each kind: its slot is free, and nothing is in work."""
    memory = Memory()

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if heard.path == "/ok":
            await memory(heard, writer)

    async with (
        RawServer(script) as server,
        client_of(server, connections_max=1, admin_token="op") as client,  # noqa: S106
    ):
        for act in calls_of(client):
            before = len(server.heard)
            tasks = [asyncio.ensure_future(act()) for _ in range(2)]
            await until(partial(has_more, server, before), "the request")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)
            assert await client.get("ok") is None
            numbers = client.stats().nodes[server.name]
            assert (numbers.in_flight, numbers.connections) == (0, 1)
            assert numbers.failures == 0
        assert not own_tasks()
        await until(lambda: server.open == 1, "the others to be closed")


async def test_cancellation_at_any_moment_leaves_nothing() -> None:
    """A task is cancelled after each number of turns of the loop."""
    async with (
        RawServer(Memory()) as server,
        client_of(server, connections_max=2) as client,
    ):
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
            assert client.stats().nodes[server.name].in_flight <= 1  # A release.
            assert await client.get_or_set(f"k{turns}", make) == make()
        await until(
            lambda: client.stats().nodes[server.name].in_flight == 0,
            "nothing in flight",
        )
    assert not own_tasks()
    assert server.most <= 3  # One that is closed may be open for the server.


async def test_a_cancelled_probe_lets_another_caller_probe() -> None:
    """The node does not stay down."""
    memory = Memory()
    is_up = False

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if is_up:
            await memory(heard, writer)

    async with (
        RawServer(script) as server,
        client_of(
            server.name,
            timeout=0.05,
            failures=1,
            backoff=(1e-9, 1e-9),
            probe_timeout=30.0,
            writes_when_down="raise",
        ) as client,
    ):
        with pytest.raises(NodeTimeoutError):
            await client.set("a", b"1")
        probe = asyncio.create_task(client.get("a"))
        await until(lambda: server.heard[-1].path == "/-/ready", "the probe")
        with pytest.raises(NodeDownError):
            await client.set("a", b"1")
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        is_up = True
        assert await client.set("a", b"1")
        assert client.stats().nodes[server.name].is_up


# --- The end --------------------------------------------------------------------------


async def test_close_ends_what_makes_values_and_gives_the_lease_back() -> None:
    """Those that wait get an error; no task is left."""
    memory = Memory()

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        for _ in range(20 * (heard.method == "DELETE")):
            await asyncio.sleep(0)
        await memory(heard, writer)

    async with RawServer(script) as server:
        client = client_of(server)
        make = Maker()
        tasks = [asyncio.create_task(client.get_or_set("a", make)) for _ in range(3)]
        await until(lambda: make.calls, "the call")
        await client.close()
        assert make.ended == 1
        assert leases(server) == ["PUT", "DELETE"]
        assert not memory.values
        assert client.stats().errors == {}
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ClientUsageError] * 3
        assert not own_tasks()
        await until(lambda: not server.open, "the connections to be closed")


async def test_a_maker_may_close_the_client() -> None:
    """It does not wait for itself; its value reaches the caller."""
    async with RawServer(Memory()) as server:
        client = client_of(server, on_error="miss")

        async def make() -> bytes:
            await client.close()
            return b"made"

        with pytest.raises(ClientUsageError):
            await client.get_or_set("a", make)
        assert not own_tasks()
