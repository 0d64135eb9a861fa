"""What the memcached protocol of a real process holds for its clients, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from support.memcache import MemcacheServer
from support.waiting import wait_until

pytestmark = pytest.mark.integration

MIB: Final = 1 << 20
VALUE: Final = bytes(1_000_000)
KEYS: Final = 20_000  # sent at a time


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemcacheServer]:
    """Serve on a unix socket, whose buffers are small, the value "large"."""
    path = tmp_path / "socket"
    settings = {"memcache_listen": path, "body_memory": "40MiB"}
    with MemcacheServer(tmp_path / "data", settings) as server:
        with server.client() as client:
            assert client.set("large", VALUE) == b"STORED"
            assert client.get("large") == VALUE
        yield server


def test_get_of_any_number_of_keys_takes_little_memory(
    server: MemcacheServer,
) -> None:
    """Other clients are served meanwhile."""
    before = server.memory()
    with ExitStack() as stack:
        greedy = [stack.enter_context(server.client()) for _ in range(12)]
        client = stack.enter_context(server.client())
        for one in greedy:
            one.send(b"get")
        for _ in range(20):
            for one in greedy:
                one.send(b" ab" * KEYS)
            assert client.ask(b"mn\r\n") == b"MN"
        assert server.memory() - before < 8 * MIB
        for one in greedy:
            one.send(b"\r\n")
            assert one.line() == b"END"
        assert int(client.stats()["get_misses"]) == 12 * 20 * KEYS


def test_room_for_the_rest_of_values_is_counted(server: MemcacheServer) -> None:
    """The bytes that have arrived are less than the limit."""
    with ExitStack() as stack:
        for number in range(100):
            client = stack.enter_context(server.client())
            client.send(b"set %d 0 0 1000000\r\n" % number + VALUE[:640_000])
        wait_until(
            lambda: "connections.memory_full protocol=memcache" in server.stderr,
            "the limit",
        )


def test_replies_that_are_not_read_are_counted(server: MemcacheServer) -> None:
    """All that is kept of them, however much of each is sent already."""
    before = server.memory()
    with ExitStack() as stack:
        slow = [stack.enter_context(server.client()) for _ in range(150)]
        for client in slow:
            # More than the first call of `send` can send while the client reads.
            client.send(b"get large large\r\n")
            assert len(client.read(700_000)) == 700_000
        assert server.memory() - before < 100 * MIB
        wait_until(
            lambda: "connections.memory_full protocol=memcache" in server.stderr,
            "the limit",
        )
        # The first of them is closed, the last one has the rest.
        assert len(slow[-1].read(len(VALUE))) == len(VALUE)
