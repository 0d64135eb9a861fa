"""`AsyncClient` and real instances: single flight, odd keys, and instances that die."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.process import ServerProcess
from support.waiting import DEADLINE_SECONDS
from volcache_client import (
    AsyncClient,
    Client,
    NodeError,
    ValueTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.integration

SOURCE: Final = Path(__file__).parents[2] / "src"
SMALL: Final = {"volume_size": 8 << 20, "volume_num": 4, "sync_mode": "none"}

# Fifty tasks of one process; a line in the file for each value that it makes.
TASKS: Final = """
import asyncio, os, sys
from volcache_client import AsyncClient

url, key, path = sys.argv[1:]

async def make():
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    await asyncio.sleep(0.2)
    return b"made"

async def main():
    async with AsyncClient(url, timeout=30.0, connect_timeout=30.0) as client:
        await client.head("ready")
        print("ready", flush=True)
        sys.stdin.readline()
        values = await asyncio.gather(*(client.get_or_set(key, make) for _ in range(50)))
    assert values == [b"made"] * 50, values

asyncio.run(main())
"""


def client_of(url: str, **options: Any) -> AsyncClient[bytes]:
    """Return a client with limits that are longer than a loaded machine needs."""
    return AsyncClient(url, **{"timeout": 30.0, "connect_timeout": 30.0, **options})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an instance; return its address."""
    folder = tmp_path_factory.mktemp("aio") / "data"
    with ServerProcess(folder, settings={**SMALL, "admin_token": "op"}) as server:
        yield server.url


@pytest.mark.parametrize("clients", [1, 4])
def test_two_hundred_tasks_that_miss_a_key_make_it_once(url: str, clients: int) -> None:
    """Of one client by its flight, of several by the lease."""
    calls = 0

    async def make() -> bytes:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.1)
        return b"made"

    async def run() -> None:
        opened = [client_of(url) for _ in range(clients)]
        values = await asyncio.gather(
            *(
                opened[n % clients].get_or_set(f"once{clients}", make)
                for n in range(200)
            )
        )
        assert values == [b"made"] * 200
        assert sum(client.metrics().made for client in opened) == 1
        for client in opened:
            await client.close()

    asyncio.run(run())
    assert calls == 1


def test_four_processes_of_fifty_tasks_make_a_value_once(
    url: str, tmp_path: Path
) -> None:
    """They begin at the same time, as the keys are missing."""
    made = tmp_path / "made"
    command = [sys.executable, "-c", TASKS, url, "processes", str(made)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    processes = [
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            process.communicate(b"\n", timeout=DEADLINE_SECONDS)
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len(made.read_text().splitlines()) == 1


def test_threads_and_tasks_share_keys_leases_and_etags(url: str) -> None:
    """Both clients have one core."""

    async def run(of_threads: Client[bytes]) -> None:
        async with client_of(url, admin_token="op") as client:  # noqa: S106
            etag = of_threads.put("shared", b"1", ttl=100)
            assert etag is not None
            item = await client.get_item("shared")
            assert item is not None
            assert (item.value, item.head.etag) == (b"1", etag)
            assert item.head.max_age is not None
            assert await client.replace("shared", b"2", etag)
            assert of_threads.replace("shared", b"3", etag) is None
            assert not await client.delete("shared", etag)
            assert of_threads.get("shared") == b"2"
            assert await client.add("shared", b"4") is None
            await client.purge("sha")
            assert of_threads.get("shared") is None
            assert await client.add("shared", b"4")
            assert await client.delete("shared")

    with Client(url, timeout=30.0, connect_timeout=30.0) as of_threads:
        asyncio.run(run(of_threads))


@pytest.mark.parametrize(
    "key",
    ["/a", "a//b", "a/", "%", "%2F", "?q=1", "#f", "a b", "\N{EURO SIGN}", b"\xff\xfe",
     "a+b", "a;b=c", "..a", "~lease", "\\", "x" * 1000],
)  # fmt: skip
def test_odd_keys_have_values_of_their_own(url: str, key: str | bytes) -> None:
    """What is stored by one client is found by the other, and by no other key."""

    async def run() -> None:
        async with client_of(url, prefix="odd/") as client:
            await client.put(key, repr(key).encode())
            assert await client.get(key) == repr(key).encode()

    asyncio.run(run())
    with Client(url, timeout=30.0, connect_timeout=30.0) as client:
        stored = b"odd/" + (key if isinstance(key, bytes) else key.encode())
        assert client.get(stored) == repr(key).encode()


@pytest.mark.parametrize("size", [0, 1, 65_536, 1 << 20])
def test_values_of_any_size_are_returned(url: str, size: int, tmp_path: Path) -> None:
    """Whole, in parts, and from a file."""

    async def run() -> None:
        value = os.urandom(size)
        path = tmp_path / "file"
        path.write_bytes(value)
        async with client_of(url) as client:
            await client.put("sized", value)
            assert await client.get("sized") == value
            await client.put_file("sized file", path)
            async with client.stream("sized file") as stream:
                assert stream is not None
                assert stream.head.size == size
                assert b"".join([part async for part in stream]) == value

    asyncio.run(run())


def test_a_value_that_is_too_large_is_refused_and_the_node_stays_up(
    url: str, tmp_path: Path
) -> None:
    """The answer is read although not all was sent."""
    path = tmp_path / "large"
    path.write_bytes(bytes(20 << 20))

    async def run() -> None:
        async with client_of(url, failures=1) as client:
            for _ in range(3):
                with pytest.raises(ValueTooLargeError):
                    await client.put("large", bytes(3 << 20))
                with pytest.raises(ValueTooLargeError):
                    await client.put_file("large", path)
                assert await client.get("large") is None
            (node,) = client.metrics().nodes.values()
            assert (node.is_up, node.failures, node.in_flight) == (True, 0, 0)

    asyncio.run(run())


# --- Instances that die ---------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", "miss"])
def test_traffic_over_a_killed_instance_is_right_or_missing_or_an_error(
    tmp_path: Path, on_error: str
) -> None:
    """Fifty tasks; it is killed twice, and the client recovers each time."""
    with ServerProcess(tmp_path / "data", settings=SMALL) as server:
        asyncio.run(over_kills(server, on_error))


async def over_kills(server: ServerProcess, on_error: str) -> None:
    """Kill an instance below traffic."""
    client = client_of(
        server.url, on_error=on_error, backoff=(0.01, 0.05), timeout=5.0, failures=2
    )
    traffic = Traffic(client)
    async with client, asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(traffic.run(f"key{number % 10}"))
        for _ in range(2):
            await traffic.goes_on("value")
            await asyncio.to_thread(server.kill)
            await traffic.goes_on("error" if on_error == "raise" else "miss")
            await asyncio.to_thread(server.restart)
        await traffic.goes_on("value")
        traffic.is_over = True
    assert (on_error == "raise") == (traffic.seen["error"] > 0)
    (node,) = client.metrics().nodes.values()
    assert (node.is_up, node.in_flight, node.connections) == (True, 0, 0)


class Traffic:
    """
    Reads and writes of tasks; each value must be right.

    Attributes:
        seen: How many rounds ended with a value, a miss or an error.
        is_over: Whether the tasks end.
    """

    def __init__(self, client: AsyncClient[bytes]) -> None:
        """Begin with no task."""
        self.seen = {"value": 0, "miss": 0, "error": 0}
        self.is_over = False
        self._client = client

    async def run(self, key: str) -> None:
        """Use one key until it is over."""
        while not self.is_over:
            try:
                self.seen[await self._round(key)] += 1
            except NodeError:
                self.seen["error"] += 1
                await asyncio.sleep(0.005)

    async def _round(self, key: str) -> str:
        right = key.encode() * 100
        assert await self._client.get_or_set(key, lambda: right) == right
        await self._client.put(key, right)
        value = await self._client.get(key)
        assert value in {None, right}
        return "miss" if value is None else "value"

    async def goes_on(self, kind: str) -> None:
        """Wait for further rounds that end so."""
        enough = self.seen[kind] + 50

        async def is_enough() -> bool:
            return self.seen[kind] >= enough

        await comes_true(is_enough, kind)


async def comes_true(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Return when the condition holds; fail after 30 seconds, naming it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_SECONDS
    while not await condition():
        assert loop.time() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.005)
