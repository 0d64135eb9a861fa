"""`AsyncClient` and real instances; test_client.py has what holds for both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.process import Servers
from volcache_client import (
    AsyncClient,
    Client,
    ValueTooLargeError,
)

pytestmark = pytest.mark.integration

SMALL: Final = {"volume_size": 8 << 20, "volume_num": 4, "sync_mode": "none"}


def client_of(url: str, **options: Any) -> AsyncClient[bytes]:
    """Return a client with limits that are longer than a loaded machine needs."""
    return AsyncClient(url, **{"timeout": 30.0, "connect_timeout": 30.0, **options})


@pytest.fixture
def url(servers: Servers) -> Iterator[str]:
    """Return the address of an instance."""
    with servers.server(SMALL, admin_token="op") as server:  # noqa: S106
        yield server.url


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
