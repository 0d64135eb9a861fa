"""Both clients as objects: what they show, and where they run."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import make_client
from support.client_memory import Memory
from support.scripted_server import ScriptedServer, answering
from volcache_client import AsyncClient, Client, DiscoveryError, InvalidArgumentError


def test_operations_without_a_list_of_nodes_are_misses_but_raise_mistakes(
    connect: Any,
) -> None:
    """What lists the nodes has an outage: an error, or a miss by choice."""

    def listed() -> list[str]:
        raise OSError("no route")

    with (
        connect(listed) as client,
        pytest.raises(DiscoveryError, match="OSError: no route"),
    ):
        client.get("key")
    with connect(listed, on_error="miss") as client:
        assert client.get("key") is None
        assert client.set("key", b"value") is None
        assert client.get_or_set("key", lambda: b"made") == b"made"
        for mistake in (
            partial(client.get, "/k"),
            partial(client.set, "k", b"v", ttl=-1),
            partial(client.purge, "p"),
        ):
            with pytest.raises(InvalidArgumentError):
                mistake()


def test_repr_shows_first_address_and_state_without_tokens(tmp_path: Path) -> None:
    secret = {"token": "secret", "admin_token": "secret"}
    shown = {
        "http://10.0.0.1:8080, 1 node": "10.0.0.1:8080",
        "https://a:443, 2 nodes": ["https://a:443", "b:1"],
        f"unix:{tmp_path}/s, 1 node": f"unix:{tmp_path}/s",
        "nodes not known yet": lambda: ["a:1"],
    }
    for kind in (Client, AsyncClient):
        for text, nodes in shown.items():
            client: Any = kind(nodes, **secret)  # type: ignore[call-overload]
            assert repr(client) == f"<{kind.__name__} {text}, open>"
    with Client("a:1") as closed:
        pass
    assert repr(closed) == "<Client http://a:1, 1 node, closed>"


_WINDOWS: Final = """
import asyncio, concurrent.futures.thread, os, random, select, socket, ssl, sys
del select.poll, os.register_at_fork
from volcache_client import AsyncClient, Client
with Client(sys.argv[1]) as client:
    del socket.AF_UNIX
    for size in (1, 1, 5_000_000):
        client.set("key", bytes(size))
        assert client.get("key") == bytes(size)
    assert client.add("key", b"") is None
    socket.AF_UNIX = 1  # Of asyncio.
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        assert await client.add("key", b"") is None
        assert len(await client.get("key")) == 5_000_000
asyncio.run(main())
"""


def test_client_on_a_system_without_poll_and_forks_works() -> None:
    """Neither `poll` nor forks nor sockets of unix."""
    with ScriptedServer(answering(Memory())) as server:
        subprocess.run([sys.executable, "-c", _WINDOWS, server.name], check=True)
        assert server.connections == 2


def test_types_of_the_client_for_threads_are_those_for_asyncio() -> None:
    """`tools/make_client.py` was run after the last change."""
    assert make_client.MADE.read_text("utf-8") == make_client.made()
