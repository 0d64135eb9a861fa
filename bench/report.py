"""Figures as Markdown: medians with their range."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure taken several times."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """Summarise at least one figure."""
        return cls(median=median(figures), low=min(figures), high=max(figures))

    def text(self, digits: int) -> str:
        """Write median and range with so many digits after the point."""
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"
        return f"{self.median:.{digits}f} ({low} to {high})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; the first column is text, the others are figures."""
    align = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, align, *rows))


def bullets(facts: Mapping[str, str], warnings: Iterable[str]) -> str:
    """Write facts and warnings as a Markdown list."""
    lines = [f"- {name}: {fact}" for name, fact in facts.items()]
    lines += [f"- **warning**: {warning}" for warning in warnings]
    return "\n".join(lines)
