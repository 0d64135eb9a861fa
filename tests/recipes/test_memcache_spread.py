"""
Keys on several instances: twemproxy, nginx and client libraries that choose the same one.

Configuration files and the ring are those of the document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from pymemcache.client.base import Client  # noqa: TID251 - Under test.
from pymemcache.exceptions import MemcacheServerError  # noqa: TID251

from support.fetched import fetched_program
from support.memcache import MemcacheServer
from support.memcache_clients import SECONDS
from support.nginx import Nginx
from support.ports import pick_port
from support.recipes import Daemon, snippet
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

KEYS = [f"key{number}" for number in range(100)]
KEYS += [f"tiles/{number}/a-b.png" for number in range(100)]


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[MemcacheServer]]:
    """Run three instances."""
    folder = tmp_path_factory.mktemp("spread")
    with ExitStack() as stack:
        servers = [stack.enter_context(MemcacheServer(folder / n)) for n in "abc"]
        yield servers


@pytest.fixture
def instances(running: list[MemcacheServer]) -> list[MemcacheServer]:
    """Return three instances that have none of the keys."""
    for server in running:
        if not server.is_running:
            server.restart()
    forget(running)
    return running


def placed(text: str, instances: list[MemcacheServer]) -> str:
    """Return a text of the document with the addresses of these instances."""
    for number, server in enumerate(instances):
        text = text.replace(f"127.0.0.1:{1234 + number}", f"127.0.0.1:{server.port}")
        text = text.replace(f"127.0.0.1:{11211 + number}", server.memcache_address)
    return text


def holders(instances: list[MemcacheServer]) -> list[int]:
    """Return which instance has each key; fail if it is not one."""
    found = []
    for server in instances:
        with closing(connect(server.memcache_port)) as client:
            found.append(client.get_many(KEYS))
    which = [[number for number in range(3) if key in found[number]] for key in KEYS]
    assert all(len(one) == 1 for one in which)
    return [one[0] for one in which]


def connect(port: int) -> Client:
    """Return a client that waits for all answers."""
    return Client(("127.0.0.1", port), timeout=SECONDS, default_noreply=False)


def forget(instances: list[MemcacheServer]) -> None:
    """Delete all keys from all instances."""
    for server in instances:
        with closing(connect(server.memcache_port)) as client:
            client.delete_many(KEYS)


class Twemproxy(Daemon):
    """One nutcracker, with the configuration of the document."""

    is_asked_to_end = False

    def __init__(self, folder: Path, instances: list[MemcacheServer]) -> None:
        """Write the configuration."""
        super().__init__()
        self._folder = folder / "twemproxy"
        self._folder.mkdir()
        self._program = fetched_program("nutcracker")
        self._stats = next(p for p in iter(pick_port, 0) if p != self.port)
        text = placed(snippet("twemproxy", "yaml"), instances)
        text = text.replace("127.0.0.1:22121", self.host)
        (self._folder / "nutcracker.yml").write_text(text)

    def command(self) -> Sequence[str | Path]:
        """Return the command that starts it in the foreground."""
        return [
            *(self._program, "-c", self._folder / "nutcracker.yml", "-a", "127.0.0.1"),
            *("-s", str(self._stats), "-p", self._folder / "pid"),
            *("-o", self._folder / "log"),
        ]

    def answers(self) -> bool:
        """Whether it reaches the instances."""
        if not super().answers():
            return False
        with closing(connect(self.port)) as client, suppress(MemcacheServerError):
            client.get("any")
            return True
        return False


def has_all(client: Client, values: dict[str, bytes]) -> bool:
    """Return whether all values are there, without an error."""
    with suppress(MemcacheServerError):
        return bool(client.get_many(KEYS) == values)
    return False


def test_twemproxy_spreads_keys_and_waits_for_an_instance(
    tmp_path: Path, instances: list[MemcacheServer]
) -> None:
    """Keys of one that is down are errors, and have their values when it is back."""
    with (
        Twemproxy(tmp_path, instances) as proxy,
        closing(connect(proxy.port)) as client,
    ):
        values = {key: key.encode() * 3 for key in KEYS}
        assert client.set_many(values) == []
        assert client.get_many(KEYS) == values
        which = holders(instances)
        assert min(which.count(number) for number in range(3)) >= 40
        large = bytes(range(256)) * 4095
        client.set("large", large)
        assert client.get("large") == large
        _, unique = client.gets("large")
        assert client.cas("large", b"1", unique) is True
        assert client.cas("large", b"2", unique) is False
        assert client.incr("large", 1) == 2
        assert client.touch("large", 100)
        assert client.delete("large")
        assert client.get("large") is None
        assert not client.add(KEYS[0], b"x")

        instances[0].kill()
        for key, number in zip(KEYS, which, strict=True):
            if number:
                assert client.get(key) == values[key]
            else:
                with pytest.raises(MemcacheServerError):
                    client.get(key)
        with pytest.raises(MemcacheServerError):
            client.get_many(KEYS)
        instances[0].restart()
        wait_until(lambda: has_all(client, values), "the instance to be used again")


def test_pymemcache_follows_the_ring_of_nginx(
    tmp_path: Path, instances: list[MemcacheServer]
) -> None:
    """Also while an instance is down, whose keys are misses until it is back."""
    code: dict[str, Any] = {}
    text = placed(snippet("pymemcache", "python"), instances)
    exec(compile(text, "RECIPES.md", "exec"), code)  # noqa: S102 - Ours.
    cache = code["cache"]
    names = [f"127.0.0.1:{server.port}" for server in instances]
    with ExitStack() as stack:
        stack.callback(cache.close)
        nginx = stack.enter_context(Nginx(tmp_path / "nginx", names))
        for key in KEYS:
            url = f"{nginx.url}/{key}"
            assert requests.put(url, data=key, timeout=SECONDS).ok
        assert cache.get_many(KEYS) == {key: key.encode() for key in KEYS}
        which = holders(instances)
        assert min(which.count(number) for number in range(3)) >= 40
        assert cache.set_many(dict.fromkeys(KEYS, b"over memcached")) == []
        for key in KEYS[::20]:
            answer = requests.get(f"{nginx.url}/{key}", timeout=SECONDS)
            assert answer.content == b"over memcached"

        instances[0].kill()
        for _ in range(3):
            left = [key for key, number in zip(KEYS, which, strict=True) if number]
            assert cache.get_many(KEYS) == dict.fromkeys(left, b"over memcached")
            missing = KEYS[which.index(0)]
            assert cache.get(missing) is None
            assert cache.set(missing, b"not stored") is False
        instances[0].restart()
        everything = dict.fromkeys(KEYS, b"over memcached")
        wait_until(
            lambda: cache.get_many(KEYS) == everything, "the instance to be used again"
        )


def test_emcache_finds_the_instances_of_the_ring(tmp_path: Path) -> None:
    """Each key is stored on one of the two."""
    port, path = pick_port(), tmp_path / "instances.conf"
    hosts = ("127.0.0.1", "127.0.0.2")
    path.write_text("".join(f"server {host}:{port};\n" for host in hosts))
    code: dict[str, Any] = {}
    with ExitStack() as stack:
        shared = pick_port()
        first, _ = (
            stack.enter_context(
                MemcacheServer(
                    tmp_path / host,
                    {
                        "memcache_listen": f"{host}:{shared}",
                        "ring": path,
                        "ring_self": f"{host}:{port}",
                    },
                )
            )
            for host in hosts
        )
        text = snippet("AWS", "python").replace("11211", str(first.memcache_port))
        exec(compile(text, "RECIPES.md", "exec"), code)  # noqa: S102 - Ours.

        async def use() -> None:
            cache = await code["connect"]()
            for key in KEYS:
                await cache.set(key.encode(), key.encode())
            with closing(connect(first.memcache_port)) as client:
                near = client.get_many(KEYS)
            with closing(Client((hosts[1], shared), timeout=SECONDS)) as client:
                far = client.get_many(KEYS)
            assert near | far == {key: key.encode() for key in KEYS}
            assert min(len(near), len(far)) > 40
            assert not near.keys() & far
            await cache.close()

        asyncio.run(use())
