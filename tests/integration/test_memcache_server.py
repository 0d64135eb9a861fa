"""The memcached protocol of a real process: with HTTP, alone, at its start and end."""

from __future__ import annotations

import resource
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
import requests

from support.memcache import MemcacheServer
from support.ports import pick_port
from support.process import run_to_its_end
from support.service_manager import ServiceManager
from support.slow_uploads import raise_descriptor_limit
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SMALL: Final = {"volume_size": "8MiB", "volume_num": 8}
VALUE: Final = b"v" * 1000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcacheServer]:
    """Run one server for the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("memcache")
    settings = {**SMALL, "transfer_timeout": 1, "log_slow": 0}
    with MemcacheServer(folder / "data", settings=settings) as server:
        yield server


def put(server: MemcacheServer, key: str, value: bytes) -> requests.Response:
    """Store over HTTP."""
    return requests.put(f"{server.url}/{key}", data=value, timeout=10)


def get(server: MemcacheServer, key: str) -> requests.Response:
    """Read over HTTP."""
    return requests.get(f"{server.url}/{key}", timeout=10)


# --- Clients that misbehave ------------------------------------------------------------


def test_http_is_answered_during_abuse(shared: MemcacheServer) -> None:
    """Clients that send garbage, send slowly, or do not read."""
    with ExitStack() as stack:
        clients = [stack.enter_context(shared.client()) for _ in range(7)]
        huge, long_key, endless, slow, deaf, sets, gets = clients
        deaf.set("large", b"x" * 1_000_000)
        huge.send(b"set huge 0 0 2147483647\r\n" + b"x" * 100_000)
        long_key.send(b"get " + b"k" * 1_000_000 + b"\r\n")
        with suppress(ConnectionError):  # Closed as soon as it is too long.
            endless.send(b"e" * 3_000_000)
        slow.send(b"set slow 0 0 10\r\nabc")
        deaf.send(b"get large\r\n" * 1000)
        sets.send(b"set flood 0 0 1000 noreply\r\n%s\r\n" % VALUE * 3000)
        gets.socket.settimeout(0)
        with suppress(BlockingIOError):
            gets.socket.send(b"get flood\r\n" * 100_000)
        for number in range(20):
            assert put(shared, f"abuse{number}", VALUE).ok
            assert get(shared, f"abuse{number}").content == VALUE
        with shared.client() as client:
            assert client.ask(b"mn\r\n") == b"MN"
        assert sets.ask(b"mn\r\n") == b"MN"  # All are applied before the reply.
        assert sets.get("flood") == VALUE
        # Without progress for `transfer_timeout`.
        assert slow.rest() == b""
        wait_until(lambda: shared.memory() < 300 << 20, "the memory of the server")


def test_idle_connections_are_kept_and_cost_little(shared: MemcacheServer) -> None:
    """5,000 of them, longer than the time for an incomplete command."""
    raise_descriptor_limit(6000)
    is_enough = resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 6000
    count = 5000 if is_enough else 500
    with ExitStack() as stack:
        before = shared.memory()
        started = time.monotonic()
        idle = [stack.enter_context(shared.client()) for _ in range(count)]
        client = stack.enter_context(shared.client())
        assert int(client.stats()["curr_connections"]) == count + 1
        assert (shared.memory() - before) / count < 10_000
        wait_until(lambda: time.monotonic() > started + 2.5, "the time to pass")
        assert idle[0].ask(b"mn\r\n") == idle[-1].ask(b"mn\r\n") == b"MN"
        assert get(shared, "absent").status_code == 404


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
        assert put(server, "key", VALUE).ok
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
