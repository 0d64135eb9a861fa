"""The eviction policy: its numbers, its decisions, and the table of seen keys."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest

from support.tables import each_row
from volcache.store.eviction import (
    FREQUENCY_VOLUMES_MIN,
    HITS_MAX,
    MISSED_KEYS,
    VOLUMES_ADVISED,
    Frequency,
    Ghost,
    cost_of_few,
    make_policy,
)
from volcache.store.format import Ring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from volcache.store.eviction import Eviction

CAPACITY = 64_000
MEAN = 4096.0
WAYS = 8
# Sizes at the limits of the term for the size, and what it is from there on.
STEPS = [(1 / 1024, -2), (1 / 64, -1), (1 / 4, 0), (4, 1), (64, 2)]


@pytest.fixture
def policy() -> Frequency:
    """The policy for 64,000 bytes."""
    return Frequency(CAPACITY, 0.1)


# --- Numbers -----------------------------------------------------------------------


def test_probation_may_hold_an_eighth(policy: Frequency) -> None:
    """The rest is for ring main."""
    assert policy.probation_max == CAPACITY // 8


def test_rates_are_those_of_the_description(policy: Frequency) -> None:
    """The ages before which reads are no hits are shares of the two rings."""
    rates = policy.rates

    assert (rates.hit_rate, rates.write_rate) == (0.1, 0.3)
    assert rates.tokens_max == CAPACITY / 8
    assert rates.skip[Ring.MAIN] == (CAPACITY - CAPACITY // 8) // 16
    assert rates.skip[Ring.PROBATION] == CAPACITY // 16


def test_without_tokens_for_reads_only_puts_earn_some() -> None:
    """Then at most 1.3 bytes are written for each one that is put."""
    rates = Frequency(CAPACITY, 0).rates

    assert (rates.hit_rate, rates.write_rate) == (0, 0.3)


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


@pytest.mark.parametrize(
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
    policy: Frequency, probation_bytes: int, ring: Ring, *, has_sealed_main: bool
) -> None:
    """Or if ring main has nothing that could be reclaimed."""
    assert policy.victim(probation_bytes, has_sealed_main=has_sealed_main) is ring


# --- Which records -----------------------------------------------------------------


def needed(base: int, size: float) -> int:
    """Return the hits that a size needs, as the description says it."""
    return base + round(0.5 * math.log(size / MEAN, 4))


@pytest.mark.parametrize("ring", list(Ring))
@pytest.mark.parametrize("share", [0.49, 0.5, 1])
def test_need_follows_the_size(policy: Frequency, ring: Ring, share: float) -> None:
    """A quarter of the mean size needs one hit less, four times the size one more."""
    tokens = policy.rates.tokens_max * share
    terms = policy.terms(ring, tokens, MEAN)

    for power in range(-23, 24):
        size = MEAN * 4 ** (power / 4 + 0.01)
        if not 4**-7 < size / MEAN < 4**5:
            continue  # Beyond, one step more changes nothing.
        if ring is Ring.PROBATION:
            assert terms.need(size) == needed(1, size), power
        else:
            base = 2 if share >= 0.5 else 3
            assert terms.need(size) == min(max(needed(base, size), 1), HITS_MAX), power


@pytest.mark.parametrize(("factor", "more"), STEPS)
def test_need_rises_exactly_at_the_limits(
    policy: Frequency, factor: float, more: int
) -> None:
    """A size at a limit belongs to the larger ones."""
    terms = policy.terms(Ring.PROBATION, 0, MEAN)

    assert terms.need(MEAN * factor) == 1 + more
    assert terms.need(math.nextafter(MEAN * factor, 0)) == more


def test_small_records_of_probation_need_no_hit(policy: Frequency) -> None:
    """Those of less than a quarter of the mean size are copied if there are tokens."""
    terms = policy.terms(Ring.PROBATION, 0, MEAN)

    assert terms.need(MEAN / 4 - 1) <= 0
    assert terms.need(MEAN / 4) == 1
    assert terms.need(64 * MEAN) == HITS_MAX


def test_ring_main_needs_at_least_one_hit_and_never_more_than_there_are(
    policy: Frequency,
) -> None:
    """For all sizes, with few tokens and with many."""
    for tokens in (0.0, policy.rates.tokens_max):
        needs = policy.terms(Ring.MAIN, tokens, MEAN).needs
        assert set(needs) <= {1, 2, 3}
        assert list(needs) == sorted(needs)
        assert (needs[0], needs[-1]) == (1, HITS_MAX)


def test_ring_main_asks_for_more_when_tokens_are_scarce(policy: Frequency) -> None:
    """Below half of the most that there can be."""
    half = policy.rates.tokens_max / 2

    assert policy.terms(Ring.MAIN, half, MEAN).need(MEAN) == 2
    assert policy.terms(Ring.MAIN, math.nextafter(half, 0), MEAN).need(MEAN) == 3
    assert policy.terms(Ring.PROBATION, 0, MEAN).need(MEAN) == 1


def test_copies_of_probation_begin_without_hits(policy: Frequency) -> None:
    """Those of ring main lose one; what probation drops goes into the ghost."""
    probation = policy.terms(Ring.PROBATION, 0, MEAN)
    main = policy.terms(Ring.MAIN, 0, MEAN)

    assert (probation.hits_taken, probation.is_probation) == (HITS_MAX, True)
    assert (main.hits_taken, main.is_probation) == (1, False)


# --- The ghost ---------------------------------------------------------------------


def key(bucket: int, tag: int) -> int:
    """Return the fingerprint of a key in a bucket."""
    return tag << 33 | bucket


def found(ghost: Ghost, keys: Iterable[int]) -> list[int]:
    """Return the keys that a ghost has."""
    return [one for one in keys if one in ghost]


@each_row(
    ("keys", "buckets"), [(0, 1), (1, 1), (15, 1), (16, 2), (31, 2), (32, 4), (100, 8)]
)
def test_ghost_has_room_for_half_of_the_keys_to_all(keys: int, buckets: int) -> None:
    """The number of buckets is a power of two."""
    ghost = Ghost(keys)
    all_keys = [key(at, tag) for at in range(2 * buckets) for tag in range(1, WAYS + 1)]
    for one in all_keys:
        ghost.add(one)

    # The second half has the tags of the first one, in the same buckets.
    assert found(ghost, all_keys) == all_keys
    for at in range(buckets):
        ghost.add(key(at, 99))
    assert len(found(ghost, all_keys)) == 2 * buckets * (WAYS - 1)


def test_oldest_key_of_a_bucket_leaves_for_the_ninth() -> None:
    """In the order in which they were added; other buckets stay as they are."""
    ghost = Ghost(64)
    other = key(1, 1)
    ghost.add(other)
    keys = [key(0, tag) for tag in range(20)]
    for number, one in enumerate(keys):
        ghost.add(one)
        assert found(ghost, keys) == keys[max(0, number - WAYS + 1) : number + 1]
    assert other in ghost


def test_key_that_is_added_again_keeps_its_place() -> None:
    """A key that is dropped often does not stay longer than its bucket turns."""
    ghost = Ghost(1)
    keys = [key(0, tag) for tag in range(WAYS)]
    for one in keys:
        ghost.add(one)
    ghost.add(keys[0])
    ghost.add(key(0, 100))

    assert found(ghost, keys) == keys[1:]


def test_removed_key_is_gone_once() -> None:
    """And leaves room in its bucket."""
    ghost = Ghost(1)
    keys = [key(0, tag) for tag in range(WAYS)]
    for one in keys:
        ghost.add(one)

    assert ghost.remove(keys[3])
    assert not ghost.remove(keys[3])
    assert keys[3] not in ghost
    ghost.add(key(0, 100))
    assert found(ghost, keys) == keys[:3] + keys[4:]


def test_larger_ghost_still_has_its_keys() -> None:
    """Each is where it is looked for, and leaves when its new bucket has turned."""
    ghost = Ghost(2 * WAYS)
    keys = [key(bucket, tag) for bucket in range(16) for tag in (1, 2)]
    for one in keys[:4]:
        ghost.add(one)

    ghost.resize(16 * WAYS)

    assert found(ghost, keys[:4]) == keys[:4]
    for tag in range(100, 100 + WAYS):
        ghost.add(key(0, tag))
    assert found(ghost, keys[:4]) == keys[2:4]


def test_smaller_ghost_has_the_newest_keys_of_each_bucket() -> None:
    """Two that become one keep half of their keys each."""
    ghost = Ghost(4 * WAYS)
    keys = {at: [key(at, 100 * at + tag) for tag in range(WAYS)] for at in range(4)}
    for tag in range(WAYS):
        for at in range(4):
            ghost.add(keys[at][tag])

    ghost.resize(2 * WAYS)

    for at in range(4):
        assert found(ghost, keys[at]) == keys[at][WAYS // 2 :]
    ghost.resize(1)
    assert sum(len(found(ghost, keys[at])) for at in range(4)) == WAYS


def test_ghost_that_shrinks_to_less_than_an_eighth_keeps_some_keys() -> None:
    """One of each bucket, as far as there is room."""
    ghost = Ghost(64 * WAYS)
    keys = [key(at, at + 1) for at in range(64)]
    for one in keys:
        ghost.add(one)

    ghost.resize(1)

    assert len(found(ghost, keys)) == WAYS


def test_ghost_of_the_same_size_is_not_changed() -> None:
    """A number of keys between two powers of two needs no other table."""
    ghost = Ghost(4 * WAYS)
    keys = [key(at % 4, at) for at in range(32)]
    for one in keys:
        ghost.add(one)

    ghost.resize(7 * WAYS)

    assert found(ghost, keys) == keys


@pytest.mark.slow
def test_few_other_keys_are_taken_for_one_that_was_added() -> None:
    """With full buckets: 8 of 65,536."""
    dice = random.Random(3)  # noqa: S311 - No secret.
    ghost = Ghost(MISSED_KEYS)
    for _ in range(4 * MISSED_KEYS):
        ghost.add(dice.getrandbits(49))

    tries = 200_000
    wrong = sum(dice.getrandbits(49) in ghost for _ in range(tries))

    assert 0.5 < wrong / (tries * WAYS / 65_536) < 1.5
