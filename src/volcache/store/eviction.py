"""
The eviction policy: where a value is put, which volume is reclaimed, what of it is kept.

With `eviction = "fifo"` there is one ring, and the oldest volume is reclaimed as a whole.
With "frequency" there are two. Ring P, *probation*, gets the values that were asked for
once: their put followed a miss. Ring M, *main*, gets all others, and copies of the records
that were read again. One-hit files occupy at most ring P (1/8 of the cache). Every copy
costs a write, so copies are paid with *tokens*, which puts and reads earn.

This module is the policy alone: numbers and decisions, no I/O. The index counts hits,
tokens and misses (the native core); `reclaim.py` reclaims. Symbols: C is the
capacity, p = C/8 the share of ring P. The numbers are from simulations of 22 request traces
at four cache sizes; docs/ARCHITECTURE-STORE.md has the results.

    get, hit    tokens += 0.10 * size; the record's hits + 1, at most 3, if more than p/2
                (ring P) or (C-p)/16 (ring M) bytes were appended to its ring after it
    put         into the ring of the key's entry, tombstones included, if it has one;
                else M if the key is in the ghost, or was not asked for lately; else P.
                tokens += 0.30 * size, at most C/8
    victim      the oldest volume of P if P holds more than p, or M has no sealed volume;
                else the oldest of M
    kept of P   hits >= 0, 1, 2, 3 by size, and tokens >= size; the others go to the ghost
    kept of M   hits >= 1, 1, 2, 3 by size (1, 2, 3, 3 if tokens < C/16), the same; hits - 1
    by size     the first number for a record below 0.35 (P) or 1/3 (M) of the mean size,
                the second below 1.5 or 0.75, the third below 4 or 1.5, else the last

The rule that a value goes to the ring of the record that it replaces keeps all records of a
key in one ring, except while a volume of P is reclaimed. Therefore the order of the volumes
in each ring tells which record of a key is the newest: a start replays P, then M.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from volcache.store.format import Ring

Eviction = Literal["fifo", "frequency"]

# Two are written, one is reclaimed, and one is free for copies.
FREQUENCY_VOLUMES_MIN: Final = 4
# Below, the policy is worse than S3-FIFO, because it evicts a volume at a time.
VOLUMES_ADVISED: Final = 32
# With at least so many volumes: percent of additional misses.
_COSTS: Final = ((16, "1 to 4"), (10, "4 to 8"), (FREQUENCY_VOLUMES_MIN, "more than 8"))

HITS_MAX: Final = 3
_WRITE_RATE: Final = 0.30
_PROBATION_SHARE: Final = 8  # p = C / 8
_TOKENS_SHARE: Final = 8  # tokens are at most C / 8
# By ring: a record below one of these multiples of the mean size needs so many hits.
_SIZE_LIMITS: Final = ((1 / 3, 0.75, 1.5), (0.35, 1.5, 4.0))
_PROBATION_HITS: Final = (0, 1, 2, 3)
_MAIN_HITS: Final = ((1, 1, 2, 3), (1, 2, 3, 3))  # the second with few tokens


class Rates(NamedTuple):
    """How the index counts hits and tokens."""

    hit_rate: float  # tokens for each byte of a record that is read
    write_rate: float  # tokens for each byte of a record that is put
    tokens_max: float
    # Reads count as hits when so many bytes have been appended after the record, by ring.
    skip: tuple[int, int]


class Thresholds(NamedTuple):
    """Which records of a volume are copied."""

    # A record of a size below limits[i], and not below limits[i - 1], needs needs[i] hits;
    # one that is below none of them needs needs[-1].
    limits: tuple[float, ...]
    needs: tuple[int, ...]
    hits_taken: int  # that a copy has less, but not below 0
    is_probation: bool  # what is dropped goes into the ghost


class Frequency:
    """The policy "frequency" for one capacity."""

    def __init__(self, capacity: int, reinsert_reads: float) -> None:
        """
        Compute its numbers.

        Args:
            capacity: Bytes of all volumes.
            reinsert_reads: Tokens for each byte that is read, 0 to 1. With 0, the bytes
                written are at most 1.3 times those that are put.
        """
        self.capacity = capacity
        self.probation_max = capacity // _PROBATION_SHARE
        main = capacity - self.probation_max
        self.rates = Rates(
            reinsert_reads,
            _WRITE_RATE,
            capacity / _TOKENS_SHARE,
            (main // 16, self.probation_max // 2),
        )

    def resized(self, capacity: int) -> Frequency:
        """Return the policy for another capacity; the index goes on as it was."""
        return Frequency(capacity, self.rates.hit_rate)

    def victim(self, probation_bytes: int, *, has_sealed_main: bool) -> Ring:
        """Return the ring whose oldest sealed volume is reclaimed next."""
        if probation_bytes > self.probation_max or not has_sealed_main:
            return Ring.PROBATION
        return Ring.MAIN

    def thresholds(self, ring: Ring, tokens: float, mean: float) -> Thresholds:
        """
        Return which records of a volume are worth a copy now.

        Args:
            ring: Of the volume.
            tokens: That there are.
            mean: Size of a live record.
        """
        limits = tuple(limit * mean for limit in _SIZE_LIMITS[ring])
        if ring is Ring.PROBATION:
            return Thresholds(limits, _PROBATION_HITS, HITS_MAX, is_probation=True)
        needs = _MAIN_HITS[tokens < self.rates.tokens_max / 2]
        return Thresholds(limits, needs, 1, is_probation=False)


def cost_of_few(volumes: int) -> str:
    """Return what it costs to have fewer than `VOLUMES_ADVISED` volumes, as text."""
    if volumes < FREQUENCY_VOLUMES_MIN:
        return "the oldest files are evicted, whether they are used or not"
    percent = next(percent for least, percent in _COSTS if volumes >= least)
    return f"{percent} % more misses than with 64 volumes of the same capacity"


def make_policy(
    eviction: Eviction, reinsert_reads: float, volume_size: int, volume_num: int
) -> Frequency | None:
    """Return the policy for the volumes of a store; None for "fifo"."""
    if eviction == "fifo" or volume_num < FREQUENCY_VOLUMES_MIN:
        return None
    return Frequency(volume_size * volume_num, reinsert_reads)
