"""
The servers that are compared: how each is started on a free port and given its keys.

`Contenders` starts what a workload names and fills it with the keys of its dataset.
"""

from __future__ import annotations

import getpass
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.load import Load, LoadError, fill, start_load
from bench.machine import MIB, ROOT, compiled, family, pin, resident_bytes

# Processes are started and ended as in the tests.
sys.path.append(str(ROOT / "tests"))

from support.nginx import copy_configuration, instances_text, start_command
from support.ports import listens, pick_port
from support.process import settings_environment
from support.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

IP: Final = "127.0.0.1"
SERVER_CORE: Final = 0
LIMIT_SOURCE: Final = ROOT / "bench" / "limit.c"
FLOOR: Final = "floor"
EXTSTORE: Final = "memcached, extstore"
ONE_FILE_PER_KEY: Final = "one file per key"
PROMOTED_TURNS: Final = 50  # In which keys are read, until memcached has them.
PROMOTED_SECONDS: Final = 0.1
# Keys that are read so often in 20 ms: a few dozen, but not one of tens of thousands.
PROMOTING_FEW: Final[dict[str, object]] = {
    "cache_after_miss_count": 4,
    "cache_after_miss_count_duration": 0.02,
}
MEMCACHED_SLACK_MIB: Final = 256
PYTHON_PATH: Final = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
SPARE_DESCRIPTORS: Final = 2000  # Left for connections when nginx keeps files open.
# One worker, as volcache is one process; connections are kept as long as wrk wants, as
# by bjoern. The DAV module writes a PUT to a temporary file, which it then renames.
NGINX_CONFIGURATION: Final = """
daemon off;
worker_processes 1;
worker_rlimit_nofile {open_files};
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000000;
    default_type application/octet-stream;
    client_max_body_size 2m;
    client_body_buffer_size 128k;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {extra}
    server {{
        listen {ip}:{port} backlog=1024;
        root {root};
        location / {{ dav_methods PUT; }}
    }}
}}
"""


class Server(Program):
    """One server process on a free port of the loopback interface."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str | Path]],
        environment: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """
        Choose a port; nothing is started yet.

        Args:
            command: Returns the command line for a port.
            environment: Returns environment variables to add, for a port.
        """
        super().__init__()
        self.port = pick_port(IP)
        self._command = command(self.port)
        self._environment = environment(self.port)

    @property
    def url(self) -> str:
        """The address of a server that speaks HTTP."""
        return f"http://{IP}:{self.port}"

    @property
    def pid(self) -> int:
        """
        The process id while it runs.

        Raises:
            ProgramError: It has ended.
        """
        if not self.is_running:
            raise self.failure()
        return super().pid

    def command(self) -> Sequence[str | Path]:
        """Return the command line."""
        return self._command

    def environment(self) -> Mapping[str, str]:
        """Return the environment."""
        return {**super().environment(), **self._environment}

    def answers(self) -> bool:
        """Whether it accepts connections."""
        return listens(self.port, IP)


def volcache(settings: Mapping[str, object], tree: Path = ROOT) -> Server:
    """Return `python src/` of this tree, or of another revision's."""
    return Server(
        lambda _: (sys.executable, tree / "src"),
        lambda port: settings_environment({"ip": IP, **settings, "port": port}),
    )


def app(name: str, *arguments: str) -> Server:
    """Return an application of `apps.py`."""
    return Server(
        lambda port: (sys.executable, "-m", "bench.apps", name, str(port), *arguments),
        lambda _: PYTHON_PATH,
    )


def memcached(memory_mib: int, *more: str) -> Server:
    """Return memcached with one thread, as bjoern has one, and more options."""
    user = ("-u", getpass.getuser()) if os.geteuid() == 0 else ()
    options = ("-U", "0", "-t", "1", "-m", str(memory_mib), "-I", "2m", *user, *more)
    return Server(lambda port: ("memcached", "-l", IP, "-p", str(port), *options))


def redis() -> Server:
    """Return Redis without files."""
    options = ("--save", "", "--appendonly", "no", "--bind", IP)
    return Server(lambda port: ("redis-server", "--port", str(port), *options))


def limit(folder: Path, dataset: Dataset) -> Server:
    """Return `limit.c`, which has the keys from the start; the folder is made."""
    folder.mkdir()
    sizes = str(dataset.count), str(dataset.value_bytes)
    return Server(lambda port: (compiled(LIMIT_SOURCE), str(port), folder, *sizes))


def nginx(folder: Path, root: Path, *, keeps_open: bool) -> Server:
    """
    Return nginx that serves the files of a folder.

    Args:
        folder: For nginx's own files; made.
        root: The files.
        keeps_open: Whether `open_file_cache` is on.
    """
    open_files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    count = open_files - SPARE_DESCRIPTORS
    cache = f"open_file_cache max={count} inactive=60s; open_file_cache_valid 60s;"

    def command(port: int) -> Sequence[str]:
        folder.mkdir()
        text = NGINX_CONFIGURATION.format(
            folder=folder,
            extra=cache if keeps_open else "",
            open_files=open_files,
            ip=IP,
            port=port,
            root=root,
        )
        (folder / "nginx.conf").write_text(text, encoding="utf-8")
        return start_command(folder, "nginx.conf")

    return Server(command)


Change = Callable[[Path], None]  # Edits the files of a configuration, given its folder.


def replaced(name: str, old: str, new: str) -> Change:
    """Return a change that replaces `old` in one file; ValueError if it is not there."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{name} does not contain {old!r}")
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


def nginx_in_front(
    instances: str, folder: Path, changes: Sequence[Change] = ()
) -> Server:
    """
    Return nginx with the configuration in `nginx/`.

    Args:
        instances: The text of instances.conf, its upstream servers.
        folder: For the configuration and nginx's own files; made.
        changes: Edits of the configuration.
    """

    def command(port: int) -> Sequence[str]:
        copy_configuration(folder)
        (folder / "volcache/instances.conf").write_text(instances, encoding="utf-8")
        for change in (
            replaced("volcache/listen.conf", "127.0.0.1:8080", f"{IP}:{port}"),
            replaced("volcache/log.conf", "/var/log/nginx/", f"{folder}/"),
            *changes,
        ):
            change(folder)
        return start_command(folder, "cluster.conf")

    return Server(command)


# One thing of the configuration of nginx that is changed, by the name of a contender.
NGINX_CHANGES: Final[dict[str, Change]] = {
    "no access log": replaced("volcache/log.conf", "access_log", "#"),
    "log not buffered": replaced("volcache/log.conf", " buffer=64k flush=1s", ""),
    "no kept connections": replaced("volcache.conf", "    keepalive ", "    #"),
    "no reuseport": replaced("volcache/listen.conf", " reuseport", ""),
    "small buffers": replaced(
        "volcache/proxy.conf", "buffers            34 32k", "buffers 264 4k"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """
    What the contenders of a workload store: one value under `k0` to `k<count-1>`.

    Attributes:
        count: How many keys.
        value_bytes: Size of each value.
        is_stored: Whether the contenders have the keys from the start.
        volume_size: Of volcache, in bytes.
        volume_num: Of volcache.
    """

    count: int
    value_bytes: int
    is_stored: bool = True
    volume_size: int = 1024 * MIB
    volume_num: int = 4

    @property
    def value(self) -> bytes:
        """The value: incompressible, and the same in each run."""
        return random.Random(1).randbytes(self.value_bytes)  # noqa: S311

    @property
    def keys(self) -> list[str]:
        """The keys in the order in which they are stored."""
        return [f"k{number}" for number in range(self.count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """
    A running server and the servers it depends on.

    Attributes:
        server: Receives the requests.
        behind: Their CPU and memory count with the server's.
        ports: Of the protocols that it speaks; it is asked in the first of them if it
            does not speak that of a load.
        bytes_per_key: The growth of its memory per stored key; None if not filled.
    """

    server: Server
    behind: tuple[Server, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    bytes_per_key: float | None = None

    @property
    def pids(self) -> list[int]:
        """All its processes."""
        return [pid for one in (self.server, *self.behind) for pid in family(one.pid)]

    @property
    def own_pids(self) -> list[int]:
        """The processes of the server alone."""
        return family(self.server.pid)

    def address(self, protocol: str) -> tuple[str, int]:
        """Return the protocol of a load, or the one it speaks instead, and the port."""
        ports = self.ports or {"http": self.server.port}
        spoken = protocol if protocol in ports else next(iter(ports))
        return spoken, ports[spoken]


class Contenders:
    """Starts servers in a folder, each filled with the dataset, and keeps them running."""

    def __init__(
        self, stack: ExitStack, folder: Path, dataset: Dataset, base: Path = ROOT
    ) -> None:
        """
        Make the folder; nothing is started yet.

        Args:
            stack: Its end stops the servers and removes the folder.
            folder: Does not exist yet.
            dataset: What the servers store.
            base: The tree that the contender `base` runs.
        """
        folder.mkdir()
        stack.callback(shutil.rmtree, folder)
        self.folder = folder
        self.dataset = dataset
        self._stack = stack
        self._running: dict[str, Contender] = {}
        self._starts: dict[str, Callable[[str], Contender]] = {
            "volcache": self.volcache,
            "base": partial(self.volcache, tree=base),
            FLOOR: partial(self._floor, status="200 OK"),
            "floor 404": partial(self._floor, status="404 Not Found"),
            "nginx": partial(self._nginx, keeps_open=False),
            "nginx, open_file_cache": partial(self._nginx, keeps_open=True),
            "memcached": self._memcached,
            EXTSTORE: self._extstore,
            "redis": self._redis,
            "limit": self._limit,
            ONE_FILE_PER_KEY: self._one_file_per_key,
            "through nginx": self._through_nginx,
            **{
                name: partial(self._through_nginx, changes=[change])
                for name, change in NGINX_CHANGES.items()
            },
            "hot tier": self._hot_tier,
            "hot tier, other keys": self._other_keys,
        }

    def get(self, name: str) -> Contender:
        """Return a contender, started and filled at its first use."""
        if name not in self._running:
            self._running[name] = self._starts[name](name)
        return self._running[name]

    def started(self, server: Server) -> Server:
        """Start a server that runs as long as the contenders, on the first core."""
        self._stack.enter_context(server)
        pin(family(server.pid), SERVER_CORE)
        return server

    def path(self, name: str) -> Path:
        """Return a path for a contender's files, without spaces and commas."""
        return self.folder / "-".join(name.replace(",", "").split())

    def volcache(
        self,
        name: str,
        tree: Path = ROOT,
        more: Mapping[str, object] | None = None,
    ) -> Contender:
        """Start volcache of a tree, with more settings, and store the keys."""
        port = pick_port(IP)
        settings = {
            "mount_point": self.path(name),
            "volume_size": self.dataset.volume_size,
            "volume_num": self.dataset.volume_num,
            "memcache_listen": f"{IP}:{port}",
            **(more or {}),
        }
        server = self.started(volcache(settings, tree))
        ports = {"http": server.port, "text": port, "meta": port}
        return self._filled(Contender(server=server, ports=ports))

    def _floor(self, _name: str, status: str) -> Contender:
        server = app("floor", str(self.dataset.value_bytes), status)
        return Contender(server=self.started(server))

    def _nginx(self, name: str, *, keeps_open: bool) -> Contender:
        server = nginx(self.path(name), self._files(), keeps_open=keeps_open)
        return Contender(server=self.started(server))

    def _one_file_per_key(self, _name: str) -> Contender:
        return Contender(server=self.started(app("files", str(self._files()))))

    def _through_nginx(self, name: str, changes: Sequence[Change] = ()) -> Contender:
        instance = self.get("volcache").server
        listed = instances_text([f"{IP}:{instance.port}"])
        front = nginx_in_front(listed, self.path(name), changes)
        return Contender(server=self.started(front), behind=(instance,))

    def _hot_tier(self, name: str) -> Contender:
        found = self.with_memcached(name)
        promote(found, self.dataset)
        return found

    def _other_keys(self, name: str) -> Contender:
        return self.with_memcached(name, PROMOTING_FEW)

    def with_memcached(
        self, name: str, more: Mapping[str, object] | None = None
    ) -> Contender:
        """Start volcache with a memcached, which has no key yet, and more settings."""
        tier = self.started(memcached(self._memcached_mib()))
        hot = {"memc_on": True, "memc_servers": f"{IP}:{tier.port}"}
        found = self.volcache(name, more={**hot, **(more or {})})
        return replace(found, behind=(tier,))

    def _memcached(self, _name: str, *options: str) -> Contender:
        server = self.started(memcached(self._memcached_mib(), *options))
        ports = {"text": server.port, "meta": server.port}
        return self._filled(Contender(server=server, ports=ports))

    def _extstore(self, name: str) -> Contender:
        """Start memcached that writes values to a file at once, and keeps none."""
        path = f"ext_path={self.path(name)}:2G"
        return self._memcached(name, "-o", f"{path},ext_item_age=0,ext_recache_rate=0")

    def _redis(self, _name: str) -> Contender:
        server = self.started(redis())
        return self._filled(Contender(server=server, ports={"redis": server.port}))

    def _limit(self, name: str) -> Contender:
        server = self.started(limit(self.path(name), self.dataset))
        ports = dict.fromkeys(("http", "text", "meta"), server.port)
        return Contender(server=server, ports=ports)

    def _memcached_mib(self) -> int:
        """Return the memory that holds all keys."""
        values = self.dataset.count * self.dataset.value_bytes
        return values * 5 // 4 // MIB + MEMCACHED_SLACK_MIB

    def _files(self) -> Path:
        """Return the folder of files, one for each key, that two contenders share."""
        folder = self.folder / "files"
        if not folder.exists():
            folder.mkdir()
            value = self.dataset.value
            for key in self.dataset.keys if self.dataset.is_stored else ():
                (folder / key).write_bytes(value)
        return folder

    def _filled(self, contender: Contender) -> Contender:
        """Store the dataset, and measure how much memory it takes."""
        dataset = self.dataset
        if not dataset.is_stored:
            return contender
        server, (protocol, port) = contender.server, contender.address("http")
        # Buffers that the first requests allocate do not count for the keys.
        fill(server, replace(dataset, count=min(100, dataset.count)), protocol, port)
        pids = family(server.pid)
        before = resident_bytes(pids)
        fill(server, dataset, protocol, port)
        grown = resident_bytes(pids) - before
        return replace(contender, bytes_per_key=grown / dataset.count)


def promote(contender: Contender, dataset: Dataset) -> None:
    """
    Read keys at random until memcached has all of them.

    Raises:
        LoadError: Some keys are not promoted.
    """
    reads = Load(kind="get", dataset=dataset, seconds=PROMOTED_SECONDS)
    for _ in range(PROMOTED_TURNS):
        run = start_load(reads, contender).result()
        if run.promoted == run.requests:
            return
    raise LoadError("not all keys are promoted")
