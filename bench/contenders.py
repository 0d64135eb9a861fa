"""
The servers that are measured side by side.

A stage is a set of keys and values; each contender of a stage is one of `servers.py` that
has them, started and filled when it is first asked for. All live until the stage is
closed.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import client
import ladder
import servers
from proc import family
from processes import IP, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack
    from pathlib import Path

MIB: Final = 1 << 20
FILL_CONNECTIONS: Final = 4
HOT_READS: Final = 4  # One more than makes a key hot.
MEMCACHED_SLACK_MIB: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """
    What the contenders of a stage hold: one value under `k0` to `k<count-1>`.

    `stored` is false when they begin empty; volumes are `volume_num` of `volume_size`.
    """

    count: int
    value_bytes: int
    stored: bool = True
    volume_size: int = 1024 * MIB
    volume_num: int = 4

    @property
    def value(self) -> bytes:
        """The value, the same in every run and hard to compress."""
        return random.Random(1).randbytes(self.value_bytes)  # noqa: S311


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """
    One server of a stage.

    `behind` are servers it passes requests on to, whose cost is its cost;
    `bytes_per_key` is what its memory grew by when it was filled, None if it was not.
    """

    server: Server
    behind: tuple[Server, ...] = ()
    is_memcached: bool = False
    bytes_per_key: float | None = None

    @property
    def pids(self) -> list[int]:
        """All processes that work for it."""
        both = (self.server, *self.behind)
        return [pid for server in both for pid in family(server.pid)]


class Stage:
    """Starts contenders in a folder and keeps them until the stack is closed."""

    def __init__(
        self, stack: ExitStack, folder: Path, keys: Keys, base: Path | None = None
    ) -> None:
        """
        Begin with none.

        Args:
            stack: Ends the servers, and removes their files.
            folder: For their files; made.
            keys: What they hold.
            base: The tree of another revision, for the contender `base`.

        """
        folder.mkdir()
        stack.callback(shutil.rmtree, folder)
        self.folder = folder
        self.keys = keys
        self._stack = stack
        self._contenders: dict[str, Contender] = {}
        self._kinds: dict[str, Callable[[str], Contender]] = {
            "volcache": self._volcache,
            "base": partial(self._volcache, tree=base),
            "floor": partial(self._floor, status="200 OK"),
            "floor 404": partial(self._floor, status="404 Not Found"),
            "nginx": self._nginx,
            "nginx, open_file_cache": partial(self._nginx, cached=True),
            "memcached": self._memcached,
            "one file per key": self._one_file_per_key,
            "through nginx": self._through_nginx,
            "hot tier": self._hot_tier,
            **dict.fromkeys(ladder.STEPS, self._step),
        }

    def contender(self, name: str) -> Contender:
        """Return the contender of a kind; start and fill it the first time."""
        if name not in self._contenders:
            self._contenders[name] = self._kinds[name](name)
        return self._contenders[name]

    def _started(self, server: Server) -> Server:
        return self._stack.enter_context(server)

    def _volcache(
        self, name: str, tree: Path | None = None, **more: object
    ) -> Contender:
        """Start volcache on a mount point of its own; `more` are settings."""
        settings = {
            "mount_point": self.folder / slug(name),
            "volume_size": self.keys.volume_size,
            "volume_num": self.keys.volume_num,
            **more,
        }
        server = self._started(servers.volcache(settings, tree))
        return self._filled(server, client.http_put, client.is_whole_http)

    def _floor(self, _name: str, status: str) -> Contender:
        server = servers.floor(self.keys.value_bytes, status)
        return Contender(server=self._started(server))

    def _step(self, name: str) -> Contender:
        """Start one of the steps between the floor and volcache."""
        folder = self.folder / slug(name)
        folder.mkdir()
        server = servers.step(name, self.keys.count, self.keys.value_bytes, folder)
        return Contender(server=self._started(server))

    def _nginx(self, name: str, *, cached: bool = False) -> Contender:
        server = servers.nginx(self.folder / slug(name), self._files(), cached=cached)
        return Contender(server=self._started(server))

    def _one_file_per_key(self, _name: str) -> Contender:
        server = servers.one_file_per_key(self._files())
        return Contender(server=self._started(server))

    def _through_nginx(self, name: str) -> Contender:
        """Start nginx as this repository has it, before the volcache of the stage."""
        behind = self.contender("volcache").server
        own = self.folder / slug(name)
        front = servers.nginx_before([behind], own)
        return Contender(server=self._started(front), behind=(behind,))

    def _hot_tier(self, name: str) -> Contender:
        """Start volcache with a memcached, and read all keys until they are hot."""
        memcached = self._started(servers.memcached(self._memcached_mib()))
        address = f"{IP}:{memcached.port}"
        found = self._volcache(name, memc_on=True, memc_servers=address)
        names = [f"k{number}" for number in range(self.keys.count)]
        reads = (client.http_get(key) for _ in range(HOT_READS) for key in names)
        fill(found.server, reads, client.is_whole_http)
        return replace(found, behind=(memcached,))

    def _memcached(self, _name: str) -> Contender:
        server = self._started(servers.memcached(self._memcached_mib()))
        put, is_whole = client.memcached_set, client.is_whole_stored
        return replace(self._filled(server, put, is_whole), is_memcached=True)

    def _memcached_mib(self) -> int:
        """Return the memory in which all keys have room."""
        values = self.keys.count * self.keys.value_bytes
        return values * 5 // 4 // MIB + MEMCACHED_SLACK_MIB

    def _files(self) -> Path:
        """Make the folder with a file for each key that nginx and Python share."""
        folder = self.folder / "files"
        if not folder.exists():
            folder.mkdir()
            value = self.keys.value
            for number in range(self.keys.count if self.keys.stored else 0):
                (folder / f"k{number}").write_bytes(value)
        return folder

    def _filled(
        self,
        server: Server,
        put: Callable[[str, bytes], bytes],
        is_whole: Callable[[bytes], bool],
    ) -> Contender:
        """Store the keys, in order, and weigh what that takes in memory."""
        if not self.keys.stored:
            return Contender(server=server)
        value = self.keys.value
        # Buffers of the first requests are no memory of the keys.
        fill(server, (put(f"k{n}", value) for n in range(100)), is_whole)
        before = server.resident_bytes()
        names = (f"k{number}" for number in range(self.keys.count))
        fill(server, (put(name, value) for name in names), is_whole)
        grown = server.resident_bytes() - before
        return Contender(server=server, bytes_per_key=grown / self.keys.count)


def slug(name: str) -> str:
    """Make a file name of a contender's, without what nginx would have to quote."""
    return "-".join(name.replace(",", "").split())


def fill(
    server: Server, requests: Iterable[bytes], is_whole: Callable[[bytes], bool]
) -> None:
    """
    Send requests in order, all of which must succeed.

    Raises:
        LoadError: One did not.
    """
    loop = client.ClosedLoop([server.port], FILL_CONNECTIONS)
    try:
        loop.run(requests, is_whole)
    finally:
        loop.close()
