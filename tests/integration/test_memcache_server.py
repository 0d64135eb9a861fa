"""The memcached protocol of a real process: with HTTP, alone, at its start and end."""

from __future__ import annotations

import resource
import signal
import socket
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from support.memcache import MemcacheServer
from support.ports import pick_port
from support.process import run_to_its_end
from support.service_manager import ServiceManager
from support.slow_uploads import raise_descriptor_limit
from support.waiting import wait_until
from support.wire import exchange

pytestmark = pytest.mark.integration

SMALL: Final = {"volume_size": "8MiB", "volume_num": 8}
VALUE: Final = b"v" * 1000


# --- Many clients ----------------------------------------------------------------------


def test_idle_connections_are_kept_and_cost_little(tmp_path: Path) -> None:
    """5,000 of them, longer than the time for an incomplete command."""
    raise_descriptor_limit(6000)
    is_enough = resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 6000
    count = 5000 if is_enough else 500
    settings = {**SMALL, "transfer_timeout": 1}
    with MemcacheServer(tmp_path, settings=settings) as server, ExitStack() as stack:
        before = server.memory()
        started = time.monotonic()
        idle = [stack.enter_context(server.client()) for _ in range(count)]
        client = stack.enter_context(server.client())
        assert int(client.stats()["curr_connections"]) == count + 1
        assert (server.memory() - before) / count < 10_000
        wait_until(lambda: time.monotonic() > started + 2.5, "the time to pass")
        assert idle[0].ask(b"mn\r\n") == idle[-1].ask(b"mn\r\n") == b"MN"
        assert exchange(server.port, "GET", "/absent").status == 404


def test_connections_are_limited(tmp_path: Path) -> None:
    """With few descriptors: refused with the words of memcached; HTTP has its share."""
    server = MemcacheServer(tmp_path / "data", settings=SMALL)
    server.descriptor_limit = 200
    with server, ExitStack() as stack:
        first = stack.enter_context(server.client())
        limit = int(first.stats()["max_connections"])
        assert limit < 100
        for _ in range(limit - 1):
            assert stack.enter_context(server.client()).ask(b"mn\r\n") == b"MN"
        with server.client() as refused:
            assert refused.rest() == b"ERROR Too many open connections\r\n"
        assert first.stats()["rejected_connections"] == "1"
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


def test_memcache_alone(tmp_path: Path) -> None:
    """With `port = 0` there is no HTTP; reload, systemd and the end are the same."""
    path = tmp_path / "socket"
    config = tmp_path / "config.toml"
    config.write_text('log_level = "info"\n')
    with ServiceManager() as manager:
        server = MemcacheServer(
            tmp_path / "data",
            settings={**SMALL, "memcache_listen": path},
            environment=manager.environment(),
            has_http=False,
        )
        server.command = lambda: [*MemcacheServer.command(server), config]  # type: ignore[method-assign]
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
    settings = {**SMALL, "memcache_listen": path}
    with MemcacheServer(tmp_path / "data", settings=settings) as server:
        with server.client() as client:
            assert client.ask(b"mn\r\n") == b"MN"
        server.kill()
        server.start()
    assert not path.exists()
