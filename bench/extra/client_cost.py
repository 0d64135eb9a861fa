"""
Clients of Python: CPU and time of a get and a put of 1 KiB, alone and 32 at once.

Each client has turns of half a second in the same rounds: puts and gets of random keys, by
one thread or task, and by 32 on up to 32 connections. CPU is that of the process of the
client, all threads, divided by the calls; the servers run in processes of their own. Each
value is compared with the length of what was put. `--profile` prints where the time of one
client goes instead.

    .venv/bin/pip install -r bench/requirements.txt
    .venv/bin/python -m bench.extra.client_cost [--rounds 5] [--seconds 0.5]
    .venv/bin/python -m bench.extra.client_cost --profile "volcache Client"
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import http.client
import os
import pstats
import random
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from itertools import islice
from statistics import median
from threading import Barrier, Thread, local
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import aiohttp
import aiomcache
import diskcache
import emcache
import httpx
import requests
import requests.adapters
import urllib3
from pymemcache.client.base import PooledClient  # noqa: TID251 - Measured.

from bench.extra.script import ScriptError, make_parser, measuring
from bench.load import turns
from bench.machine import MIB
from bench.report import bullets, table
from bench.servers import IP, memcached, volcache
from support.ports import pick_port
from volcache_client import AsyncClient, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

VALUE: Final = os.urandom(1024)
KEYS: Final = 2000
MANY: Final = 32
WARM_CALLS: Final = 2
MICROSECONDS: Final = 1e6
REFERENCE: Final = "volcache Client"
HTTPX_LIMITS: Final = httpx.Limits(max_connections=MANY, max_keepalive_connections=MANY)
LIBRARIES: Final = (
    "urllib3", "aiohttp", "requests", "httpx", "pymemcache", "emcache", "aiomcache",
    "diskcache",
)  # fmt: skip

Calls = list[float]  # The duration of each, seconds.


class Turn(NamedTuple):
    """What was measured in one turn: microseconds, and calls per second."""

    cpu: float
    p50: float
    p99: float
    rate: float


class Target(NamedTuple):
    """Where the candidates find their servers."""

    http_port: int
    memcache_port: int
    memcached_port: int
    folder: Path

    @property
    def url(self) -> str:
        """The address of HTTP."""
        return f"http://{IP}:{self.http_port}"


class Candidate(ABC):
    """A client in its usual form; used by several threads or tasks."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @abstractmethod
    def measure(
        self, operation: str, count: int, seconds: float
    ) -> tuple[Calls, float, float]:
        """
        Call an operation by some threads or tasks at once.

        Args:
            operation: "get" or "put".
            count: How many.
            seconds: For how long.

        Returns:
            The duration of each call, the time of all of them, and the CPU, in seconds.
        """

    @abstractmethod
    def fill(self) -> None:
        """Put each key once."""

    @abstractmethod
    def close(self) -> None:
        """Close its connections."""


# --- Threads ----------------------------------------------------------------------------


class Threaded(Candidate):
    """A client whose calls wait."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return a value."""

    @abstractmethod
    def put(self, key: str) -> None:
        """Store the value."""

    def measure(
        self, operation: str, count: int, seconds: float
    ) -> tuple[Calls, float, float]:
        """Use as many threads; a single one is this one."""
        call = self._call(operation)
        if count == 1:
            call_for(call, WARM_CALLS)
            cpu, began = time.process_time(), time.perf_counter()
            calls = call_until(call, began + seconds)
            return calls, time.perf_counter() - began, time.process_time() - cpu
        barrier = Barrier(count + 1)
        found: list[Calls] = []

        def run() -> None:
            call_for(call, WARM_CALLS)  # Opens the connection.
            barrier.wait()
            found.append(call_until(call, time.perf_counter() + seconds))

        threads = [Thread(target=run) for _ in range(count)]
        for thread in threads:
            thread.start()
        barrier.wait()
        cpu, began = time.process_time(), time.perf_counter()
        for thread in threads:
            thread.join()
        if len(found) < count:
            raise ScriptError(f"{type(self).__name__}: a thread failed")
        took, used = time.perf_counter() - began, time.process_time() - cpu
        return [call for calls in found for call in calls], took, used

    def fill(self) -> None:
        """Put each key once."""
        call_for(self.put, KEYS)

    def _call(self, operation: str) -> Callable[[str], object]:
        if operation == "put":
            return self.put

        def get(key: str) -> None:
            check(self.get(key))

        return get


def check(value: bytes | None) -> None:
    """
    Compare the length of a value with what was put.

    Raises:
        ScriptError: It is another.
    """
    if value is None or len(value) != len(VALUE):
        raise ScriptError("a get did not return what was put")


def check_status(status: int) -> None:
    """
    Check the answer to a request.

    Raises:
        ScriptError: It was refused.
    """
    if status != 200:  # noqa: PLR2004
        raise ScriptError(f"an answer is {status}")


def keys() -> Iterator[str]:
    """Yield keys in a random order."""
    names = [f"bench/{number:06}" for number in range(KEYS)]
    random.shuffle(names)
    while True:
        yield from names


def call_until(call: Callable[[str], object], end: float) -> Calls:
    """Call again and again; return the durations."""
    found = []
    now = time.perf_counter()
    for key in keys():
        call(key)
        before, now = now, time.perf_counter()
        found.append(now - before)
        if now >= end:
            break
    return found


def call_for(call: Callable[[str], object], count: int) -> None:
    """Call some times."""
    for key in islice(keys(), count):
        call(key)


class VolcacheClient(Threaded):
    """Ours."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._client = Client(target.url, timeout=30.0, connections_max=MANY)

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        return self._client.get(key)

    def put(self, key: str) -> None:
        """Store the value."""
        self._client.set(key, VALUE)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class StandardLibrary(Threaded):
    """http.client with a connection for each thread."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._local = local()

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        return self._ask("GET", key, None)

    def put(self, key: str) -> None:
        """Store the value."""
        self._ask("PUT", key, VALUE)

    def _ask(self, method: str, key: str, body: bytes | None) -> bytes:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(IP, self.target.http_port)
            self._local.connection = connection
        connection.request(method, f"/{key}", body)
        with connection.getresponse() as response:
            check_status(response.status)
            received: bytes = response.read()
            return received

    def close(self) -> None:
        """Close the connection of this thread; those of others ended with them."""
        if hasattr(self._local, "connection"):
            self._local.connection.close()


class Urllib3(Threaded):
    """urllib3 with one pool."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._pool = urllib3.HTTPConnectionPool(IP, target.http_port, maxsize=MANY)

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        response = self._pool.urlopen("GET", f"/{key}", retries=False)
        check_status(response.status)
        return response.data

    def put(self, key: str) -> None:
        """Store the value."""
        response = self._pool.urlopen("PUT", f"/{key}", VALUE, retries=False)
        check_status(response.status)

    def close(self) -> None:
        """Close its connections."""
        self._pool.close()


class Requests(Threaded):
    """requests with one session, whose pool has enough connections."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._session = requests.Session()
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=MANY)
        self._session.mount("http://", adapter)

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        response = self._session.get(f"{self.target.url}/{key}", timeout=30)
        check_status(response.status_code)
        return response.content

    def put(self, key: str) -> None:
        """Store the value."""
        url = f"{self.target.url}/{key}"
        check_status(self._session.put(url, VALUE, timeout=30).status_code)

    def close(self) -> None:
        """Close its connections."""
        self._session.close()


class Httpx(Threaded):
    """httpx with one client."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._client = httpx.Client(timeout=30, limits=HTTPX_LIMITS)

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        response = self._client.get(f"{self.target.url}/{key}")
        check_status(response.status_code)
        received: bytes = response.content
        return received

    def put(self, key: str) -> None:
        """Store the value."""
        response = self._client.put(f"{self.target.url}/{key}", content=VALUE)
        check_status(response.status_code)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class Pymemcache(Threaded):
    """pymemcache's pooled client; a set waits for its answer."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._client = PooledClient(
            (IP, self.port(target)), no_delay=True, max_pool_size=MANY
        )

    def port(self, target: Target) -> int:
        """Return the port of the server."""
        return target.memcached_port

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        found: bytes | None = self._client.get(key)
        return found

    def put(self, key: str) -> None:
        """Store the value."""
        self._client.set(key, VALUE, noreply=False)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class PymemcacheToVolcache(Pymemcache):
    """The same with our server."""

    def port(self, target: Target) -> int:
        """Return the port of the server."""
        return target.memcache_port


class Diskcache(Threaded):
    """diskcache's `Cache`: no server, no network."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._cache = diskcache.Cache(str(target.folder / "diskcache"))

    def get(self, key: str) -> bytes | None:
        """Return a value."""
        found: bytes | None = self._cache.get(key)
        return found

    def put(self, key: str) -> None:
        """Store the value."""
        self._cache.set(key, VALUE)

    def close(self) -> None:
        """Close it."""
        self._cache.close()


# --- Tasks ------------------------------------------------------------------------------


class Asynchronous(Candidate):
    """A client whose calls are awaited, with an event loop of its own."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._runner = asyncio.Runner()
        self._runner.run(self.open())

    @abstractmethod
    async def open(self) -> None:
        """Make the client."""

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """Return a value."""

    @abstractmethod
    async def put(self, key: str) -> None:
        """Store the value."""

    @abstractmethod
    async def end(self) -> None:
        """Close its connections."""

    def measure(
        self, operation: str, count: int, seconds: float
    ) -> tuple[Calls, float, float]:
        """Use as many tasks."""
        return self._runner.run(self._measure(operation, count, seconds))

    async def _measure(
        self, operation: str, count: int, seconds: float
    ) -> tuple[Calls, float, float]:
        call = self.put if operation == "put" else self._checked_get

        async def repeat(end: float) -> Calls:
            found = []
            now = time.perf_counter()
            for key in keys():
                await call(key)
                before, now = now, time.perf_counter()
                found.append(now - before)
                if now >= end:
                    break
            return found

        await asyncio.gather(*(repeat(0) for _ in range(count)))  # Opens connections.
        cpu, began = time.process_time(), time.perf_counter()
        ends = [repeat(began + seconds) for _ in range(count)]
        found: list[Calls] = await asyncio.gather(*ends)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        return [call for calls in found for call in calls], took, used

    def fill(self) -> None:
        """Put each key once."""
        self._runner.run(self._fill())

    async def _fill(self) -> None:
        for key in islice(keys(), KEYS):
            await self.put(key)

    async def _checked_get(self, key: str) -> None:
        check(await self.get(key))

    def close(self) -> None:
        """Close its connections and the loop."""
        self._runner.run(self.end())
        self._runner.close()


class VolcacheAsync(Asynchronous):
    """Ours."""

    async def open(self) -> None:
        """Make the client."""
        self._client = AsyncClient(self.target.url, timeout=30.0, connections_max=MANY)

    async def get(self, key: str) -> bytes | None:
        """Return a value."""
        return await self._client.get(key)

    async def put(self, key: str) -> None:
        """Store the value."""
        await self._client.set(key, VALUE)

    async def end(self) -> None:
        """Close its connections."""
        await self._client.close()


class Aiohttp(Asynchronous):
    """aiohttp with one session."""

    async def open(self) -> None:
        """Make the client."""
        self._session = aiohttp.ClientSession()

    async def get(self, key: str) -> bytes | None:
        """Return a value."""
        async with self._session.get(f"{self.target.url}/{key}") as response:
            check_status(response.status)
            found: bytes = await response.read()
            return found

    async def put(self, key: str) -> None:
        """Store the value."""
        url = f"{self.target.url}/{key}"
        async with self._session.put(url, data=VALUE) as response:
            check_status(response.status)

    async def end(self) -> None:
        """Close its connections."""
        await self._session.close()


class HttpxAsync(Asynchronous):
    """httpx with one client."""

    async def open(self) -> None:
        """Make the client."""
        self._client = httpx.AsyncClient(timeout=30, limits=HTTPX_LIMITS)

    async def get(self, key: str) -> bytes | None:
        """Return a value."""
        response = await self._client.get(f"{self.target.url}/{key}")
        check_status(response.status_code)
        received: bytes = response.content
        return received

    async def put(self, key: str) -> None:
        """Store the value."""
        response = await self._client.put(f"{self.target.url}/{key}", content=VALUE)
        check_status(response.status_code)

    async def end(self) -> None:
        """Close its connections."""
        await self._client.aclose()


class Emcache(Asynchronous):
    """emcache; a set waits for its answer."""

    server: ClassVar = "memcached_port"

    async def open(self) -> None:
        """Make the client."""
        address = emcache.MemcachedHostAddress(IP, getattr(self.target, self.server))
        self._client = await emcache.create_client(
            [address],
            max_connections=MANY,
            timeout=30.0,
            # The loop stands still between turns.
            connection_timeout=None,
            purge_unused_connections_after=None,
        )

    async def get(self, key: str) -> bytes | None:
        """Return a value."""
        item = await self._client.get(key.encode())
        return None if item is None else item.value

    async def put(self, key: str) -> None:
        """Store the value."""
        await self._client.set(key.encode(), VALUE)

    async def end(self) -> None:
        """Close its connections."""
        await self._client.close()


class EmcacheToVolcache(Emcache):
    """The same with our server."""

    server: ClassVar = "memcache_port"


class Aiomcache(Asynchronous):
    """aiomcache; a set waits for its answer."""

    server: ClassVar = "memcached_port"

    async def open(self) -> None:
        """Make the client."""
        port = getattr(self.target, self.server)
        self._client: Any = aiomcache.Client(IP, port, pool_size=MANY)

    async def get(self, key: str) -> bytes | None:
        """Return a value."""
        found: bytes | None = await self._client.get(key.encode())
        return found

    async def put(self, key: str) -> None:
        """Store the value."""
        await self._client.set(key.encode(), VALUE)

    async def end(self) -> None:
        """Close its connections."""
        await self._client.close()


class AiomcacheToVolcache(Aiomcache):
    """The same with our server."""

    server: ClassVar = "memcache_port"


CANDIDATES: Final[dict[str, Callable[[Target], Candidate]]] = {
    REFERENCE: VolcacheClient,
    "http.client": StandardLibrary,
    "urllib3": Urllib3,
    "requests": Requests,
    "httpx": Httpx,
    "volcache AsyncClient": VolcacheAsync,
    "aiohttp": Aiohttp,
    "httpx, asynchronous": HttpxAsync,
    "pymemcache, volcache": PymemcacheToVolcache,
    "pymemcache, memcached": Pymemcache,
    "emcache, volcache": EmcacheToVolcache,
    "emcache, memcached": Emcache,
    "aiomcache, volcache": AiomcacheToVolcache,
    "aiomcache, memcached": Aiomcache,
    "diskcache, in process": Diskcache,
}


# --- Measuring --------------------------------------------------------------------------


def take_turn(candidate: Candidate, operation: str, count: int, seconds: float) -> Turn:
    """Measure one client once."""
    gc.collect()
    calls, took, cpu = candidate.measure(operation, count, seconds)
    calls.sort()
    return Turn(
        cpu * MICROSECONDS / len(calls),
        calls[len(calls) // 2] * MICROSECONDS,
        calls[len(calls) * 99 // 100] * MICROSECONDS,
        len(calls) / took,
    )


def started(work: Path, stack: ExitStack) -> Target:
    """Start the servers."""
    port = pick_port(IP)
    settings = {
        "mount_point": work / "data",
        "volume_size": 64 * MIB,
        "volume_num": 32,
        "memcache_listen": f"{IP}:{port}",
    }
    ours = stack.enter_context(volcache(settings))
    other = stack.enter_context(memcached(256))
    return Target(ours.port, port, other.port, work)


def rows(found: dict[str, list[Turn]], *, with_rate: bool) -> Iterator[list[str]]:
    """Yield the row of each client: medians, and CPU next to the reference."""
    for name, taken in found.items():
        ratios = [
            turn.cpu / reference.cpu
            for turn, reference in zip(taken, found[REFERENCE], strict=True)
        ]
        figures = [median(turn.cpu for turn in taken), min(turn.cpu for turn in taken)]
        figures.append(median(turn.p50 for turn in taken))
        if with_rate:
            figures.append(median(turn.p99 for turn in taken))
            figures.append(median(turn.rate for turn in taken))
        yield [name, *(f"{f:,.0f}" for f in figures), f"{median(ratios):.2f}"]


def report(found: dict[tuple[str, int, str], list[Turn]]) -> str:
    """Return the tables."""
    parts = []
    for count in (1, MANY):
        for operation in ("get", "put"):
            what = "one thread or task" if count == 1 else f"{count} threads or tasks"
            heads = [f"{operation}, {what}", "CPU µs", "least", "p50 µs"]
            if count > 1:
                heads += ["p99 µs", f"{operation}s/s"]
            heads.append("CPU: this ÷ Client")
            chosen = {
                name: turns
                for (other, number, name), turns in found.items()
                if (other, number) == (operation, count)
            }
            parts.append(table(heads, rows(chosen, with_rate=count > 1)))
    return "\n\n".join(parts)


def profile(candidate: Candidate) -> None:
    """Print where the time of gets goes."""
    candidate.fill()
    profiler = cProfile.Profile()
    profiler.enable()
    candidate.measure("get", 1, 2.0)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn (0.5)")
    parser.add_argument("--profile", choices=CANDIDATES, help="of one client, only")
    parser.add_argument(
        "--only",
        action="append",
        choices=CANDIDATES,
        help="with the reference; repeatable",
    )
    options = parser.parse_args()
    with measuring(options.directory) as (stack, work):
        print(bullets({name: version(name) for name in LIBRARIES}, []), flush=True)
        target = started(work, stack)
        chosen = [REFERENCE, *(options.only or CANDIDATES)]
        names = [options.profile] if options.profile else list(dict.fromkeys(chosen))
        opened = {name: CANDIDATES[name](target) for name in names}
        for candidate in opened.values():
            stack.callback(candidate.close)
        if options.profile:
            profile(opened[options.profile])
            return
        found: dict[tuple[str, int, str], list[Turn]] = {}
        for candidate in opened.values():
            candidate.fill()
        for _, name in turns(names, options.rounds):
            for count in (1, MANY):
                for operation in ("put", "get"):
                    turn = take_turn(opened[name], operation, count, options.seconds)
                    found.setdefault((operation, count, name), []).append(turn)
        print("\n" + report(found))


if __name__ == "__main__":
    main()
