"""The memcached protocol of a real process: with HTTP, alone, at its start and end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import emcache
import pytest

from support.memcache import MemcacheServer
from support.ports import pick_port
from support.process import SOURCE, raise_descriptor_limit, run_to_its_end
from support.service_manager import ServiceManager
from support.waiting import wait_until
from support.wire import exchange

pytestmark = pytest.mark.integration

VALUE: Final = b"v" * 1000


# --- Many clients ----------------------------------------------------------------------


def test_idle_connections_are_kept_and_cost_little(tmp_path: Path) -> None:
    """5,000 of them, longer than the time for an incomplete command."""
    count = 5000 if raise_descriptor_limit(6000) >= 6000 else 500
    with (
        MemcacheServer(tmp_path, {"transfer_timeout": 1}) as server,
        ExitStack() as stack,
    ):
        before = server.memory()
        started = time.monotonic()
        idle = [stack.enter_context(server.client()) for _ in range(count)]
        client = stack.enter_context(server.client())
        assert int(client.stats()["curr_connections"]) == count + 1
        assert (server.memory() - before) / count < 10_000
        wait_until(lambda: time.monotonic() > started + 2.5, "the time to pass")
        assert idle[0].ask(b"mn\r\n") == idle[-1].ask(b"mn\r\n") == b"MN"
        assert exchange(server.port, "GET", "/absent").status == 404


def test_connections_above_the_share_of_descriptors_are_refused(tmp_path: Path) -> None:
    """With few descriptors: refused with the words of memcached; HTTP has its share."""
    server = MemcacheServer(tmp_path / "data")
    server.descriptor_limit = 200
    with server, ExitStack() as stack:
        first = stack.enter_context(server.client())
        limit = int(first.stats()["max_connections"])
        assert limit < 100
        # None of them is idle.
        first.send(b"mg k")
        for _ in range(limit - 1):
            client = stack.enter_context(server.client())
            assert client.ask(b"mn\r\n") == b"MN"
            client.send(b"mg k")
        wait_until(lambda: not is_served(server), "the limit")
        assert first.ask(b"ey\r\n") == b"EN"
        assert int(first.stats()["rejected_connections"]) >= 1
        assert exchange(server.port, "PUT", "/key", VALUE).status == 200
        first.send(b"quit\r\n")
        assert first.rest() == b""
        wait_until(lambda: is_served(server), "the place of the one that quit")


def is_served(server: MemcacheServer) -> bool:
    """Return whether one more connection is accepted."""
    with server.client() as client, suppress(AssertionError, ConnectionError):
        return client.ask(b"mn\r\n") == b"MN"
    return False


# --- Start and end ---------------------------------------------------------------------


def test_serve_without_http_answers_memcached_reloads_and_stops(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    config = tmp_path / "config.toml"
    config.write_text('log_level = "info"\n')
    with ServiceManager() as manager:
        server = MemcacheServer(
            tmp_path / "data",
            {"memcache_listen": path},
            environment=manager.environment(),
            program=(SOURCE, config),
            has_http=False,
        )
        with server:
            manager.wait_for("READY=1")
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
            with server.client() as client:
                assert client.set("key", VALUE) == b"STORED"
                config.write_text('write_token = "secret"\n')
                server.send_signal(signal.SIGHUP)
                wait_until(
                    lambda: client.ask(b"delete absent\r\n") != b"NOT_FOUND",
                    "the token to be required",
                )
                assert client.get("key") == VALUE
            assert "serving.started" not in server.stderr
            assert server.terminate() == 0
            assert not path.exists()
            assert "store.closed" in server.stderr


def refused_start(tmp_path: Path, path: Path) -> str:
    """Start with a path that cannot be used; return the error."""
    data = tmp_path / "data"
    settings = {"memcache_listen": path, "mount_point": data, "port": pick_port()}
    ended = run_to_its_end(tmp_path, settings)
    assert ended.returncode == 1
    assert not data.exists()
    return ended.stderr


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    """A socket in use, or another file; one that no process uses is replaced."""
    path = tmp_path / "socket"
    path.write_bytes(b"data")
    assert "is not a socket" in refused_start(tmp_path, path)
    assert path.read_bytes() == b"data"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        assert "Address already in use" in refused_start(tmp_path, path)
    assert path.exists()
    with MemcacheServer(tmp_path / "data", {"memcache_listen": path}) as server:
        with server.client() as client:
            assert client.ask(b"mn\r\n") == b"MN"
        server.kill()
        server.start()
    assert not path.exists()


# --- Discovery -------------------------------------------------------------------------


async def discovered(port: int) -> list[str]:
    """Return the nodes that emcache finds by itself, and uses."""
    address = emcache.MemcachedHostAddress("localhost", port)
    client = await emcache.create_client([address], autodiscovery=True)
    await client.set(b"key", b"value")
    item = await client.get(b"key")
    assert item is not None
    assert item.value == b"value"
    nodes = client.cluster_managment().nodes()
    await client.close()
    return [str(getattr(node, "address", node)) for node in nodes]


def test_clients_find_the_instances_of_the_ring(tmp_path: Path) -> None:
    """As those of ElastiCache; a reload changes them, and the version."""
    port, path = pick_port(), tmp_path / "instances.conf"
    path.write_text(f"server 127.0.0.1:{port};\nserver unix:/none;\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    own = f"127.0.0.1:{port}"
    settings = {"port": port, "ring": path, "ring_self": own}
    with MemcacheServer(tmp_path / "data", settings) as server:
        at = server.memcache_port
        with server.client() as client:
            nodes = b"1000000000\n127.0.0.1|127.0.0.1|%d\n" % at
            head = b"CONFIG cluster 0 %d\r\n" % len(nodes)
            client.send(b"config get cluster\r\nconfig get other\r\nmn\r\n")
            expected = head + nodes + b"\r\nEND\r\nERROR\r\nMN\r\n"
            assert client.read(len(expected)) == expected
            assert asyncio.run(discovered(at)) == ["127.0.0.1"]
            with path.open("a") as file:
                file.write("server 10.0.0.2:1;\n")
            server.send_signal(signal.SIGHUP)

            def has_changed() -> bool:
                client.send(b"config get cluster\r\n")
                _, nodes, _ = (client.line() for _ in range(3))
                return b"10.0.0.2|10.0.0.2|%d" % at in nodes

            wait_until(has_changed, "the reload")
