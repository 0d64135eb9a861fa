"""Puts load on a server, by wrk or by the client of `client.py`, and measures its cost."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from bench import client
from bench.client import LoadError, Run
from bench.machine import MIB, resident_bytes, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bench.machine import Usage
    from bench.servers import Contender, Dataset

Figures = dict[str, float]  # The name of a measure, see `report.MEASURES`, to a figure.
Rounds = dict[str, list[Figures]]  # A contender's name to its figures of each round.

SCRIPT: Final = Path(__file__).resolve().parent / "wrk.lua"
WRK_RESULT: Final = re.compile(r"^figures (\{.*\})$", re.MULTILINE)
MICROSECONDS: Final = 1_000_000
PREPARED_REQUESTS: Final = 50_000  # To memcached: built in advance, then repeated.
PREPARED_BYTES: Final = 64 * MIB


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
        connections: How many have a request under way.
        sample: How many keys a `sample` or `sequential` load reads.
        puts_percent: Of a `mix`.
    """

    kind: Literal["get", "put", "mix", "miss", "sample", "sequential"]
    dataset: Dataset
    seconds: float
    connections: int
    sample: int = 0
    puts_percent: int = 5

    @property
    def is_listed(self) -> bool:
        """Whether it ends with its last key and not with the time."""
        return self.kind in {"sample", "sequential"}

    @property
    def puts_share(self) -> float:
        """The share of PUTs among its requests."""
        return {"put": 1.0, "mix": self.puts_percent / 100}.get(self.kind, 0.0)

    def keys(self, seed: int) -> list[str]:
        """Return the keys of a load that is listed; another seed, another sample."""
        keys = self.dataset.keys
        if self.kind == "sequential":
            return keys[: self.sample]
        draw = random.Random(seed)  # noqa: S311 - load, not secrets
        return draw.sample(keys, min(self.sample, len(keys)))


def run_load(load: Load, contender: Contender, seed: int = 0) -> Run:
    """
    Run a load once.

    Args:
        load: The requests.
        contender: Receives them.
        seed: Of what is drawn; wrk draws the same in each run.

    Raises:
        LoadError: An answer is wrong.
    """
    if load.is_listed:
        requests: Iterable[bytes] = map(client.http_get, load.keys(seed))
        is_complete: client.IsComplete = client.is_complete_http
    elif contender.is_memcached:
        requests, is_complete = _memcached_requests(load)
    else:
        return run_wrk(contender.server.url, load)
    return client.closed_loop(
        {contender.server.port: requests},
        is_complete,
        connections=load.connections,
        seconds=float("inf") if load.is_listed else load.seconds,
    )


def _memcached_requests(load: Load) -> tuple[Iterator[bytes], client.IsComplete]:
    """Return endless requests for memcached, and what recognises their answers."""
    draw = random.Random(1)  # noqa: S311 - load, not secrets
    keys = draw.choices(load.dataset.keys, k=PREPARED_REQUESTS)
    if load.kind == "put":
        value = load.dataset.value
        keys = keys[: max(1000, PREPARED_BYTES // len(value))]
        requests = [client.memcached_set(key, value) for key in keys]
        return itertools.cycle(requests), client.is_complete_stored
    if load.kind == "miss":
        requests = [client.memcached_get(f"none{key[1:]}") for key in keys]
        return itertools.cycle(requests), client.is_complete_miss
    requests = [client.memcached_get(key) for key in keys]
    return itertools.cycle(requests), client.is_complete_hit


def run_wrk(url: str, load: Load) -> Run:
    """
    Run wrk with one thread, for a whole number of seconds, at least one.

    Raises:
        LoadError: wrk is not installed, or reports a socket error, a time-out or a
            status that is not the expected one.
    """
    program = shutil.which("wrk")
    if program is None:
        raise LoadError("wrk is not installed; on Debian: apt-get install wrk")
    seconds = max(1, round(load.seconds))
    command = [program, "-t1", f"-c{load.connections}", f"-d{seconds}s"]
    command += ["-s", str(SCRIPT), url, "--", *wrk_arguments(load)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return read_wrk(done.stdout, misses=load.kind == "miss", source=" ".join(command))


def wrk_arguments(load: Load) -> list[str]:
    """Return the arguments of `wrk.lua` for a load."""
    prefix = "none" if load.kind == "miss" else "k"
    puts = round(100 * load.puts_share)
    return [str(load.dataset.count), prefix, str(puts), str(load.dataset.value_bytes)]


def read_wrk(output: str, *, misses: bool, source: str) -> Run:
    """
    Read the line that the scripts print at the end.

    Args:
        output: Of wrk.
        misses: Whether each answer must be an error; otherwise none may be.
        source: Names the run in errors.

    Raises:
        LoadError: There is no such line, or it reports a failure.
    """
    found = WRK_RESULT.search(output)
    figures: dict[str, int] = json.loads(found[1]) if found else {}
    requests = figures.get("requests", 0)
    errors = requests if misses else 0
    if not requests or figures["failed"] or figures["status"] != errors:
        raise LoadError(f"{source} reported:\n{output}")
    return Run(
        requests=requests,
        seconds=figures["micros"] / MICROSECONDS,
        p50=figures["p50"] / 1000,
        p99=figures["p99"] / 1000,
        p999=figures["p999"] / 1000,
        max=figures["max"] / 1000,
    )


def measure_once(load: Load, contender: Contender, seed: int = 0) -> Figures:
    """
    Run a load once and return what it cost.

    Raises:
        LoadError: An answer is wrong.
        ProgramError: The server has ended.
    """
    pids = contender.pids
    before = usage(pids)
    run = run_load(load, contender, seed)
    used = usage(pids) - before
    figures = run_figures(run) | cpu_figures(run.requests, used)
    figures["resident"] = resident_bytes(pids) / MIB
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
