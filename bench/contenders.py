"""
The servers that are measured side by side.

A stage is a set of keys and values; each contender of a stage is a server of one kind
that has them, started and filled when it is first asked for. All live until the stage
is closed.
"""

from __future__ import annotations

import getpass
import os
import random
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import client
import ladder
import nginx_static
from machine import ROOT
from proc import family
from processes import IP, Server
from through_nginx import nginx_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

MIB: Final = 1 << 20
PYTHON_PATH: Final = {"PYTHONPATH": str(ROOT / "src")}
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
        servers = (self.server, *self.behind)
        return [pid for server in servers for pid in family(server.pid)]


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
        self._base = base
        self._started: dict[str, Contender] = {}
        self._kinds: dict[str, Callable[[str], Contender]] = {
            "volcache": self.volcache,
            "base": partial(self.volcache, tree=base),
            "floor": self._floor,
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
        if name not in self._started:
            self._started[name] = self._kinds[name](name)
        return self._started[name]

    def start(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[int], Mapping[str, str]] | None = None,
    ) -> Server:
        """Start a server; its output goes to a file of its name."""
        output = self.folder / f"{slug(name)}.log"
        server = Server(command, environment=environment, output=output)
        return self._stack.enter_context(server)

    def volcache(
        self,
        name: str,
        tree: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Contender:
        """Start volcache as `python src/` on a mount point of its own."""
        merged: dict[str, object] = {
            "mount_point": self.folder / slug(name),
            "ip": IP,
            "volume_size": self.keys.volume_size,
            "volume_num": self.keys.volume_num,
            **(settings or {}),
        }
        server = self.start(
            name,
            lambda _: (sys.executable, str((tree or ROOT) / "src")),
            lambda port: {
                f"VOLCACHE_{setting.upper()}": str(value)
                for setting, value in {**merged, "port": port}.items()
            },
        )
        return self._filled(server, client.http_put, client.is_whole_http)

    def _floor(self, name: str, status: str = "200 OK") -> Contender:
        script = str(ROOT / "bench" / "floor.py")
        size = str(self.keys.value_bytes)
        server = self.start(
            name,
            lambda port: (sys.executable, script, str(port), size, status),
            lambda _: PYTHON_PATH,
        )
        return Contender(server=server)

    def _step(self, name: str) -> Contender:
        """Start one of the steps between the floor and volcache."""
        folder = self.folder / slug(name)
        folder.mkdir()
        script, keys = str(ROOT / "bench" / "ladder.py"), self.keys
        sizes = (str(keys.count), str(keys.value_bytes))
        server = self.start(
            name,
            lambda port: (sys.executable, script, str(port), name, *sizes, str(folder)),
            lambda _: PYTHON_PATH,
        )
        return Contender(server=server)

    def _nginx(self, name: str, *, cached: bool = False) -> Contender:
        root = self._files()
        own = self.folder / slug(name)
        server = self.start(
            name, lambda port: nginx_static.command(own, root, port, cached=cached)
        )
        return Contender(server=server)

    def _one_file_per_key(self, name: str) -> Contender:
        script, root = str(ROOT / "bench" / "one_file_per_key.py"), str(self._files())
        server = self.start(
            name,
            lambda port: (sys.executable, script, str(port), root),
            lambda _: PYTHON_PATH,
        )
        return Contender(server=server)

    def _through_nginx(self, name: str) -> Contender:
        """Start nginx as this repository has it, before the volcache of the stage."""
        behind = self.contender("volcache").server
        own = self.folder / slug(name)
        server = self.start(
            name,
            lambda port: nginx_command(own, [behind.port], lambda _: None, port),
        )
        return Contender(server=server, behind=(behind,))

    def _hot_tier(self, name: str) -> Contender:
        """Start volcache with a memcached, and read all keys until they are hot."""
        memcached = self._memcached("memcached of the hot tier", is_filled=False).server
        found = self.volcache(
            name,
            settings={"memc_on": "true", "memc_servers": f"{IP}:{memcached.port}"},
        )
        names = [f"k{number}" for number in range(self.keys.count)]
        reads = (client.http_get(key) for _ in range(HOT_READS) for key in names)
        fill(found.server, reads, client.is_whole_http)
        return replace(found, behind=(memcached,))

    def _files(self) -> Path:
        """Make the folder with a file for each key that nginx and Python share."""
        folder = self.folder / "files"
        if not folder.exists():
            folder.mkdir()
            value = self.keys.value
            for number in range(self.keys.count if self.keys.stored else 0):
                (folder / f"k{number}").write_bytes(value)
        return folder

    def _memcached(self, name: str, *, is_filled: bool = True) -> Contender:
        """Start memcached with one thread, as bjoern has one."""
        keys = self.keys
        memory = keys.count * keys.value_bytes * 5 // 4 // MIB + MEMCACHED_SLACK_MIB
        arguments = ["-U", "0", "-t", "1", "-m", str(memory), "-I", "2m"]
        server = self.start(
            name,
            lambda port: (
                *("memcached", "-l", IP, "-p", str(port), *arguments),
                *(("-u", getpass.getuser()) if os.geteuid() == 0 else ()),
            ),
        )
        if not is_filled:
            return Contender(server=server, is_memcached=True)
        return self._filled(
            server, client.memcached_set, client.is_whole_stored, is_memcached=True
        )

    def _filled(
        self,
        server: Server,
        put: Callable[[str, bytes], bytes],
        is_whole: Callable[[bytes], bool],
        *,
        is_memcached: bool = False,
    ) -> Contender:
        """Store the keys, in order, and weigh what that takes in memory."""
        if not self.keys.stored:
            return Contender(server=server, is_memcached=is_memcached)
        value = self.keys.value
        # Buffers of the first requests are no memory of the keys.
        fill(server, (put(f"k{n}", value) for n in range(100)), is_whole)
        before = server.resident_bytes()
        names = (f"k{number}" for number in range(self.keys.count))
        fill(server, (put(name, value) for name in names), is_whole)
        grown = server.resident_bytes() - before
        return Contender(
            server=server,
            is_memcached=is_memcached,
            bytes_per_key=grown / self.keys.count,
        )


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
