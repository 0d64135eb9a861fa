"""What the web layer has counted since the start: requests, bytes, durations."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from volcache.histogram import Histogram

VERBS: Final = ("GET", "HEAD", "PUT", "DELETE", "OTHER")
# One GET in so many is looked at to find the hottest keys.
SAMPLE_ONE_IN: Final = 64
_SAMPLED_KEYS_MAX: Final = 2048


@dataclass(slots=True)
class RequestStats:
    """
    Counts since the start.

    The plain GET that finds its value is counted in `fast` alone; everything
    else in `answers` and `durations`. The methods put both together.
    """

    fast: Histogram = field(default_factory=Histogram)  # one for each such GET
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    durations: dict[str, Histogram] = field(
        default_factory=lambda: {verb: Histogram() for verb in VERBS}
    )
    fast_memc: int = 0  # how many of `fast` the hot tier answered
    memc_hits: int = 0  # other GETs and HEADs that found a value in the hot tier
    disk_hits: int = 0  # likewise on the disk
    misses: int = 0  # GETs and HEADs of keys under which there was nothing
    bytes_in: int = 0  # of values that were stored
    bytes_out: int = 0  # of values, or parts of them, that were given back
    sampled: Counter[bytes] = field(default_factory=Counter)  # keys of GETs that hit

    def note(self, method: str, status: str, started_ns: int, ns: int) -> None:
        """
        Count an answer that is not one of `fast`.

        Args:
            method: Of the request; those nobody knows are one.
            status: The status line, such as `404 Not Found`.
            started_ns: When, by `time.perf_counter_ns`.
            ns: How many nanoseconds it took.
        """
        verb = method if method in self.durations else "OTHER"
        self.answers[verb, status] += 1
        self.durations[verb].observe(started_ns, ns)

    def sample(self, key: bytes) -> None:
        """
        Take note of one GET in `SAMPLE_ONE_IN`, to find out which keys are hot.

        When the table is full, every count is halved and what comes to nothing forgotten:
        what was hot long ago makes room for what is now.
        """
        self.sampled[key] += 1
        if len(self.sampled) > _SAMPLED_KEYS_MAX:
            halved = {
                key: count // 2 for key, count in self.sampled.items() if count > 1
            }
            if len(halved) > _SAMPLED_KEYS_MAX // 2:
                kept = random.sample(list(halved), _SAMPLED_KEYS_MAX // 2)
                halved = {key: halved[key] for key in kept}
            self.sampled = Counter(halved)

    def hottest(self, number: int) -> list[tuple[bytes, int]]:
        """Return the keys read most of late, with about how many reads they stand for."""
        return [
            (key, count * SAMPLE_ONE_IN)
            for key, count in self.sampled.most_common(number)
        ]

    def requests(self) -> dict[tuple[str, int], int]:
        """Return the number of requests by verb and status."""
        found: Counter[tuple[str, int]] = Counter()
        for (verb, status), count in self.answers.items():
            found[verb, int(status[:3])] += count
        plain = self.fast.count
        if plain:
            found["GET", 200] += plain
        return dict(found)

    def hits(self) -> dict[str, int]:
        """Return the number of GETs and HEADs that found a value, by where."""
        return {
            "MEMC": self.memc_hits + self.fast_memc,
            "DISK": self.disk_hits + self.fast.count - self.fast_memc,
        }

    def latencies(self) -> dict[str, Histogram]:
        """Return how long requests took, by verb."""
        return {**self.durations, "GET": self.durations["GET"].merged(self.fast)}
