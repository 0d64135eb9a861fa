"""The eviction policy: its numbers and its decisions."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

from support.tables import each_row
from volcache.store.eviction import (
    FREQUENCY_VOLUMES_MIN,
    HITS_MAX,
    VOLUMES_ADVISED,
    Frequency,
    cost_of_few,
    make_policy,
)
from volcache.store.format import Ring

if TYPE_CHECKING:
    from volcache.store.eviction import Eviction

MEAN = 4096.0
CAPACITY = 64_000
POLICY = Frequency(CAPACITY, 0.1)
# Sizes at the limits of the term for the size, and what it is from there on.
STEPS = [(1 / 1024, -2), (1 / 64, -1), (1 / 4, 0), (4, 1), (64, 2)]


# --- Numbers -----------------------------------------------------------------------


def test_rates_are_those_of_the_description() -> None:
    """The ages before which reads are no hits are shares of the two rings."""
    rates = POLICY.rates

    assert POLICY.probation_max == CAPACITY // 8
    assert (rates.hit_rate, rates.write_rate) == (0.1, 0.3)
    assert rates.tokens_max == CAPACITY / 8
    assert rates.skip[Ring.MAIN] == (CAPACITY - CAPACITY // 8) // 16
    assert rates.skip[Ring.PROBATION] == CAPACITY // 16
    # Without tokens for reads, puts earn as many.
    assert Frequency(CAPACITY, 0).rates[:2] == (0, 0.3)


@each_row(
    ("eviction", "volume_num", "is_frequency"),
    [
        ("fifo", 64, False),
        ("frequency", FREQUENCY_VOLUMES_MIN - 1, False),
        ("frequency", FREQUENCY_VOLUMES_MIN, True),
        ("frequency", 64, True),
    ],
)
def test_policy_needs_four_volumes(
    eviction: Eviction, volume_num: int, *, is_frequency: bool
) -> None:
    """With fewer, "frequency" is "fifo"."""
    policy = make_policy(
        eviction, volume_size=1000, volume_num=volume_num, reinsert_reads=0.5
    )

    assert (policy is not None) == is_frequency
    if policy is not None:
        assert policy.capacity == 1000 * volume_num
        assert policy.rates.hit_rate == 0.5


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


# --- Which volume ------------------------------------------------------------------


@each_row(
    ("probation_bytes", "has_sealed_main", "ring"),
    [
        (CAPACITY // 8 + 1, True, Ring.PROBATION),
        (CAPACITY // 8, True, Ring.MAIN),
        (0, True, Ring.MAIN),
        (0, False, Ring.PROBATION),
        (CAPACITY, False, Ring.PROBATION),
    ],
)
def test_victim_is_of_probation_if_that_holds_too_much(
    probation_bytes: int, ring: Ring, *, has_sealed_main: bool
) -> None:
    """Or if ring main has nothing that could be reclaimed."""
    assert POLICY.victim(probation_bytes, has_sealed_main=has_sealed_main) is ring


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


@each_row(("factor", "more"), STEPS)
def test_need_rises_exactly_at_the_limits(factor: float, more: int) -> None:
    """A size at a limit belongs to the larger ones."""
    terms = POLICY.terms(Ring.PROBATION, 0, MEAN)

    assert terms.need(MEAN * factor) == 1 + more
    assert terms.need(math.nextafter(MEAN * factor, 0)) == more


def test_ring_main_needs_at_least_one_hit_and_never_more_than_there_are() -> None:
    """For all sizes, with few tokens and with many."""
    for tokens in (0.0, POLICY.rates.tokens_max):
        needs = POLICY.terms(Ring.MAIN, tokens, MEAN).needs
        assert set(needs) <= {1, 2, 3}
        assert list(needs) == sorted(needs)
        assert (needs[0], needs[-1]) == (1, HITS_MAX)


def test_ring_main_asks_for_more_when_tokens_are_scarce() -> None:
    """Below half of the most that there can be."""
    half = POLICY.rates.tokens_max / 2

    assert POLICY.terms(Ring.MAIN, half, MEAN).need(MEAN) == 2
    assert POLICY.terms(Ring.MAIN, math.nextafter(half, 0), MEAN).need(MEAN) == 3
    assert POLICY.terms(Ring.PROBATION, 0, MEAN).need(MEAN) == 1


def test_copies_of_probation_begin_without_hits() -> None:
    """Those of ring main lose one; what probation drops goes into the ghost."""
    probation = POLICY.terms(Ring.PROBATION, 0, MEAN)
    main = POLICY.terms(Ring.MAIN, 0, MEAN)

    assert (probation.hits_taken, probation.is_probation) == (HITS_MAX, True)
    assert (main.hits_taken, main.is_probation) == (1, False)
