"""
What requests cost that need no interpreter, next to what they are to cost.

Measures the workloads of `make bench` that the goals name, and these:

- GETs of other keys while memcached hangs. It is stopped by a signal: it still accepts
  connections, but does not answer. Meanwhile 100 GETs a second ask for promoted keys.
- GETs of 500 keys in memory by 4 connections, alone, and while 64 others read from the
  disk, as fast as they are answered or 20,000 times a second. No process is pinned.
- One client of HTTP and one of the memcached protocol, each alone with the server on one
  core, and both on two.
- HTTP, 1,000 requests a second, while the memcached protocol is loaded.

    .venv/bin/python -m bench.extra.data_plane [--brief] [--only NAMES] [--rounds N]
"""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from bench.extra.script import make_parser, measuring
from bench.load import (
    Load,
    Protocol,
    cpu_figures,
    measure_once,
    run_figures,
    start_load,
    turns,
)
from bench.machine import MIB, describe, drop_pages, pin, usage
from bench.report import Result, Spread, overview, section, table
from bench.run import measure_all
from bench.servers import (
    FLOOR,
    PROMOTING_FEW,
    Contender,
    Contenders,
    Dataset,
    promote,
    volcache,
)
from bench.workloads import FULL, WORKLOADS
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from bench.load import Figures, Rounds
    from bench.workloads import Scale, Workload

SMALL: Final = Dataset(count=40_000, value_bytes=1024)
PROMOTED: Final = replace(SMALL, count=50)
PROMOTED_RATE: Final = 100
HOT: Final = replace(SMALL, count=500)
HOT_CONNECTIONS: Final = 4
COLD_CONNECTIONS: Final = 64
COLD_RATE: Final = 20_000
COLD_VOLUME_SIZE: Final = 160 * MIB
COLD_RECORD_BYTES_MAX: Final = 1200
HTTP_RATE: Final = 1000

Measure = Literal["cpu", "own", "rate", "p99"]


@dataclass(frozen=True, slots=True)
class Goal:
    """
    What a figure is to be.

    Attributes:
        text: What is measured.
        workload: Its name.
        other: The contender that the first one is compared with; empty: its own figure.
        limit: The highest ratio or figure; the lowest of a rate.
        measure: Of the first contender.
        of: Of the other, if it is another measure.
        part: What the ratio is divided by: a ratio that was measured on its own.
    """

    text: str
    workload: str
    other: str
    limit: float
    measure: Measure = "cpu"
    of: Measure | None = None
    part: float = 1.0

    def spread(self, result: Result) -> Spread | None:
        """Return the figure that a result has."""
        if not self.other:
            return result.spread(result.subject, self.measure)
        ratios = result.ratios(self.other, self.measure, self.of or self.measure)
        return Spread.of([ratio / self.part for ratio in ratios]) if ratios else None

    @property
    def sign(self) -> Literal["≤", "≥"]:
        """How the figure is to be, compared with the limit."""
        return "≥" if self.measure == "rate" else "≤"

    def is_met(self, figure: float) -> bool:
        """Whether the figure is what it is to be."""
        is_lower = figure < self.limit
        return figure == self.limit or is_lower == (self.sign == "≤")


# What PetraCache takes, relative to memcached, and CacheFS for 64 KiB, relative to
# `limit.c`: neither is a package of Debian.
PETRA_GET: Final = 12.4 / 7.2
PETRA_SET: Final = 26.5 / 7.3
CACHE_FS: Final = 36.6 / 22.8
GOALS: Final = (
    Goal("get ÷ memcached", "memcache-read", "memcached", 1.2),
    Goal("set ÷ memcached", "memcache-write", "memcached", 1.3),
    Goal("get x16 ÷ memcached", "pipelined-read", "memcached", 0.6),
    Goal("set x16 ÷ memcached", "pipelined-write", "memcached", 2.0),
    Goal("meta get ÷ memcached", "meta-read", "memcached", 1.25),
    Goal("meta set ÷ memcached", "meta-write", "memcached", 1.35),
    Goal("get ÷ PetraCache", "memcache-read", "memcached", 0.7, part=PETRA_GET),
    Goal("set ÷ PetraCache", "memcache-write", "memcached", 0.35, part=PETRA_SET),
    Goal("PUT 1 KiB ÷ floor", "write-1k", FLOOR, 1.05),
    Goal("promoted GET ÷ GET", "hot-tier", "volcache", 2.2, "own", "cpu"),
    Goal("GET of other keys ÷ GET", "hot-tier-others", "volcache", 1.03),
    Goal(
        "GETs/s, memcached hangs ÷ none",
        "memcached-hangs",
        "no memcached",
        0.95,
        "rate",
    ),
    Goal("GET 64 KiB ÷ nginx", "read-64k", "nginx", 1.15),
    Goal("PUT 64 KiB ÷ floor", "write-64k", FLOOR, 1.6),
    Goal("hot GETs/s, cold flood ÷ alone", "cold-flood", "alone", 0.25, "rate"),
    Goal("hot GETs, cold flood: p99 ms", "cold-flood", "", 3, "p99"),
    Goal("hot GETs/s, 20,000 cold/s ÷ alone", "cold-rate", "alone", 0.5, "rate"),
    Goal("hot GETs, 20,000 cold/s: p99 ms", "cold-rate", "", 1, "p99"),
    Goal("PUT 512 KiB ÷ limit", "write-512k", "limit", 1.6),
    Goal("PUT 64 KiB ÷ CacheFS", "write-64k", "limit", 1.0, part=CACHE_FS),
    Goal("two clients ÷ one", "two-clients", "one alone", 1.7, "rate"),
)
WITHOUT_GOAL: Final = ("read-1k", "misses")


def hanging(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """Measure GETs while memcached hangs."""
    contenders = Contenders(stack, work / "hangs", replace(SMALL, count=scale.keys))
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


def in_turns(
    names: Iterable[str], scale: Scale, measure: Callable[[str], Figures]
) -> Rounds:
    """Measure in turns."""
    found: Rounds = {name: [] for name in names}
    for _, name in turns(list(found), scale.rounds):
        found[name].append(measure(name))
    return found


def with_cold_keys(stack: ExitStack, folder: Path, keys: int) -> Contender:
    """Start an instance with so many keys, on any core."""
    volumes = keys * COLD_RECORD_BYTES_MAX // COLD_VOLUME_SIZE + 3
    with closing(
        Store.open(
            str(folder),
            volume_size=COLD_VOLUME_SIZE,
            volume_num=volumes,
            sync_mode="none",
        )
    ) as store:
        for number in range(keys):
            store.put(b"k%d" % number, SMALL.value)
    settings = {"volume_size": COLD_VOLUME_SIZE, "volume_num": volumes, "log_slow": 0}
    server = volcache({"mount_point": folder, **settings})
    return Contender(server=stack.enter_context(server))


def cold(stack: ExitStack, work: Path, scale: Scale) -> Iterator[Result]:
    """Measure GETs of keys in memory beside others that read from the disk."""
    keys = 25 * scale.keys
    contender = with_cold_keys(stack, work / "cold", keys)
    seconds = scale.seconds
    hot = Load(kind="get", dataset=HOT, connections=HOT_CONNECTIONS, seconds=seconds)
    reads = replace(hot, kind="sequential", sample=HOT.count)
    flood = Load(
        kind="get",
        dataset=replace(SMALL, count=keys),
        first=HOT.count,
        connections=COLD_CONNECTIONS,
        seconds=seconds,
    )
    seeds = iter(range(1, 1000))

    def measure(name: str) -> Figures:
        drop_pages(work / "cold")
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
    """Measure whether HTTP and the memcached protocol wait for each other."""
    dataset = replace(SMALL, count=scale.keys)
    contenders = Contenders(stack, work / "clients", dataset)
    contender = contenders.get("volcache")
    protocols: tuple[Protocol, ...] = ("http", "text")
    loads = [
        Load(kind="get", dataset=dataset, seconds=scale.seconds, protocol=protocol)
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
    yield from beside_memcache(contender, dataset, scale)


def beside_memcache(
    contender: Contender, dataset: Dataset, scale: Scale
) -> Iterator[Result]:
    """Measure HTTP while the memcached protocol is loaded."""
    verbs: tuple[Literal["get", "put"], ...] = ("get", "put")
    loads = {
        f"{kind} x{depth}": Load(
            kind=kind,
            dataset=dataset,
            seconds=scale.seconds,
            protocol="text",
            depth=depth,
        )
        for kind in verbs
        for depth in (1, 32)
    }
    for kind in verbs:
        asked = Load(
            kind=kind,
            dataset=replace(dataset, count=HOT.count),
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


OTHERS: Final = {
    "memcached-hangs": hanging,
    "cold": cold,
    "two-clients": two_clients,
}


def chosen(names: set[str], *, is_brief: bool) -> Iterator[Workload]:
    """Yield workloads, all contenders of each or those that a goal names."""
    wanted = {goal.workload for goal in GOALS} | set(WITHOUT_GOAL)
    for workload in WORKLOADS:
        named = {goal.other for goal in GOALS if goal.workload == workload.name}
        if workload.name in (names or wanted):
            subject, *others = workload.contenders
            kept = [name for name in others if name in named or not is_brief]
            yield replace(workload, contenders=(subject, *kept))


def measured(
    names: set[str], scale: Scale, work: Path, *, is_brief: bool
) -> Iterator[Result]:
    """Measure what is named; nothing means everything."""
    workloads = list(chosen(names, is_brief=is_brief))
    if workloads:
        yield from measure_all(workloads, scale, work)
    for name, measure in OTHERS.items():
        if not names or name in names:
            with ExitStack() as stack:
                yield from measure(stack, work, scale)


def goal_rows(results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """Yield the goals whose workload was measured."""
    found = {result.name: result for result in results if not result.error}
    for goal in GOALS:
        spread = goal.spread(found[goal.workload]) if goal.workload in found else None
        if spread:
            yield {
                "what": goal.text,
                "workload": goal.workload,
                "figure": spread.median,
                "range": [spread.low, spread.high],
                "goal": f"{goal.sign} {goal.limit:g}",
                "is_met": goal.is_met(spread.median),
            }


def goal_table(rows: Iterable[dict[str, Any]]) -> str:
    """Format the goals."""
    lines = []
    for row in rows:
        low, high = row["range"]
        figure = f"{row['figure']:.2f} ({low:.2f} to {high:.2f})"
        mark = "" if row["is_met"] else "missed"
        lines.append([row["what"], row["workload"], figure, row["goal"], mark])
    return table(["", "workload", "figure", "goal", ""], lines)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--only", default="", help="workloads, separated by commas (all)")
    add("--rounds", type=int, default=5, help="in which all take turns (5)")
    add("--seconds", type=float, default=1, help="of load in each turn (1)")
    add("--keys", type=int, default=FULL.keys, help="of 1 KiB (40000)")
    add("--brief", action="store_true", help="only the contenders that goals name")
    options = parser.parse_args()
    scale = replace(
        FULL, rounds=options.rounds, seconds=options.seconds, keys=options.keys
    )
    names = {name.strip() for name in options.only.split(",") if name.strip()}
    with measuring(options.directory) as (_, work):
        describe(work)
        results = list(measured(names, scale, work, is_brief=options.brief))
    rows = list(goal_rows(results))
    print(f"\n{goal_table(rows)}\n")
    print("\n\n".join([*overview(results), *map(section, results)]))


if __name__ == "__main__":
    main()
