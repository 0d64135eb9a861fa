"""
One metric, whatever it is of: its name, what it means, and its values.

Prometheus' own library is known to `prometheus.py` alone, which writes families as it
wants them. A counter gets `_total` behind its name there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from volcache.metrics import Histogram


class Family(NamedTuple):
    """A metric, with a value for each combination of its labels' values."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float | Histogram]


def gauge(name: str, text: str, value: float) -> Family:
    """Make a gauge without labels."""
    return Family("gauge", name, text, (), {(): value})


def counter(name: str, text: str, value: float) -> Family:
    """Make a counter without labels."""
    return Family("counter", name, text, (), {(): value})


def histogram(name: str, text: str, value: Histogram) -> Family:
    """Make a histogram without labels."""
    return Family("histogram", name, text, (), {(): value})


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Family:
    """Make a gauge with one label."""
    return Family("gauge", name, text, (label,), {(k,): v for k, v in values.items()})


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Family:
    """Make a counter with one label."""
    return Family("counter", name, text, (label,), {(k,): v for k, v in values.items()})
