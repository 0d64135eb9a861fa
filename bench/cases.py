"""
Workloads with steps of their own, by name; `make bench ONLY=NAME` measures one.

Each is given a folder that it makes and a stack that ends its servers, and yields results
as those of workloads.toml.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import requests

from bench.load import (
    Load,
    cpu_figures,
    measure_once,
    run_figures,
    start_load,
    turns,
)
from bench.machine import MIB, drop_pages, pin, usage
from bench.report import Result
from bench.servers import PROMOTING_FEW, Contenders, Dataset, promote
from bench.workloads import KIB, dataset
from volcache_client.ring import HashRing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from bench.load import Figures, Kind, Protocol, Rounds
    from bench.servers import Contender
    from bench.workloads import Scale

    Case = Callable[[ExitStack, Path, Scale], Iterator[Result]]

PROMOTED: Final = Dataset(count=50, value_bytes=KIB)
PROMOTED_RATE: Final = 100
HOT: Final = Dataset(count=500, value_bytes=KIB)
HOT_CONNECTIONS: Final = 4
COLD_CONNECTIONS: Final = 64
COLD_RATE: Final = 20_000
HTTP_RATE: Final = 1000
SCRUB_RATES: Final = (0, 10, 100)  # MB/s
SCRUBBED_BYTES: Final = 10_000
SCRAPED: Final = {"100 volumes": 100, "1,000 volumes": 1000}
SCRAPED_PATHS: Final = ("/-/metrics", "/-/stats?volumes=0", "/-/stats")


def in_turns(
    names: Iterable[str], scale: Scale, measure: Callable[[str], Figures]
) -> Rounds:
    """Measure in turns."""
    found: Rounds = {name: [] for name in names}
    for _, name in turns(list(found), scale.rounds):
        found[name].append(measure(name))
    return found


def memcached_hangs(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """
    Measure GETs of other keys while memcached hangs.

    It is stopped by a signal: it still accepts connections, but does not answer.
    Meanwhile 100 GETs a second ask for promoted keys.
    """
    contenders = Contenders(stack, work, dataset("small", scale))
    running = {
        "memcached hangs": contenders.with_memcached("hangs", PROMOTING_FEW),
        "no memcached": contenders.get("volcache"),
    }
    promote(running["memcached hangs"], PROMOTED)
    load = Load(
        kind="get",
        dataset=contenders.dataset,
        first=PROMOTED.count,
        seconds=scale.seconds,
    )
    trickle = Load(
        kind="get", dataset=PROMOTED, seconds=scale.seconds, rate=PROMOTED_RATE
    )

    def measure(name: str) -> Figures:
        contender = running[name]
        for tier in contender.behind:
            tier.send_signal(signal.SIGSTOP)
            # Whatever happens, it must end with the others.
            stack.callback(tier.send_signal, signal.SIGCONT)
        asked = start_load(trickle, contender)
        found = measure_once(load, replace(contender, behind=()))
        late = asked.result().max
        for tier in contender.behind:
            tier.send_signal(signal.SIGCONT)
        return {**found, "late": late}

    yield Result(
        name="memcached-hangs",
        text="GET of 1 KiB, other keys, while memcached hangs",
        rounds=in_turns(running, scale, measure),
    )


def cold(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """
    Measure GETs of 500 keys in memory beside others that read from the disk.

    4 connections ask for those in memory, alone, and while 64 others are answered as fast
    as possible or 20,000 times a second. No process is pinned.
    """
    stored = replace(dataset("small", scale), count=25 * scale.keys)
    contenders = Contenders(stack, work, stored)
    contender = contenders.get("volcache")
    pin(contender.pids, None)
    seconds = scale.seconds
    hot = Load(kind="get", dataset=HOT, connections=HOT_CONNECTIONS, seconds=seconds)
    reads = replace(hot, kind="sequential", sample=HOT.count)
    flood = Load(
        kind="get",
        dataset=stored,
        first=HOT.count,
        connections=COLD_CONNECTIONS,
        seconds=seconds,
    )
    seeds = iter(range(1, 1000))

    def measure(name: str) -> Figures:
        drop_pages(work)
        start_load(reads, contender, core=None).result()
        before = usage(contender.pids)
        beside = []
        if name != "alone":
            load = replace(flood, rate=COLD_RATE if name == "20,000/s" else 0)
            beside.append(start_load(load, contender, next(seeds), core=None))
        run = start_load(hot, contender, core=None).result()
        ended = [one.result() for one in beside]
        answers = run.requests + sum(one.requests for one in ended)
        found = run_figures(run)
        found |= cpu_figures(answers, usage(contender.pids) - before)
        return found | {"cold_rate": sum(one.rate for one in ended)}

    rounds = in_turns(("flood", "20,000/s", "alone"), scale, measure)
    text = "GET of 1 KiB in memory, beside GETs from the disk,"
    for name, kind, more in (
        ("cold-flood", "flood", "as many as are answered"),
        ("cold-rate", "20,000/s", "20,000 a second"),
    ):
        found = {kind: rounds[kind], "alone": rounds["alone"]}
        yield Result(name=name, text=f"{text} {more}", rounds=found)


def two_clients(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """
    Measure whether HTTP and the memcached protocol wait for each other.

    Each alone with the server on one core, and both on two; then HTTP, 1,000 requests a
    second, while the memcached protocol is loaded.
    """
    stored = dataset("small", scale)
    contender = Contenders(stack, work, stored).get("volcache")
    protocols: tuple[Protocol, ...] = ("http", "text")
    loads = [
        Load(kind="get", dataset=stored, seconds=scale.seconds, protocol=protocol)
        for protocol in protocols
    ]

    def rate(loads: Iterable[Load], core: int | None) -> float:
        pin(contender.pids, core)
        begun = [start_load(load, contender, core=core) for load in loads]
        return sum(one.result().rate for one in begun)

    def measure(name: str) -> Figures:
        if name == "both":
            return {"rate": rate(loads, None)}
        return {"rate": sum(rate([load], 0) for load in loads) / len(loads)}

    yield Result(
        name="two-clients",
        text="GET of 1 KiB, by HTTP and the text protocol at once",
        rounds=in_turns(("both", "one alone"), scale, measure),
    )
    pin(contender.pids, None)
    yield from _beside_memcache(contender, loads[1], scale)


def _beside_memcache(
    contender: Contender, base: Load, scale: Scale
) -> Iterator[Result]:
    verbs: tuple[Kind, ...] = ("get", "put")
    loads = {
        f"{kind} x{depth}": replace(base, kind=kind, depth=depth)
        for kind in verbs
        for depth in (1, 32)
    }
    for kind in verbs:
        asked = Load(
            kind=kind,
            dataset=HOT,
            seconds=scale.seconds,
            connections=1,
            rate=HTTP_RATE,
        )

        def measure(name: str, asked: Load = asked) -> Figures:
            load = loads.get(name)
            begun = start_load(load, contender, core=None) if load else None
            found = start_load(asked, contender, core=None).result()
            if begun:
                begun.result()
            return run_figures(found)

        yield Result(
            name=f"http-{kind}-beside-memcache",
            text=f"{kind.upper()} of 1 KiB by one client, 1,000 a second,"
            " while the memcached protocol is loaded",
            rounds=in_turns(("none", *loads), scale, measure),
        )


def scrub(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """
    Measure what the scrub costs requests, at several rates.

    All instances have the same values, of which the requests read a part that is in
    memory: the disk is read by the scrub only. An instance that is not measured is stopped.
    """
    stored = Dataset(
        count=2 * scale.keys,
        value_bytes=SCRUBBED_BYTES,
        volume_size=16 * MIB,
        volume_num=64,
    )
    contenders = Contenders(stack, work, stored)
    running = {}
    for rate in SCRUB_RATES:
        settings = {"scrub_rate": rate * 1_000_000, "sync_mode": "none"}
        found = contenders.volcache(f"{rate} MB/s", more=settings)
        found.server.send_signal(signal.SIGSTOP)
        # A stopped process does not end.
        stack.callback(found.server.send_signal, signal.SIGCONT)
        running[f"{rate} MB/s"] = found
    part = replace(stored, count=stored.count // 10)
    kinds: tuple[Kind, ...] = ("get", "put")
    for kind in kinds:
        load = Load(kind=kind, dataset=part, seconds=scale.seconds)

        def measure(name: str, load: Load = load) -> Figures:
            running[name].server.send_signal(signal.SIGCONT)
            figures = measure_once(load, running[name])
            running[name].server.send_signal(signal.SIGSTOP)
            return figures

        yield Result(
            name=f"scrub-{kind}",
            text=f"{kind.upper()} of 10 kB in memory, while a scrub reads the disk",
            rounds=in_turns(running, scale, measure),
        )


def scrape(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """Measure one client that asks for metrics, by the number of volumes, all written."""
    work.mkdir()
    running = {}
    for name, volumes in SCRAPED.items():
        stored = Dataset(
            count=volumes + 2,
            value_bytes=600 * KIB,
            volume_size=MIB,
            volume_num=volumes,
        )
        contenders = Contenders(stack, work / str(volumes), stored)
        for series in (False, True):
            settings = {"max_value_size": 700 * KIB, "metrics_volumes": series}
            found = contenders.volcache(f"series {series}", more=settings)
            running[name + (", metrics_volumes" if series else "")] = found
    for path in SCRAPED_PATHS:
        load = Load(
            kind="get",
            dataset=HOT,
            seconds=scale.seconds,
            connections=1,
            tool="wrk",
            path=path,
        )

        def measure(name: str, load: Load = load) -> Figures:
            return measure_once(load, running[name])

        yield Result(
            name=f"scrape {path}",
            text=f"GET {path} by one client",
            rounds=in_turns(running, scale, measure),
        )


def ring(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """Measure GETs of an instance that knows which keys are its own, one in 40."""
    nodes = [f"10.0.0.{n}:1234" for n in range(40)]
    stored = replace(dataset("small", scale), is_stored=False)
    contenders = Contenders(stack, work, stored)
    owner = HashRing([(node, 10) for node in nodes]).node
    paths = [f"/{key}" for key in stored.keys if owner(key) == nodes[0]]
    own, listed = work / "own", work / "list"
    own.write_text("\n".join(paths))
    listed.write_text("".join(f"server {node} weight=10;\n" for node in nodes))
    settings = {"ring": listed, "ring_self": nodes[0]}
    running = {
        "ring of 40": contenders.volcache("ring", more=settings),
        "without": contenders.get("volcache"),
    }
    for contender in running.values():
        for path in paths:
            done = requests.put(contender.server.url + path, stored.value, timeout=10)
            done.raise_for_status()
    load = Load(
        kind="get", dataset=stored, seconds=scale.seconds, tool="wrk", path=str(own)
    )
    yield Result(
        name="ring",
        text="GET of 1 KiB, keys of one of 40 instances",
        rounds=in_turns(running, scale, lambda name: measure_once(load, running[name])),
    )


CASES: Final[dict[str, Case]] = {
    "memcached-hangs": memcached_hangs,
    "cold": cold,
    "two-clients": two_clients,
    "scrub": scrub,
    "scrape": scrape,
    "ring": ring,
}
