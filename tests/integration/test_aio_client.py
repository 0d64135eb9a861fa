"""`AsyncClient` and real instances: single flight, odd keys, and instances that die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.process import ServerProcess, Servers
from support.waiting import wait_until
from volcache_client import (
    AsyncClient,
    Client,
    NodeError,
    ValueTooLargeError,
)

pytestmark = pytest.mark.integration

SOURCE: Final = Path(__file__).parents[2] / "src"
SMALL: Final = {"volume_size": 8 << 20, "volume_num": 4, "sync_mode": "none"}


def client_of(url: str, **options: Any) -> AsyncClient[bytes]:
    """Return a client with limits that are longer than a loaded machine needs."""
    return AsyncClient(url, **{"timeout": 30.0, "connect_timeout": 30.0, **options})


@pytest.fixture
def url(servers: Servers) -> Iterator[str]:
    """Return the address of an instance."""
    with servers.server(SMALL, admin_token="op") as server:  # noqa: S106
        yield server.url


def test_two_hundred_tasks_that_miss_a_key_make_it_once(url: str) -> None:
    """Of one client by its flight, of several by the lease."""
    calls = 0

    async def make() -> bytes:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.1)
        return b"made"

    async def run() -> None:
        opened = [client_of(url) for _ in range(4)]
        values = await asyncio.gather(
            *(opened[n % 4].get_or_set("once", make) for n in range(200))
        )
        assert values == [b"made"] * 200
        assert sum(client.metrics().made for client in opened) == 1
        for client in opened:
            await client.close()

    asyncio.run(run())
    assert calls == 1


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
        await asyncio.to_thread(wait_until, lambda: self.seen[kind] >= enough, kind)
