"""Counters of the HTTP layer: requests, bytes, durations, the keys read most."""

from __future__ import annotations

import heapq
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Final

from volcache.histogram import Answers, Histogram

VERBS: Final = ("GET", "HEAD", "PUT", "DELETE", "OTHER")
# One read in 64 is sampled to find the hottest keys: those whose duration in nanoseconds
# has these bits 0. They are random, whereas every 64th read would select the same few keys
# of a client that reads keys in turn.
SAMPLE_ONE_IN: Final = 64
SAMPLE_MASK: Final = SAMPLE_ONE_IN - 1
_SAMPLED_KEYS_MAX: Final = 2048
_GOLDEN: Final = 0x9E3779B97F4A7C15  # Of 64 bits; as `vc_is_sample` in common.h.


def is_sample(ended_ns: int) -> bool:
    """
    Return whether a read is one of those that are counted, one in `SAMPLE_ONE_IN`.

    Args:
        ended_ns: When it ended; on some machines always a multiple of 40, so that all
            bits are mixed.
    """
    return not ended_ns * _GOLDEN >> 32 & SAMPLE_MASK


# What requests wanted that were refused for their token.
REFUSED_KINDS: Final = ("read", "write", "admin")
# What requests wanted that were for keys of other instances.
MISDIRECTED_KINDS: Final = ("read", "write")
READS: Final = ("GET", "HEAD")
TIERS: Final = ("MEMC", "DISK")
# The source of an answer that refuses such a key.
OTHER: Final = "OTHER"
RECENT_SECONDS: Final = 300.0
_OTHERS_MAX: Final = 10


@dataclass(slots=True)
class RequestStats:
    """
    Counts since the start.

    A request is counted by `answers[method, status_line, source].observe(started_ns, ns)`;
    the source is the tier that was read, MISS if neither tier has the key, OTHER if the key
    is that of another instance, else empty.

    One thread counts; any thread may sample, or read: what it looks through is a copy.
    """

    answers: Answers = field(default_factory=partial(Answers, VERBS, "OTHER"))
    bytes_in: int = 0  # of values stored
    bytes_out: int = 0  # of values, or parts of values, sent
    sampled: Counter[bytes] = field(default_factory=Counter)  # keys of reads
    _sampling: threading.Lock = field(default_factory=threading.Lock)
    # Without the right token, by what was wanted.
    refused: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(REFUSED_KINDS, 0)
    )
    # Of other instances whose keys were asked for: when the last time was, in seconds since
    # the epoch. As many as the list of `ring` has at most.
    others: dict[str, float] = field(default_factory=dict)

    def sample(self, key: bytes) -> None:
        """
        Count a sampled key; from any thread.

        When the table is full every count is halved and keys that reach 0 are removed,
        so that keys read recently replace keys read long ago.
        """
        with self._sampling:
            self.sampled[key] += 1
            if len(self.sampled) > _SAMPLED_KEYS_MAX:
                self._halve()

    def _halve(self) -> None:
        halved = {key: count // 2 for key, count in self.sampled.items() if count > 1}
        if len(halved) > _SAMPLED_KEYS_MAX // 2:
            kept = random.sample(list(halved), _SAMPLED_KEYS_MAX // 2)
            halved = {key: halved[key] for key in kept}
        self.sampled = Counter(halved)

    def hottest(self, number: int) -> list[tuple[bytes, int]]:
        """Return the keys read most in recent time, with their estimated reads."""
        with self._sampling:
            sampled = list(self.sampled.items())
        most = heapq.nlargest(number, sampled, key=itemgetter(1))
        return [(key, count * SAMPLE_ONE_IN) for key, count in most]

    def requests(self) -> dict[tuple[str, int], int]:
        """Return the number of requests by verb and status, but for `misdirected`."""
        # Status lines may differ in their reason alone, so counts are added.
        found: Counter[tuple[str, int]] = Counter()
        for (verb, status, source), histogram in self.answers.copy().items():
            if source != OTHER:
                found[verb, int(status[:3])] += histogram.count
        return dict(sorted(found.items()))

    def misdirected(self) -> dict[str, int]:
        """Return the number of requests for keys of other instances, by kind."""
        read, all_ = self._reads(OTHER), self.answers.number(lambda a: a[2] == OTHER)
        return {"read": read, "write": all_ - read}

    def recent_others(self, now: float) -> dict[str, float]:
        """Return when keys of others were last asked for, if in the last minutes."""
        recent = [
            (at, name)
            for name, at in self.others.copy().items()
            if at > now - RECENT_SECONDS
        ]
        return {name: at for at, name in sorted(recent, reverse=True)[:_OTHERS_MAX]}

    @property
    def total(self) -> int:
        """The number of requests."""
        return self.answers.number(lambda _: True)

    def hits(self) -> dict[str, int]:
        """Return the number of GETs and HEADs that found a value, by source."""
        return {source: self._reads(source) for source in TIERS}

    @property
    def misses(self) -> int:
        """The number of GETs and HEADs that found no value."""
        return self._reads("MISS")

    @property
    def gets(self) -> int:
        """The number of GETs that found a value, or none."""
        return self.answers.number(
            lambda answer: answer[0] == "GET" and answer[2] != ""
        )

    def _reads(self, source: str) -> int:
        return self.answers.number(
            lambda answer: answer[2] == source and answer[0] in READS
        )

    def latencies(self) -> dict[str, Histogram]:
        """Return the durations of requests by verb."""
        return self.answers.merged({verb: verb for verb in VERBS})
