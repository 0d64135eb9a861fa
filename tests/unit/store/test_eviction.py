"""The eviction policy: its numbers and its decisions."""

from __future__ import annotations

import math
from itertools import product

from support.tables import each_row
from volcache.store.eviction import (
    HITS_MAX,
    VOLUMES_ADVISED,
    Frequency,
    cost_of_few,
)
from volcache.store.format import Ring

MEAN = 4096.0
CAPACITY = 64_000
POLICY = Frequency(CAPACITY, 0.1)


# --- Numbers -----------------------------------------------------------------------


@each_row(
    ("volumes", "cost"),
    [
        (VOLUMES_ADVISED - 1, "1 to 4 %"),
        (16, "1 to 4 %"),
        (15, "4 to 8 %"),
        (10, "4 to 8 %"),
        (9, "more than 8 %"),
        (4, "more than 8 %"),
        (3, "the oldest files are evicted"),
        (2, "the oldest files are evicted"),
    ],
)
def test_few_volumes_cost_misses(volumes: int, cost: str) -> None:
    """The text names the share, or that the policy is not used."""
    assert cost_of_few(volumes).startswith(cost)


# --- Which records -----------------------------------------------------------------


def needed(base: int, size: float) -> int:
    """Return the hits that a size needs, as the description says it."""
    return base + round(0.5 * math.log(size / MEAN, 4))


@each_row(("ring", "share"), product(Ring, (0.49, 0.5, 1)))
def test_need_follows_the_size(ring: Ring, share: float) -> None:
    """A quarter of the mean size needs one hit less, four times the size one more."""
    terms = POLICY.terms(ring, POLICY.rates.tokens_max * share, MEAN)

    for power in range(-23, 24):
        size = MEAN * 4 ** (power / 4 + 0.01)
        if not 4**-7 < size / MEAN < 4**5:
            continue  # Beyond, one step more changes nothing.
        if ring is Ring.PROBATION:
            assert terms.need(size) == needed(1, size), power
        else:
            base = 2 if share >= 0.5 else 3
            assert terms.need(size) == min(max(needed(base, size), 1), HITS_MAX), power


def test_need_rises_exactly_at_the_limits() -> None:
    """A size at a limit belongs to the larger ones."""
    terms = POLICY.terms(Ring.PROBATION, 0, MEAN)

    for more, factor in enumerate((1 / 1024, 1 / 64, 1 / 4, 4, 64), start=-2):
        assert terms.need(MEAN * factor) == 1 + more
        assert terms.need(math.nextafter(MEAN * factor, 0)) == more


def test_copies_of_probation_begin_without_hits() -> None:
    """Those of ring main lose one; what probation drops goes into the ghost."""
    probation = POLICY.terms(Ring.PROBATION, 0, MEAN)
    main = POLICY.terms(Ring.MAIN, 0, MEAN)

    assert (probation.hits_taken, probation.is_probation) == (HITS_MAX, True)
    assert (main.hits_taken, main.is_probation) == (1, False)
