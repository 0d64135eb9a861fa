"""The eviction policy: its numbers and its decisions."""

from __future__ import annotations

import pytest

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
def test_cost_of_few_volumes_is_the_share_of_misses(volumes: int, cost: str) -> None:
    """The text names the share, or that the policy is not used."""
    assert cost_of_few(volumes).startswith(cost)


# --- Which records -----------------------------------------------------------------


@each_row(
    ("ring", "tokens", "expected"),
    [
        (Ring.PROBATION, 0.0, ((0.35, 1.5, 4), (0, 1, 2, 3), HITS_MAX, True)),
        (Ring.PROBATION, 1.0, ((0.35, 1.5, 4), (0, 1, 2, 3), HITS_MAX, True)),
        (Ring.MAIN, 0.49, ((1 / 3, 0.75, 1.5), (1, 2, 3, 3), 1, False)),
        (Ring.MAIN, 0.5, ((1 / 3, 0.75, 1.5), (1, 1, 2, 3), 1, False)),
    ],
)
def test_thresholds_depend_on_ring_and_tokens(
    ring: Ring, tokens: float, expected: tuple[tuple[float, ...], ...]
) -> None:
    """
    Copies of probation begin without hits, those of main lose one.

    What probation drops goes into the ghost. `tokens`: a share of the most.
    """
    limits, *others = POLICY.thresholds(ring, POLICY.rates.tokens_max * tokens, MEAN)
    assert [limit / MEAN for limit in limits] == pytest.approx(expected[0])
    assert tuple(others) == expected[1:]
