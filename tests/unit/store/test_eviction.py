"""The eviction policy: its numbers and its decisions."""

from __future__ import annotations

import math

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


@each_row(
    ("ring", "tokens", "limits", "needs"),
    [
        (Ring.PROBATION, 0.0, (0.35, 1.5, 4), (0, 1, 2, 3)),
        (Ring.PROBATION, 1.0, (0.35, 1.5, 4), (0, 1, 2, 3)),
        (Ring.MAIN, 0.49, (1 / 3, 0.75, 1.5), (1, 2, 3, 3)),
        (Ring.MAIN, 0.5, (1 / 3, 0.75, 1.5), (1, 1, 2, 3)),
    ],
)
def test_need_rises_at_each_limit(
    ring: Ring, tokens: float, limits: tuple[float, ...], needs: tuple[int, ...]
) -> None:
    """A size at a limit belongs to the larger ones. `tokens`: a share of the most."""
    thresholds = POLICY.thresholds(ring, POLICY.rates.tokens_max * tokens, MEAN)

    assert thresholds.need(0) == needs[0]
    for at, limit in enumerate(limits):
        assert thresholds.need(math.nextafter(MEAN * limit, 0)) == needs[at]
        assert thresholds.need(MEAN * limit) == needs[at + 1]
    assert thresholds.need(MEAN * 1e9) == needs[-1]


def test_copies_of_probation_begin_without_hits() -> None:
    """Those of ring main lose one; what probation drops goes into the ghost."""
    probation = POLICY.thresholds(Ring.PROBATION, 0, MEAN)
    main = POLICY.thresholds(Ring.MAIN, 0, MEAN)

    assert (probation.hits_taken, probation.is_probation) == (HITS_MAX, True)
    assert (main.hits_taken, main.is_probation) == (1, False)
