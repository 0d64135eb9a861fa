"""Counters of the HTTP layer: requests, bytes, durations, the keys read most."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from random import getrandbits
from typing import Final

from volcache.histogram import Histogram

VERBS: Final = ("GET", "HEAD", "PUT", "DELETE", "OTHER")
# One hit in 64 is sampled to find the hottest keys. The choice is random, because every
# 64th request would show the same few keys of a client that asks for them in turn.
SAMPLE_ONE_IN: Final = 64
_SAMPLE_BITS: Final = SAMPLE_ONE_IN.bit_length() - 1
_SAMPLED_KEYS_MAX: Final = 2048


class _Answers(dict[tuple[str, str], Histogram]):
    """The durations of requests, by verb and status line."""

    def __missing__(self, answer: tuple[str, str]) -> Histogram:
        """Add a histogram; methods outside `VERBS` share one, so clients add few."""
        method, status = answer
        if method not in VERBS:
            return self["OTHER", status]
        histogram = self[answer] = Histogram()
        return histogram


@dataclass(slots=True)
class RequestStats:
    """
    Counts since the start.

    Every request is counted by `answers[method, status_line].observe(started_ns, ns)`.
    """

    answers: _Answers = field(default_factory=_Answers)
    memc_hits: int = 0  # GETs and HEADs that found a value in the hot tier
    disk_hits: int = 0  # GETs and HEADs that found a value on the disk
    misses: int = 0  # GETs and HEADs that found no value
    bytes_in: int = 0  # of values stored
    bytes_out: int = 0  # of values, or parts of values, sent
    sampled: Counter[bytes] = field(default_factory=Counter)  # keys of hits

    def count_hit(self, key: bytes, source: str, size: int) -> None:
        """
        Count a GET or HEAD that found a value.

        Args:
            key: Of the value; sampled to find the hottest keys.
            source: `DISK`, or `MEMC` for the hot tier.
            size: Bytes of the value that are sent.
        """
        if source == "DISK":
            self.disk_hits += 1
        else:
            self.memc_hits += 1
        self.bytes_out += size
        if not getrandbits(_SAMPLE_BITS):
            self.sample(key)

    def sample(self, key: bytes) -> None:
        """
        Count a sampled key.

        When the table is full every count is halved and keys that reach 0 are removed,
        so that keys read recently replace keys read long ago.
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
        """Return the keys read most in recent time, with their estimated reads."""
        return [
            (key, count * SAMPLE_ONE_IN)
            for key, count in self.sampled.most_common(number)
        ]

    def requests(self) -> dict[tuple[str, int], int]:
        """Return the number of requests by verb and status."""
        # Status lines may differ in their reason alone, so counts are added.
        found: Counter[tuple[str, int]] = Counter()
        for (verb, status), histogram in self.answers.items():
            found[verb, int(status[:3])] += histogram.count
        return dict(found)

    def hits(self) -> dict[str, int]:
        """Return the number of GETs and HEADs that found a value, by source."""
        return {"MEMC": self.memc_hits, "DISK": self.disk_hits}

    def latencies(self) -> dict[str, Histogram]:
        """Return the durations of requests by verb."""
        merged = {verb: Histogram() for verb in VERBS}
        for (verb, _), histogram in self.answers.items():
            merged[verb] = merged[verb].merged(histogram)
        return merged
