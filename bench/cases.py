"""
The cases that are measured, and the servers they run against.

Each server is started once, on a folder of its own, and serves its cases until the end.
"""

from __future__ import annotations

import getpass
import http.client
import random
import sys
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from load import LoadError, MemcachedClient, run_wrk
from machine import ROOT
from processes import IP, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

KIB: Final = 1024
SMALL: Final = KIB
LARGE: Final = 64 * KIB
LARGE_KEYS_SHARE: Final = 20  # So that both sizes hold a similar number of bytes.
PYTHON_PATH: Final = {"PYTHONPATH": str(ROOT / "src")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How much of what; `large` adds the cases of 64 KiB."""

    connections: int
    keys: int
    large: bool
    volume_size: int
    volume_num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing to measure; `load` takes seconds and returns the answers counted."""

    name: str
    server: Server
    load: Callable[[float], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A case compared with another of the same round."""

    name: str
    case: str
    base: str


class Servers:
    """Starts servers in a folder and keeps them until the stack is closed."""

    def __init__(self, stack: ExitStack, work: Path, workload: Workload) -> None:
        """Take the stack that ends them and the folder for their files."""
        self._stack = stack
        self._work = work
        self._workload = workload

    def _start(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[int], Mapping[str, str]] | None = None,
    ) -> Server:
        output = self._work / f"{name}.log"
        server = Server(command, environment=environment, output=output)
        return self._stack.enter_context(server)

    def floor(self, value_bytes: int) -> Server:
        """Start bjoern with a constant."""
        script = str(ROOT / "bench" / "floor.py")
        return self._start(
            f"floor-{value_bytes}",
            lambda port: (sys.executable, script, str(port), str(value_bytes)),
            lambda _: PYTHON_PATH,
        )

    def volcache(self, name: str) -> Server:
        """Start volcache as `python src/` on a mount point of its own."""
        return self._start(
            name,
            lambda _: (sys.executable, str(ROOT / "src")),
            lambda port: {
                "VOLCACHE_MOUNT_POINT": str(self._work / name),
                "VOLCACHE_IP": IP,
                "VOLCACHE_PORT": str(port),
                "VOLCACHE_VOLUME_SIZE": str(self._workload.volume_size),
                "VOLCACHE_VOLUME_NUM": str(self._workload.volume_num),
            },
        )

    def memcached(self) -> Server:
        """Start memcached with one thread, as bjoern has one."""
        arguments = ["-U", "0", "-t", "1", "-m", "1024", "-I", "2m"]
        user = ("-u", getpass.getuser())
        return self._start(
            "memcached",
            lambda port: ("memcached", "-l", IP, "-p", str(port), *arguments, *user),
        )

    def memcached_client(self, server: Server) -> MemcachedClient:
        """Connect to memcached."""
        client = MemcachedClient(server.port, connections=self._workload.connections)
        self._stack.callback(client.close)
        return client


def seeded() -> random.Random:
    """Return what draws the same keys and values in every run."""
    return random.Random(1)  # noqa: S311 - load, no secrets


def fill_volcache(server: Server, keys: int, value: bytes) -> None:
    """
    Store one value under k0 .. k<keys-1>.

    Raises:
        LoadError: An answer is not 200.
    """
    connection = http.client.HTTPConnection(IP, server.port, timeout=30)
    for number in range(keys):
        connection.request("PUT", f"/k{number}", value)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != HTTPStatus.OK:
            raise LoadError(f"PUT was answered {answer.status}: {text!r}")
    connection.close()


def http_cases(servers: Servers, workload: Workload, value_bytes: int) -> list[Case]:
    """Make the cases of one value length that wrk measures."""
    label = f"{value_bytes // KIB} KiB"
    keys = workload.keys if value_bytes == SMALL else workload.keys // LARGE_KEYS_SHARE

    def get(server: Server) -> Callable[[float], int]:
        return lambda seconds: run_wrk(
            server.url,
            connections=workload.connections,
            seconds=seconds,
            script="wrk_get.lua",
            arguments=[str(keys)],
        )

    def put(server: Server) -> Callable[[float], int]:
        return lambda seconds: run_wrk(
            server.url,
            connections=workload.connections,
            seconds=seconds,
            script="wrk_put.lua",
            arguments=[str(value_bytes), str(keys)],
        )

    floor = servers.floor(value_bytes)
    reader = servers.volcache(f"get-{value_bytes}")
    writer = servers.volcache(f"put-{value_bytes}")
    fill_volcache(reader, keys, seeded().randbytes(value_bytes))
    return [
        Case(name=f"floor GET {label}", server=floor, load=get(floor)),
        Case(name=f"volcache GET {label}", server=reader, load=get(reader)),
        Case(name=f"floor PUT {label}", server=floor, load=put(floor)),
        Case(name=f"volcache PUT {label}", server=writer, load=put(writer)),
    ]


def memcached_case(servers: Servers, workload: Workload) -> Case:
    """Make the case of memcached's get."""
    server = servers.memcached()
    client = servers.memcached_client(server)
    draw = seeded()
    keys = [b"k%d" % number for number in range(workload.keys)]
    client.fill(keys, draw.randbytes(SMALL))
    drawn = draw.choices(keys, k=len(keys))
    return Case(
        name="memcached get 1 KiB",
        server=server,
        load=lambda seconds: client.get(drawn, SMALL, seconds),
    )


def make_cases(servers: Servers, workload: Workload) -> list[Case]:
    """Start everything and return the cases in the order of a round."""
    cases = http_cases(servers, workload, SMALL)
    cases.insert(2, memcached_case(servers, workload))
    if workload.large:
        cases += http_cases(servers, workload, LARGE)
    return cases


def make_ratios(workload: Workload) -> list[Ratio]:
    """Say what is compared with what."""
    sizes = ("1 KiB", "64 KiB") if workload.large else ("1 KiB",)
    ratios = [
        Ratio(
            name=f"{verb} {label} to floor",
            case=f"volcache {verb} {label}",
            base=f"floor {verb} {label}",
        )
        for label in sizes
        for verb in ("GET", "PUT")
    ]
    ratios.append(
        Ratio(
            name="GET 1 KiB to memcached get",
            case="volcache GET 1 KiB",
            base="memcached get 1 KiB",
        )
    )
    return ratios
