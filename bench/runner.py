"""
Runs workloads: contenders take turns, round by round.

What comes out is plain data: for each row of a workload, such as `nginx`, the figures of
every round by their name; see `results.py` for the names.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import sync
from typing import TYPE_CHECKING, Final

from contenders import Keys, Stage
from page_cache import forget
from proc import resident_bytes, usage
from traffic import Dose, play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from contenders import Contender
    from latency import Run
    from proc import Usage
    from results import Figures, Rows
    from scale import Scale
    from traffic import Traffic

MICROSECONDS: Final = 1_000_000
MIB: Final = 1 << 20


class SkippedError(Exception):
    """A workload cannot be run here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    Something to measure.

    Attributes:
        name: By which it is asked for.
        text: What it does, one sentence.
        rows: What is measured side by side; the others are compared with the first.
        measure: Does it.
        is_extra: It takes long, and runs only when it is asked for by name.

    """

    name: str
    text: str
    rows: tuple[str, ...]
    measure: Callable[[Bench, Workload], Rows]
    is_extra: bool = False


class Bench:
    """The place where workloads run: a folder, the amounts, the stage that is up."""

    def __init__(
        self,
        folder: Path,
        scale: Scale,
        *,
        base: Path | None = None,
        drops_everything: bool = False,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Begin with nothing started.

        Args:
            folder: On the disk that is measured; must exist, is not removed here.
            scale: The amounts.
            base: The tree of another revision to compare with.
            drops_everything: Whether cold means that all caches of the machine go.
            progress: Told what happens.

        """
        self.folder = folder
        self.scale = scale
        self.base = base
        self.drops_everything = drops_everything
        self.progress = progress
        self._stack = ExitStack()
        self._stage: tuple[str, Stage] | None = None

    def close(self) -> None:
        """End the servers."""
        self._stack.close()
        self._stage = None

    def stage(self, name: str, keys: Keys) -> Stage:
        """Return a stage; the one before ends when it is another."""
        if self._stage is None or self._stage[0] != name:
            self.close()
            self.progress(
                f"stage {name}: {keys.count} keys of {keys.value_bytes} bytes"
            )
            stage = Stage(self._stack, self.folder / name, keys, self.base)
            self._stage = (name, stage)
        return self._stage[1]

    def turns(self, rows: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Say who is next: every round begins with another row."""
        for number in range(self.scale.rounds):
            first = number % len(rows)
            for row in (*rows[first:], *rows[:first]):
                yield number, row

    def rows_of(self, workload: Workload) -> tuple[str, ...]:
        """Return the rows, with the other revision's after volcache's."""
        rows = workload.rows
        if self.base is None or "volcache" not in rows:
            return rows
        place = rows.index("volcache") + 1
        return (*rows[:place], "base", *rows[place:])


def under_traffic(
    stage_name: str,
    keys_of: Callable[[Scale], Keys],
    traffic: Traffic,
    *,
    is_cold: bool = False,
) -> Callable[[Bench, Workload], Rows]:
    """Make the measuring of a workload that is one kind of load on servers."""

    def measure(bench: Bench, workload: Workload) -> Rows:
        scale = bench.scale
        stage = bench.stage(stage_name, keys_of(scale))
        names = bench.rows_of(workload)
        contenders = {name: stage.contender(name) for name in names}
        dose = Dose(
            seconds=scale.seconds, connections=scale.connections, sample=scale.sample
        )
        rows: Rows = {name: [] for name in names}
        if not is_cold and scale.warms_up:
            for contender in contenders.values():
                play(traffic, contender, stage.keys, dose)
        for number, name in bench.turns(names):
            if is_cold:
                forget(stage.folder, everything=bench.drops_everything)
            elif traffic.puts_share:
                sync()  # What another has written is not to be waited for now.
            figures = measure_once(
                contenders[name], stage.keys, traffic, replace(dose, number=number)
            )
            rows[name].append(figures)
            bench.progress(
                f"{workload.name} {number + 1}/{scale.rounds} {name}:"
                f" {figures['rate']:.0f}/s, {figures['cpu']:.1f} µs"
            )
        return rows

    return measure


def measure_once(
    contender: Contender, keys: Keys, traffic: Traffic, dose: Dose
) -> Figures:
    """
    Put the load on a contender once and say what it cost.

    Raises:
        LoadError: A request went wrong.
        ProgramError: The server ended.
    """
    pids = contender.pids
    before = usage(pids)
    run = play(traffic, contender, keys, dose)
    used = usage(pids) - before
    figures = run_figures(run) | cost_figures(run.requests, used)
    figures["resident"] = resident_bytes(pids) / MIB
    if contender.bytes_per_key is not None:
        figures["key_memory"] = contender.bytes_per_key
    stored = run.requests * traffic.puts_share * keys.value_bytes
    if stored:
        figures["written"] = used.written / stored
    return figures


def run_figures(run: Run) -> Figures:
    """Name the figures of a run."""
    return {
        "rate": run.rate,
        "p50": run.p50,
        "p99": run.p99,
        "p999": run.p999,
        "max": run.max,
    }


def cost_figures(requests: int, used: Usage) -> Figures:
    """Divide CPU time among requests, in microseconds."""
    user = used.user * MICROSECONDS / requests
    system = used.system * MICROSECONDS / requests
    return {"cpu": user + system, "user": user, "system": system}
