"""Puts load on a server, by `load.c` or wrk, and measures its cost."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from bench.machine import MIB, ROOT, compiled, pinned_command, resident_bytes, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.machine import Usage
    from bench.servers import Contender, Dataset, Server

Figures = dict[str, float]  # The name of a measure, see `report.MEASURES`, to a figure.
Rounds = dict[str, list[Figures]]  # A contender's name to its figures of each round.
Protocol = Literal["http", "text", "meta", "redis"]
Kind = Literal["get", "put", "mix", "miss", "sample", "sequential"]
Tool = Literal["load", "wrk"]

SOURCE: Final = ROOT / "bench" / "load.c"
MICROSECONDS: Final = 1_000_000
LOAD_CORE: Final = 1  # Servers that are measured run on core 0.
FILL_CONNECTIONS: Final = 4


class LoadError(RuntimeError):
    """Requests failed, so the figures would mean nothing; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    The requests answered within some seconds; latencies are in milliseconds.

    Attributes:
        promoted: How many were answered from memcached, by what volcache says.
    """

    requests: int
    seconds: float
    p50: float
    p99: float
    p999: float
    max: float
    promoted: int = 0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """
    The requests of one turn, the same for each contender.

    Attributes:
        kind: `get`, `put` and `mix`: random stored keys until the time is up; `miss`:
            GETs of keys that are not stored; `sample`: GETs of random keys, each at
            most once; `sequential`: GETs of the keys that were stored first, in order.
        dataset: The keys and values.
        seconds: How long; `sample` and `sequential` end with their last key instead.
        connections: How many have requests under way.
        sample: How many keys a `sample` or `sequential` load reads.
        puts_percent: Of a `mix`.
        protocol: What a contender is asked in, if it speaks it.
        depth: How many requests are under way on each connection.
        first: The number of the first key.
        rate: Requests per second, whether answered or not; 0: after each answer.
        tool: What sends them. wrk has `get` and `put` by HTTP, puts keys in turn, and
            ends after whole seconds.
        path: What wrk gets instead of keys: `/-/metrics`, or a file with paths.
    """

    kind: Kind
    dataset: Dataset
    seconds: float = 0
    connections: int = 20
    sample: int = 0
    puts_percent: int = 5
    protocol: Protocol = "http"
    depth: int = 1
    first: int = 0
    rate: float = 0
    tool: Tool = "load"
    path: str = ""

    @property
    def puts_share(self) -> float:
        """The share of PUTs among its requests."""
        return {"put": 1.0, "mix": self.puts_percent / 100}.get(self.kind, 0.0)

    @property
    def count(self) -> int:
        """How many requests it ends with; 0 if it ends with the time."""
        is_listed = self.kind in {"sample", "sequential"}
        return min(self.sample, self.dataset.count) if is_listed else 0

    def command(self, protocol: str, port: int, seed: int) -> list[str]:
        """Return the command; another seed draws other keys, except with wrk."""
        if self.tool == "wrk":
            script = SOURCE.with_name(f"{self.kind}.lua")
            seconds = max(1, round(self.seconds))
            sizes = [self.path or str(self.dataset.count)]
            sizes += [str(self.dataset.value_bytes)] if self.kind == "put" else []
            return [
                *("wrk", "-t1", f"-c{self.connections}", f"-d{seconds}s"),
                *("-s", str(script), f"http://127.0.0.1:{port}", "--", *sizes),
            ]
        orders = {"sample": "shuffled", "sequential": "rising"}
        values = {
            "prefix": "none" if self.kind == "miss" else "k",
            "first": self.first,
            "keys": self.dataset.count - self.first,
            "order": orders.get(self.kind, "random"),
            "seed": seed + 1,
            "puts": round(100 * self.puts_share),
            "size": self.dataset.value_bytes,
            "missing": int(self.kind == "miss"),
            "connections": self.connections,
            "depth": self.depth,
            "rate": self.rate,
            "requests": self.count,
            "seconds": self.seconds,
        }
        return [
            *(str(compiled(SOURCE)), f"port={port}", f"protocol={protocol}"),
            *(f"{name}={value}" for name, value in values.items()),
        ]


class Running:
    """A load that has begun."""

    def __init__(self, command: Sequence[str], core: int | None) -> None:
        """Begin; on one core, or on all of them."""
        self._process = subprocess.Popen(
            [*pinned_command(core), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> Run:
        """
        Wait for its end.

        Raises:
            LoadError: An answer is wrong, or missing for 10 seconds.
        """
        output, error = self._process.communicate()
        if self._process.returncode:
            raise LoadError((error or output).strip())
        figures: dict[str, int] = json.loads(output.splitlines()[-1])
        if failed := figures.get("failed"):
            raise LoadError(f"{failed} of {figures['requests']} requests failed")
        return Run(
            requests=figures["requests"],
            seconds=figures["micros"] / MICROSECONDS,
            p50=figures["p50"] / 1000,
            p99=figures["p99"] / 1000,
            p999=figures["p999"] / 1000,
            max=figures["max"] / 1000,
            promoted=figures["hot"],
        )


def start_load(
    load: Load, contender: Contender, seed: int = 0, core: int | None = LOAD_CORE
) -> Running:
    """Begin a load of a contender."""
    protocol, port = contender.address(load.protocol)
    return Running(load.command(protocol, port, seed), core)


def fill(
    server: Server, dataset: Dataset, protocol: str = "http", port: int | None = None
) -> None:
    """
    Store the dataset, without measuring.

    Raises:
        LoadError: A request failed.
    """
    load = Load(
        kind="sequential",
        dataset=dataset,
        sample=dataset.count,
        connections=FILL_CONNECTIONS,
    )
    command = load.command(protocol, port or server.port, 0)
    Running([*command, "puts=100"], core=None).result()


def measure_once(load: Load, contender: Contender, seed: int = 0) -> Figures:
    """
    Run a load once and return what it cost.

    Raises:
        LoadError: An answer is wrong.
        ProgramError: The server has ended.
    """
    own, pids = contender.own_pids, contender.pids
    before = usage(own), usage(pids)
    run = start_load(load, contender, seed).result()
    used = usage(pids) - before[1]
    figures = run_figures(run) | cpu_figures(run.requests, used)
    figures["resident"] = resident_bytes(pids) / MIB
    if len(pids) > len(own):
        figures["own"] = cpu_figures(run.requests, usage(own) - before[0])["cpu"]
        figures["promoted"] = run.promoted / run.requests
    if contender.bytes_per_key is not None:
        figures["key_memory"] = contender.bytes_per_key
    stored = run.requests * load.puts_share * load.dataset.value_bytes
    if stored:
        figures["written"] = used.written / stored
    return figures


def run_figures(run: Run) -> Figures:
    """Return the figures of a run by the names of their measures."""
    return {
        "rate": run.rate,
        "p50": run.p50,
        "p99": run.p99,
        "p999": run.p999,
        "max": run.max,
    }


def cpu_figures(requests: int, used: Usage) -> Figures:
    """Return the CPU time per request, in microseconds."""
    user = used.user * MICROSECONDS / requests
    system = used.system * MICROSECONDS / requests
    return {"cpu": user + system, "user": user, "system": system}


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield the order of measuring: each round starts with another contender."""
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            yield number, name


def measure_rounds(
    contenders: Mapping[str, Contender],
    load: Load,
    *,
    rounds: int,
    prepare: Callable[[], None] = lambda: None,
    report: Callable[[str], None] = lambda _: None,
) -> Rounds:
    """
    Measure contenders in turns, so that disturbances affect all of them alike.

    Args:
        contenders: By name.
        load: The same for all.
        rounds: In each of which every contender has one turn.
        prepare: Called before each turn.
        report: Called with a line after each turn.

    Raises:
        LoadError: An answer is wrong.
        ProgramError: A server has ended.
    """
    found: Rounds = {name: [] for name in contenders}
    for number, name in turns(list(contenders), rounds):
        prepare()
        figures = measure_once(load, contenders[name], seed=number)
        found[name].append(figures)
        report(
            f"round {number + 1}/{rounds} {name}: {figures['rate']:.0f}/s,"
            f" {figures['cpu']:.1f} µs"
        )
    return found
