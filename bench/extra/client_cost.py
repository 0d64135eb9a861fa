"""
Clients of Python: CPU of a get of 1 KiB alone, of 32 at once, of 2,000 in a call.

Each client has turns in the same rounds. CPU is that of the process of the client, all
threads, divided by the values; the servers run in processes of their own. Each value is
compared with the length of what was put. `--profile` prints where the time of one client
goes instead.

    .venv/bin/pip install -r bench/requirements.txt
    .venv/bin/python -m bench.extra.client_cost [--rounds 5] [--seconds 0.5]
    .venv/bin/python -m bench.extra.client_cost --profile "Client"
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
from importlib.metadata import version
from inspect import isawaitable
from statistics import median
from threading import Thread, local
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import aiomcache
import diskcache
import emcache
import redis
import requests
import urllib3
from pymemcache.client.base import PooledClient  # noqa: TID251 - Measured.

from bench.extra.script import ScriptError, make_parser, measuring
from bench.load import turns
from bench.machine import MIB
from bench.report import bullets, table
from bench.servers import IP, volcache
from bench.servers import redis as redis_server
from support.ports import pick_port
from volcache_client import AsyncClient, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

VALUE: Final = os.urandom(1024)
KEYS: Final = [f"bench/{number:06}" for number in range(2000)]
MANY: Final = 32
MICROSECONDS: Final = 1e6
LIBRARIES: Final = (
    "pymemcache", "emcache", "aiomcache", "redis", "urllib3", "requests", "aiohttp",
    "diskcache",
)  # fmt: skip
MEASURES: Final = ("one", f"{MANY} at once", "many in a call")


class Target(NamedTuple):
    """Where the clients find their servers."""

    http: int
    memcache: int  # Of the same server.
    redis: int
    folder: Path

    @property
    def url(self) -> str:
        """The address of HTTP."""
        return f"http://{IP}:{self.http}"


class Calls(NamedTuple):
    """
    A client in its usual form; what the functions return is awaited if it can be.

    Attributes:
        get: Returns the value of a key.
        get_many: Returns what has the values of many keys as its values; None: not there.
        close: Closes the connections.
    """

    get: Callable[[str], Any]
    get_many: Callable[[list[str]], Any] | None
    close: Callable[[], Any]


# --- The clients ------------------------------------------------------------------------


def _ours(target: Target, **options: Any) -> Calls:
    kind: Any = AsyncClient if "batch" in options else Client
    client = kind(target.url, timeout=30.0, connections_max=MANY, **options)
    return Calls(client.get, client.get_many, client.close)


def _pymemcache(target: Target) -> Calls:
    client = PooledClient((IP, target.memcache), no_delay=True, max_pool_size=MANY)
    return Calls(client.get, client.get_many, client.close)


async def _emcache(target: Target, *, autobatching: bool) -> Calls:
    client = await emcache.create_client(
        [emcache.MemcachedHostAddress(IP, target.memcache)],
        max_connections=MANY,
        timeout=30.0,
        # The loop stands still between turns.
        connection_timeout=None,
        purge_unused_connections_after=None,
        autobatching=autobatching,
    )

    async def get(key: str) -> bytes:
        item = await client.get(key.encode())
        assert item is not None  # noqa: S101 - It was put.
        return item.value

    async def get_many(keys: list[str]) -> dict[bytes, bytes]:
        found = await client.get_many([key.encode() for key in keys])
        return {key: item.value for key, item in found.items()}

    return Calls(get, get_many, client.close)


def _aiomcache(target: Target) -> Calls:
    client = aiomcache.Client(IP, target.memcache, pool_size=MANY)

    async def get_many(keys: list[str]) -> dict[str, Any]:
        found = await client.multi_get(*(key.encode() for key in keys))
        return dict(zip(keys, found, strict=True))

    return Calls(lambda key: client.get(key.encode()), get_many, client.close)


def _redis(target: Target, module: Any = redis) -> Calls:
    client = module.Redis(host=IP, port=target.redis, max_connections=MANY)

    async def get_many(keys: list[str]) -> dict[str, bytes]:
        found = client.mget(keys)
        found = await found if isawaitable(found) else found
        return dict(zip(keys, found, strict=True))

    def get_many_now(keys: list[str]) -> dict[str, bytes]:
        return dict(zip(keys, client.mget(keys), strict=True))

    is_async = module is not redis
    close = client.aclose if is_async else client.close
    return Calls(client.get, get_many if is_async else get_many_now, close)


def _http_client(target: Target) -> Calls:
    own = local()

    def get(key: str) -> bytes:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(IP, target.http)
        own.connection.request("GET", f"/{key}")
        with own.connection.getresponse() as response:
            return response.read()  # type: ignore[no-any-return]

    return Calls(get, None, lambda: None)


def _urllib3(target: Target) -> Calls:
    pool = urllib3.HTTPConnectionPool(IP, target.http, maxsize=MANY)
    return Calls(lambda key: pool.request("GET", f"/{key}").data, None, pool.close)


def _requests(target: Target) -> Calls:
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=MANY))
    return Calls(
        lambda key: session.get(f"{target.url}/{key}").content, None, session.close
    )


async def _aiohttp(target: Target) -> Calls:
    session = aiohttp.ClientSession()

    async def get(key: str) -> bytes:
        async with session.get(f"{target.url}/{key}") as response:
            body: bytes = await response.read()
            return body

    return Calls(get, None, session.close)


def _diskcache(target: Target) -> Calls:
    cache = diskcache.Cache(str(target.folder / "diskcache"))
    for key in KEYS:
        cache.set(key, VALUE)
    return Calls(cache.get, None, cache.close)


# By name: what makes it, and which one it is compared with.
THREADS: Final[dict[str, Callable[[Target], Any]]] = {
    "Client": _ours,
    "pymemcache": _pymemcache,
    "redis-py": _redis,
    "http.client": _http_client,
    "urllib3": _urllib3,
    "requests": _requests,
    "diskcache, in process": _diskcache,
}
TASKS: Final[dict[str, Callable[[Target], Any]]] = {
    "AsyncClient": lambda target: _ours(target, batch=False),
    "AsyncClient, batch": lambda target: _ours(target, batch=True),
    "emcache": lambda target: _emcache(target, autobatching=False),
    "emcache, autobatching": lambda target: _emcache(target, autobatching=True),
    "aiomcache": _aiomcache,
    "redis-py, asyncio": lambda target: _redis(target, redis.asyncio),
    "aiohttp": _aiohttp,
}
REFERENCES: Final = {
    **dict.fromkeys(THREADS, "pymemcache"),
    **dict.fromkeys(TASKS, "emcache"),
    "AsyncClient, batch": "emcache, autobatching",
}


# --- Measuring --------------------------------------------------------------------------


def _check(value: bytes | None) -> None:
    if value is None or len(value) != len(VALUE):
        raise ScriptError("a get did not return what was put")


class Candidate:
    """A client, with an event loop of its own if it is one for tasks."""

    def __init__(self, name: str, target: Target) -> None:
        """Make the client."""
        self._runner = asyncio.Runner() if name in TASKS else None
        made = {**THREADS, **TASKS}[name]
        self._calls: Calls = self._run(made, target)

    def _run(self, function: Callable[..., Any], *arguments: object) -> Any:
        if self._runner is None:
            return function(*arguments)

        async def call() -> Any:
            found = function(*arguments)
            return await found if isawaitable(found) else found

        return self._runner.run(call())

    def measure(self, name: str, seconds: float) -> float | None:
        """Return the CPU of a value, microseconds; None: the client has no such call."""
        if name == MEASURES[2] and self._calls.get_many is None:
            return None
        count = MANY if name == MEASURES[1] else 1
        act = self._at_once if name == MEASURES[2] else self._one_by_one
        self._take(act, count, 0.02)  # Opens the connections.
        gc.collect()
        began = time.process_time()
        values = self._take(act, count, seconds)
        return (time.process_time() - began) * MICROSECONDS / values

    def _take(self, act: Callable[..., Any], count: int, seconds: float) -> int:
        """Act by so many threads or tasks; return how many values there were."""
        until = time.perf_counter() + seconds
        if self._runner is not None:

            async def together() -> Any:
                return await asyncio.gather(*(act(until) for _ in range(count)))

            return sum(self._runner.run(together()))
        if count == 1:
            return _ended(act(until))
        found: list[int] = []
        work = [
            Thread(target=lambda: found.append(_ended(act(until))))
            for _ in range(count)
        ]
        for one in work:
            one.start()
        for one in work:
            one.join()
        if len(found) < count:
            raise ScriptError("a thread failed")
        return sum(found)

    async def _one_by_one(self, until: float) -> int:
        get, is_async = self._calls.get, self._runner is not None
        keys = random.sample(KEYS, len(KEYS))
        count = 0
        while time.perf_counter() < until:
            value = get(keys[count % len(keys)])
            _check(await value if is_async else value)
            count += 1
        return count

    async def _at_once(self, until: float) -> int:
        get_many = self._calls.get_many
        assert get_many is not None  # noqa: S101 - Asked before.
        count = 0
        while time.perf_counter() < until or not count:
            found = get_many(KEYS)
            values = (await found if isawaitable(found) else found).values()
            for value in values:
                _check(value)
            count += len(values)
        return count

    def close(self) -> None:
        """Close its connections and the loop."""
        self._run(self._calls.close)
        if self._runner is not None:
            self._runner.close()


def _ended(coroutine: Any) -> int:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return int(stop.value)
    raise ScriptError("it has waited for a loop")


def _started(work: Path, stack: ExitStack) -> Target:
    """Start the servers, and put each key."""
    settings = {
        "mount_point": work / "data",
        "volume_size": 64 * MIB,
        "volume_num": 32,
        "memcache_listen": f"{IP}:{(port := pick_port(IP))}",
    }
    ours = stack.enter_context(volcache(settings))
    other = stack.enter_context(redis_server())
    with Client(f"{IP}:{ours.port}") as client:
        client.set_many(dict.fromkeys(KEYS, VALUE))
    with redis.Redis(host=IP, port=other.port) as filled:
        filled.mset(dict.fromkeys(KEYS, VALUE))
    return Target(ours.port, port, other.port, work)


Found = dict[str, list[tuple[float | None, ...]]]


def _rows(found: Found) -> Iterator[list[str]]:
    """Yield the row of each client: medians, and those of the ratios of each round."""
    for name, taken in found.items():
        row = [name, REFERENCES[name]]
        for index in range(len(MEASURES)):
            pairs = [
                (mine[index], other[index])
                for mine, other in zip(taken, found[REFERENCES[name]], strict=True)
            ]
            known = [(a, a / b) for a, b in pairs if a is not None and b is not None]
            cpu, ratio = [*zip(*known, strict=True)] or [(), ()]
            row += [f"{median(cpu):.1f}", f"{median(ratio):.2f}"] if known else ["", ""]
        yield row


def main() -> None:
    """Measure and print."""
    names = [*THREADS, *TASKS]
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn (0.5)")
    parser.add_argument("--profile", choices=names, help="of one client, only")
    parser.add_argument("--measure", choices=MEASURES, default="one", help="for it")
    parser.add_argument("--only", action="append", choices=names, help="repeatable")
    options = parser.parse_args()
    with measuring(options.directory) as (stack, work):
        print(bullets({name: version(name) for name in LIBRARIES}, []), flush=True)
        target = _started(work, stack)
        chosen = [options.profile] if options.profile else options.only or names
        chosen = [
            one for one in names if one in {*chosen, *map(REFERENCES.get, chosen)}
        ]
        opened = {name: Candidate(name, target) for name in chosen}
        for candidate in opened.values():
            stack.callback(candidate.close)
        if options.profile:
            with cProfile.Profile() as profiler:
                opened[options.profile].measure(options.measure, 2.0)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
            return
        found: Found = {}
        for _, name in turns(list(opened), options.rounds):
            taken = [opened[name].measure(one, options.seconds) for one in MEASURES]
            found.setdefault(name, []).append(tuple(taken))
        heads = ["CPU µs of a value", "compared with"]
        for name in MEASURES:
            heads += [name, "ratio"]
        print("\n" + table(heads, _rows(found)))


if __name__ == "__main__":
    main()
