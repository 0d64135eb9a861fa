"""One reclaim: how much is done at a time, where copies go, and what errors do."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast
from unittest import mock

from support.stores import FakeClock, fixed_clock
from support.tables import each_row
from volcache.errors import DamagedRecordError, StoreIOError
from volcache.store import reclaimer as module
from volcache.store.eviction import Frequency
from volcache.store.format import Ring
from volcache.store.index import SHARES, Heat, Step
from volcache.store.reclaimer import Reclaimer
from volcache.store.stats import Fate, StoreStats

if TYPE_CHECKING:
    import pytest

    from volcache.store.eviction import Terms

MIB: Final = 1 << 20
END: Final = 16 * MIB
MEAN: Final = 4096.0
COPY: Final = Fate(copied=1, copied_bytes=MIB)


class FakeVolume:
    """A volume, as far as a reclaim of it or copies to it need one."""

    def __init__(self, seq: int, end: int = 0, ring: Ring = Ring.MAIN) -> None:
        """Have records up to `end`."""
        self.seq, self.id, self.end = seq, seq, end
        self.use = mock.Mock(ring=ring)


class FakeReclaim:
    """Says what the script says, then that it has gone as far as it was to go."""

    def __init__(self, script: list[Step]) -> None:
        """Do the steps of a script; at the end of the volume, be done."""
        self.script = script
        self.searched: list[int] = []
        self.steps: list[tuple[int, int, Any]] = []  # end, bytes to copy, target
        self.terms: list[Terms] = []
        self.unused = 0  # found by each search

    def collect(self, shares: int, terms: Terms) -> Fate:
        """Note how much is searched."""
        self.searched.append(shares)
        self.terms.append(terms)
        return Fate(unused=self.unused)

    def step(
        self, end: int, copy_bytes: int, terms: Terms, target: Any, now_ms: int
    ) -> Step:
        """Note the arguments; return the next step of the script."""
        assert now_ms == FakeClock().now_ms
        self.steps.append((end, copy_bytes, target))
        self.terms.append(terms)
        if self.script:
            step = self.script.pop(0)
            if target is not None:
                target.end += step.fate.copied_bytes
            return step
        return Step("done" if end >= END else "more", Fate())

    @property
    def targets(self) -> list[Any]:
        """Where the copies of each step were to go."""
        return [target for _, _, target in self.steps]


class Bench:
    """A reclaimer with a scripted reclaim."""

    def __init__(
        self,
        script: list[Step] | None = None,
        *,
        ring: Ring = Ring.PROBATION,
        spare: list[FakeVolume] | None = None,
        end: int = END,
    ) -> None:
        self.reclaim = FakeReclaim(script or [])
        self.stats = StoreStats()
        self.tokens = 0.0
        self.volume = FakeVolume(1, end, ring)
        self.target: Any = FakeVolume(2)
        self.spare = spare or []
        self.asked = 0
        self.refused: list[tuple[object, OSError]] = []
        self.policy = Frequency(64 * END, 0.1)
        index = mock.Mock(heat=lambda: Heat(self.tokens))
        with mock.patch.object(module, "make_reclaim", return_value=self.reclaim):
            self.reclaimer = Reclaimer(
                cast("Any", self.volume),
                MEAN,
                index=index,
                fs=mock.Mock(),
                policy=self.policy,
                stats=self.stats,
                clock=fixed_clock(FakeClock()),
                refused=self._refuse,
                more_room=self._more_room,
            )

    def _refuse(self, volume: object, error: OSError) -> StoreIOError:
        self.refused.append((volume, error))
        return StoreIOError("refused")

    def _more_room(self) -> Any:
        self.asked += 1
        return self.spare.pop(0) if self.spare else None

    def search(self) -> Bench:
        """Search the whole index."""
        self.reclaimer.advance(END, self.target)
        assert sum(self.reclaim.searched) == SHARES
        return self


def disk_error(code: int) -> OSError:
    """Return what a disk raises."""
    return OSError(code, os.strerror(code))


def failed(why: Any, code: int = errno.EIO, fate: Fate | None = None) -> Step:
    """Return a step that ended with an error of the disk."""
    return Step(why, fate or Fate(), disk_error(code))


DAMAGED: Final = Step(
    "damaged", Fate(damaged=1), DamagedRecordError("a check failed", 1, 64)
)


# --- How much at a time ------------------------------------------------------------


def test_index_is_searched_before_records_are_looked_at() -> None:
    """All parts of it, a few at a time; the search counts a quarter of the volume."""
    bench = Bench()
    calls = 0
    while sum(bench.reclaim.searched) < SHARES:
        bench.reclaimer.advance(END // 64, bench.target)
        calls += 1

    assert bench.reclaim.steps == []
    assert len(bench.reclaim.searched) == calls
    assert 64 // 4 // 2 <= calls <= 64 // 4
    assert sum(bench.reclaim.searched) == SHARES


def test_small_budget_searches_one_part() -> None:
    """There is always progress, and no part is searched twice."""
    bench = Bench()
    for _ in range(SHARES):
        bench.reclaimer.advance(1, bench.target)

    assert bench.reclaim.searched == [1] * SHARES
    bench.reclaimer.advance(1, bench.target)
    assert len(bench.reclaim.searched) == SHARES
    assert len(bench.reclaim.steps) == 1


def test_each_step_goes_as_far_as_the_budget() -> None:
    """At most to the end of the volume, with at most 1 MiB of copies."""
    bench = Bench().search()
    for _ in range(4):
        bench.reclaimer.advance(5 * MIB, bench.target)

    assert [end // MIB for end, _, _ in bench.reclaim.steps] == [5, 10, 15, 16]
    assert {copied for _, copied, _ in bench.reclaim.steps} == {MIB}
    assert bench.reclaimer.is_drained


def test_reclaim_is_not_over_before_all_was_looked_at() -> None:
    """A step that has copied enough leaves the rest to the next one."""
    script = [Step("more", COPY), Step("more", COPY), Step("done", COPY)]
    bench = Bench(script).search()
    is_drained = []
    for budget in (END, 1, 1):
        bench.reclaimer.advance(budget, bench.target)
        is_drained.append(bench.reclaimer.is_drained)

    assert is_drained == [False, False, True]
    assert bench.stats.fate == Fate(3, 3 * MIB)


@each_row("end", [64, 1000, END])
def test_work_that_is_left_falls_to_nothing(end: int) -> None:
    """And the share that is done rises from 0 to 1."""
    bench = Bench(end=end)
    left = [bench.reclaimer.remaining]
    done = [bench.reclaimer.progress]
    bench.reclaim.script = [Step("more", Fate())] * 8
    while sum(bench.reclaim.searched) < SHARES or bench.reclaim.script:
        bench.reclaimer.advance(end // 8, bench.target)
        left.append(bench.reclaimer.remaining)
        done.append(bench.reclaimer.progress)
    bench.reclaim.script = [Step("done", Fate())]
    bench.reclaimer.advance(end, bench.target)

    assert left[0] == end + end // 4
    assert all(one >= other for one, other in pairwise(left))
    assert (done[0], bench.reclaimer.progress) == (0, 1)
    assert bench.reclaimer.remaining == 0
    assert all(one <= other for one, other in pairwise(done))


def test_finish_does_all_at_once() -> None:
    """What is not searched, then up to 4 MiB of copies."""
    bench = Bench()
    bench.reclaimer.advance(1, bench.target)
    bench.reclaimer.finish(bench.target)

    assert bench.reclaim.searched == [1, SHARES - 1]
    assert bench.reclaim.steps == [(END, 4 * MIB, bench.target)]
    assert bench.reclaimer.is_drained


def test_finish_drops_what_would_take_too_long() -> None:
    """Nothing more is copied, and the reclaim is over."""
    bench = Bench([Step("more", Fate(4, 4 * MIB)), Step("done", Fate(left=9))])
    bench.reclaimer.finish(bench.target)

    assert bench.reclaim.targets == [bench.target, None]
    assert bench.reclaimer.is_drained
    assert bench.stats.fate == Fate(4, 4 * MIB, left=9)


# --- What is kept ------------------------------------------------------------------


@each_row("ring", list(Ring))
def test_terms_are_those_of_the_ring_and_of_the_tokens_there_are(ring: Ring) -> None:
    """Computed again for each step, with the mean size at the beginning."""
    bench = Bench(ring=ring).search()
    bench.tokens = bench.policy.rates.tokens_max
    bench.reclaimer.advance(1, bench.target)

    assert bench.reclaim.terms == [
        bench.policy.terms(ring, 0, MEAN),
        bench.policy.terms(ring, bench.tokens, MEAN),
    ]


def test_what_happens_is_counted() -> None:
    """By the search and by the steps."""
    bench = Bench([Step("more", Fate(2, 100, 3, 4, 5)), Step("done", Fate(unpaid=1))])
    bench.reclaim.unused = 7
    bench.search()
    bench.reclaimer.advance(MIB, bench.target)
    bench.reclaimer.advance(END, bench.target)

    assert bench.stats.fate == Fate(2, 100, 3 + 7, 4 + 1, 5)


# --- Where copies go ---------------------------------------------------------------


def test_volumes_with_copies_are_known_with_the_end_of_the_last_one() -> None:
    """They have to be synced up to there; volumes without copies need not."""
    third: Any = FakeVolume(3)
    script = [Step("full", COPY), Step("more", COPY), Step("done", COPY)]
    bench = Bench(script, spare=[third]).search()
    bench.reclaimer.advance(MIB, bench.target)
    assert bench.reclaimer.targets == {bench.target: MIB, third: MIB}
    bench.target.end += 17  # By puts.
    bench.reclaimer.advance(END, third)

    assert bench.reclaimer.targets == {bench.target: MIB, third: 2 * MIB}


def test_volume_that_was_full_at_once_has_no_copies() -> None:
    """It is not synced for the sake of the reclaim."""
    third: Any = FakeVolume(3)
    script = [Step("full", Fate()), Step("done", COPY)]
    bench = Bench(script, spare=[third]).search()
    bench.reclaimer.advance(END, bench.target)

    assert bench.reclaimer.targets == {third: MIB}


def test_without_more_room_the_rest_is_dropped() -> None:
    """No volume is asked for twice in a step."""
    bench = Bench([Step("full", COPY), Step("done", Fate(left=3))]).search()
    bench.reclaimer.advance(END, bench.target)

    assert bench.reclaim.targets == [bench.target, None]
    assert bench.asked == 1
    assert bench.reclaimer.is_drained


# --- Errors ------------------------------------------------------------------------


def test_after_a_write_that_was_refused_nothing_is_copied() -> None:
    """The log hears of it once; the rest of the volume is dropped."""
    bench = Bench([failed("refused", errno.ENOSPC, COPY), Step("more", Fate(left=1))])
    bench.search()
    bench.reclaimer.advance(MIB, bench.target)
    bench.reclaimer.advance(END, bench.target)

    assert bench.reclaim.targets == [bench.target, None, None]
    [(volume, error)] = bench.refused
    assert volume is bench.target
    assert error.errno == errno.ENOSPC
    assert bench.stats.read_errors == 0
    assert bench.reclaimer.targets == {bench.target: MIB}
    assert bench.reclaimer.is_drained


def test_after_a_refused_write_no_room_is_asked_for() -> None:
    """Finish does not copy either."""
    bench = Bench([failed("refused"), Step("more", Fate())])
    bench.reclaimer.finish(bench.target)

    assert bench.reclaim.targets == [bench.target, None, None]
    assert bench.asked == 0


def test_three_reads_that_were_refused_end_copying() -> None:
    """Each is counted; with two, the next records are still copied."""
    unreadable = failed("unreadable", fate=Fate(unreadable=1))
    bench = Bench([unreadable, unreadable, Step("more", COPY), unreadable]).search()
    bench.reclaimer.advance(MIB, bench.target)
    assert bench.reclaim.targets == [bench.target] * 3
    bench.reclaimer.advance(END, bench.target)

    assert bench.reclaim.targets == [bench.target] * 4 + [None]
    assert bench.stats.read_errors == 3
    assert bench.stats.fate == Fate(1, MIB, unreadable=3)
    assert bench.refused == []


def test_damaged_records_do_not_end_copying(caplog: pytest.LogCaptureFixture) -> None:
    """They are counted and logged."""
    bench = Bench([DAMAGED] * 5 + [Step("done", COPY)]).search()
    bench.reclaimer.advance(END, bench.target)

    assert bench.reclaim.targets == [bench.target] * 6
    assert bench.stats.fate == Fate(1, MIB, damaged=5)
    assert (bench.stats.read_errors, bench.stats.damaged_records) == (0, 0)
    assert caplog.messages[0].startswith("reclaim.damaged count=1 error=")
    assert bench.reclaimer.is_drained
