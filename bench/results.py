"""What was measured, as a value: round by round, with medians and ratios."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from report import Spread

Figures = dict[str, float]  # A measure's name, see `MEASURES`, to its figure.
Rows = dict[str, list[Figures]]  # A contender's name to the figures of its rounds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One kind of figure: how a column of it looks."""

    head: str
    digits: int


MEASURES = {
    "rate": Measure(head="requests/s", digits=0),
    "cpu": Measure(head="CPU µs", digits=1),
    "user": Measure(head="user", digits=1),
    "system": Measure(head="system", digits=1),
    "p50": Measure(head="p50 ms", digits=2),
    "p99": Measure(head="p99 ms", digits=2),
    "p999": Measure(head="p99.9 ms", digits=2),
    "max": Measure(head="max ms", digits=1),
    "written": Measure(head="bytes written per byte", digits=2),
    "rotations": Measure(head="volumes filled", digits=1),
    "resident": Measure(head="memory MiB", digits=0),
    "boot": Measure(head="boot s", digits=2),
    "keys_rate": Measure(head="keys/s", digits=0),
    "key_memory": Measure(head="memory per key", digits=0),
    "key_memory_peak": Measure(head="at most", digits=0),
    "key_objects": Measure(head="objects per key", digits=0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """
    One workload's figures.

    Attributes:
        name: The workload's.
        title: What was done, in a line.
        rounds: Each contender's figures of each round; the first contender is the one
            that is held against the others.
        error: Why there are no figures; empty when there are.

    """

    name: str
    title: str
    rounds: Rows = field(default_factory=dict)
    error: str = ""

    @property
    def subject(self) -> str:
        """The contender that is held against the others."""
        return next(iter(self.rounds))

    def measures(self) -> list[str]:
        """Return the measures that any contender has, in the order of columns."""
        found = {
            name for figures in self.rounds.values() for one in figures for name in one
        }
        return [name for name in MEASURES if name in found]

    def spread(self, contender: str, measure: str) -> Spread | None:
        """Return the median and range of the rounds, None if it was not measured."""
        figures = [one[measure] for one in self.rounds[contender] if measure in one]
        return Spread.of(figures) if figures else None

    def ratio(self, contender: str, measure: str) -> Spread | None:
        """Divide the subject's figure by another's, round by round."""
        pairs = zip(self.rounds[self.subject], self.rounds[contender], strict=True)
        quotients = [
            ours[measure] / theirs[measure]
            for ours, theirs in pairs
            if measure in ours and theirs.get(measure)
        ]
        return Spread.of(quotients) if quotients else None

    def as_json(self) -> dict[str, Any]:
        """Return all figures, with what the report makes of them."""
        summary = {
            contender: {
                measure: asdict(spread)
                for measure in self.measures()
                if (spread := self.spread(contender, measure))
            }
            for contender in self.rounds
        }
        return {**asdict(self), "summary": summary}
