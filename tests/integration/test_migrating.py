"""docs/MIGRATING.md, run as written on real caches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import diskcache
import pytest
import redis
import requests

from support.cachefs import CacheFs
from support.memcached import MemcachedProcess
from support.nginx import instances_text
from support.origin import Filled
from support.pages import ROOT
from support.process import ServerProcess, Servers
from support.recipes import Daemon, Front, run

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

TEXT: Final = (ROOT / "docs" / "MIGRATING.md").read_text()
VALUES: Final = {f"k/{n} ü": b"%d" % n * n for n in range(1, 40)}


class Redis(Daemon):
    """A Redis that keeps nothing on the disk."""

    def command(self) -> list[str]:
        """Return the command."""
        return ["redis-server", "--port", str(self.port), "--save", ""]


@pytest.fixture
def server(servers: Servers) -> Iterator[ServerProcess]:
    """Start an instance."""
    with servers.server() as running:
        yield running


def block(title: str) -> str:
    """Return the block of a section."""
    found = re.search(
        rf"^## {title}.*?^```\w+\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL
    )
    assert found
    return found[1].removeprefix("$ ")


def migrate(title: str, server: ServerProcess, names: Mapping[str, str]) -> None:
    """Run the block of a section, with names of the page replaced."""
    text = block(title).replace("127.0.0.1:1234", f"127.0.0.1:{server.port}")
    for name, other in names.items():
        assert name in text
        text = text.replace(name, other)
    is_python = text.startswith("import")
    command = [f"{ROOT}/.venv/bin/python", "-c"] if is_python else ["bash", "-ec"]
    run([*command, text], ROOT, {"PATH": f"{ROOT}/.venv/bin:/usr/bin:/bin"})


def check(server: ServerProcess, values: Mapping[str, bytes], ttl: int = 0) -> None:
    """Compare all values, and the lifetime of the first."""
    for key, value in values.items():
        found = requests.get(f"{server.url}/{key}", timeout=20)
        assert (found.status_code, found.content) == (200, value), key
        if key == next(iter(values)) and ttl:
            age = int(found.headers["Cache-Control"].removeprefix("max-age="))
            assert ttl - 60 < age <= ttl


def test_load_of_files_by_a_list_stores_them(
    server: ServerProcess, tmp_path: Path
) -> None:
    """By nginx's list."""
    (tmp_path / "list").write_text(instances_text([f"127.0.0.1:{server.port}"]))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").write_bytes(b"one")
    names = {"/srv/files": str(tmp_path / "files")}
    names["/etc/nginx/volcache/instances.conf"] = str(tmp_path / "list")
    migrate("Files", server, names)
    check(server, {"files/a": b"one"}, 86400)


def test_cache_of_nginx_is_filled_through_volcache(tmp_path: Path) -> None:
    """By the list, without a second request to the origin; it stays in front."""
    (via,) = re.findall(r"`(proxy_pass http://127\.0\.0\.1:8081;)`", TEXT)
    with ExitStack() as stack:
        filled = Filled(tmp_path / "filled", stack)
        front = f"127.0.0.1:{filled.port}"
        old = Front(
            tmp_path / "old",
            f"proxy_cache_path {tmp_path}/old/cache keys_zone=old:1m;\n"
            "server { listen 127.0.0.1:8081; proxy_cache old; location / {"
            f" {via.replace('127.0.0.1:8081', front)} }} }}\n",
        )
        stack.enter_context(old)
        for n in range(50):
            filled.origin.answers[f"/a/{n}"] = 200, {}, b"%d" % n
        (tmp_path / "list").write_text("".join(f"/a/{n}\n" for n in range(50)))
        text = block("nginx").replace("127.0.0.1:8081", front)
        assert "urls.txt" in text
        run(["bash", "-ec", text.replace("urls.txt", str(tmp_path / "list"))], ROOT)
        for n in range(50):
            (copy,) = filled.stored(f"/a/{n}")
            assert copy.content == b"%d" % n
            assert requests.get(f"http://{old.host}/a/{n}", timeout=20).text == str(n)
        assert set(filled.origin.asked.values()) == {1}


def test_copy_of_memcached_keeps_values_and_lifetimes(server: ServerProcess) -> None:
    """With lifetimes."""
    values = {key.partition(" ")[0]: value for key, value in VALUES.items()}
    with MemcachedProcess() as memcached:
        with memcached.client() as old:
            for key, value in values.items():
                old.set(key, value, 5000, noreply=False)
        migrate("memcached", server, {"127.0.0.1:11211": memcached.address})
    check(server, values, 5000)


def test_copy_of_redis_keeps_strings_and_lifetimes(server: ServerProcess) -> None:
    """Strings, with lifetimes."""
    with Redis() as running:
        with redis.Redis("127.0.0.1", running.port) as old:
            for key, value in VALUES.items():
                old.set(key, value, ex=5000)
            old.lpush("list", "x")
        migrate("Redis", server, {"6379": str(running.port)})
    check(server, VALUES, 5000)


def test_copy_of_diskcache_by_the_serializer_keeps_values(
    server: ServerProcess, tmp_path: Path
) -> None:
    """By the serializer."""
    with diskcache.Cache(str(tmp_path / "old")) as old:
        old.set("a", {"b": 1}, expire=5000)
        old.set("n", [1, 2])
    migrate("diskcache", server, {"/srv/diskcache": str(tmp_path / "old")})
    check(server, {"a": b'{"b":1}', "n": b"[1,2]"}, 5000)


def test_load_of_cachefs_stores_its_values(
    server: ServerProcess, tmp_path: Path
) -> None:
    """tests/integration/test_load.py has deletions and volumes that are used again."""
    store = CacheFs(tmp_path / "old", volumes=4, size=1000)
    for key, value in VALUES.items():
        store.put(key.encode(), value)
    (tmp_path / "list").write_text(instances_text([f"127.0.0.1:{server.port}"]))
    names = {"/srv/cachefs": str(tmp_path / "old")}
    names["/etc/nginx/volcache/instances.conf"] = str(tmp_path / "list")
    migrate("CacheFS", server, names)
    assert store.live
    check(server, {k.decode(): value for k, (_, value) in store.live.items()})
