"""
The metrics in Prometheus' text formats. The only import of prometheus_client.

The library's own counters and histograms are not used, since each takes a lock at every
request, and neither are its encoders: a scrape is made in the thread that answers
requests, and they take 4 to 8 ms for the 300 samples of an instance. What is written here
is, byte by byte, what they write.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from volcache.histogram import NS_PER_SECOND, Histogram
from volcache.monitoring.metrics import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.monitoring.metrics import Metric, Read
    from volcache.monitoring.snapshot import Snapshot

# Every other power of two from 4 microseconds to 17 seconds: half the number of series,
# and enough to distinguish memory, flash and a disk that seeks.
BOUND_BITS: Final = range(12, 35, 2)
_BOUNDS: Final = tuple((bits, str((1 << bits) / NS_PER_SECOND)) for bits in BOUND_BITS)
_OPEN_METRICS: Final = "application/openmetrics-text"
_TOTAL: Final = "_total"
_SMALL: Final = 1_000_000  # Below this, the text of an integer has no exponent.
_QUOTE: Final = str.maketrans({'"': r"\""})
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class _Family(NamedTuple):
    """A metric, with what is the same in each scrape."""

    name: str
    labels: tuple[str, ...]
    read: Read
    head: str  # the lines before the samples
    open_head: str  # those of OpenMetrics

    @classmethod
    def of(cls, metric: Metric) -> _Family:
        """Prepare a metric."""
        name, text = metric.name, metric.text.replace("\\", r"\\")
        base = name.removesuffix(_TOTAL) if metric.kind == "counter" else name
        return cls(
            name,
            tuple(label.name for label in metric.labels),
            metric.read,
            f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n",
            f"# HELP {base} {text.translate(_QUOTE)}\n# TYPE {base} {metric.kind}\n",
        )


_FAMILIES: Final = tuple(
    (section.is_part, tuple(_Family.of(m) for m in section.metrics if m.name))
    for section in SECTIONS
)


class MetricsRenderer:
    """All metrics of one instance."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """Call `snapshot` at each scrape."""
        self._snapshot = snapshot

    def render(self, accept: str) -> tuple[str, bytes]:
        """Return content type and text, in the format that `Accept` asks for."""
        try:
            _, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # It asks for a version that is not a number.
            _, content_type = choose_encoder("")
        is_open = content_type.startswith(_OPEN_METRICS)
        text = "".join(_written(self._snapshot(), is_open=is_open))
        return content_type, text.encode()


def _written(snapshot: Snapshot, *, is_open: bool) -> Iterator[str]:
    """Yield the lines of every metric of a snapshot."""
    for is_part, families in _FAMILIES:
        if not is_part(snapshot):
            continue
        for family in families:
            yield family.open_head if is_open else family.head
            name = family.name
            for values, value in family.read(snapshot).items():
                labels = _labels(family.labels, values) if values else ""
                if isinstance(value, Histogram):
                    yield _histogram(name, labels, value)
                elif value is not None:
                    shown = f"{{{labels}}}" if labels else ""
                    yield f"{name}{shown} {_number(value)}\n"
    if is_open:
        yield "# EOF\n"


def _labels(names: tuple[str, ...], values: tuple[str | int, ...]) -> str:
    """Return the labels of a sample, in the order of their names."""
    pairs = zip(names, values, strict=True)
    return ",".join(
        [f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in sorted(pairs)]
    )


def _number(value: Any) -> str:  # noqa: ANN401 - Any number.
    """Return a number as Go writes it."""
    if type(value) is int and 0 <= value < _SMALL:
        return f"{value}.0"
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _histogram(name: str, labels: str, histogram: Histogram) -> str:
    """Return the lines of a histogram."""
    below = list(accumulate(histogram.counts))
    before = f"{name}_bucket{{"
    # Labels are in the order of their names.
    behind = f",{labels}" if labels > "le" else ""
    if labels and not behind:
        before += f"{labels},"
    count = _number(below[-1])
    lines = [
        f'{before}le="{bound}"{behind}}} {_number(below[bits])}\n'
        for bits, bound in _BOUNDS
    ]
    shown = f"{{{labels}}}" if labels else ""
    seconds = _number(histogram.total_ns / NS_PER_SECOND)
    return "".join(
        [
            *lines,
            f'{before}le="+Inf"{behind}}} {count}\n',
            f"{name}_count{shown} {count}\n",
            f"{name}_sum{shown} {seconds}\n",
        ]
    )
