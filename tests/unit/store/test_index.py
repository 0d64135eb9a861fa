"""The index against the model of a plain dict, and its sweep of stale entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcache.store.index import PythonIndex

OLD = 1
NEW = 2


def make_index() -> PythonIndex:
    """Return an index that accepts positions in the volume OLD."""
    index = PythonIndex()
    index.add_volume(OLD)
    return index


def finish_sweep(index: PythonIndex) -> None:
    """Sweep until there is no sweep under way."""
    while index.is_sweeping:
        index.sweep(100)


def test_find_returns_the_position_set_last() -> None:
    """A key has one position, and its superseded record is not live."""
    index = make_index()
    index.set(b"k", OLD, 64, 100)
    index.set(b"k", OLD, 164, 80)

    assert index.find(b"k") == (OLD, 164, 80)
    assert index.find(b"other") is None
    assert index.count == 1
    assert index.live(OLD) == (1, 80)


def test_positions_at_the_limits_are_kept_exactly() -> None:
    """The highest sequence number, offset and size of the format fit an entry."""
    index = PythonIndex()
    seq = 2**47 - 1
    index.add_volume(seq)
    index.set(b"k", seq, 2**40 - 1, 2**32 - 1)

    assert index.find(b"k") == (seq, 2**40 - 1, 2**32 - 1)


def test_key_with_a_tombstone_has_no_position_and_is_deleted() -> None:
    """Until the volume of the tombstone is reclaimed."""
    index = make_index()
    index.set(b"k", OLD, 64, 100)
    index.add_volume(NEW)
    assert not index.is_deleted(b"k")

    index.set_tombstone(b"k", NEW, 64, 65)

    assert index.is_deleted(b"k")
    assert index.find(b"k") is None
    assert not index.is_stale(b"k")
    assert (index.count, index.live(OLD), index.live(NEW)) == (0, (0, 0), (0, 0))
    index.reclaim(OLD)
    assert index.is_deleted(b"k")
    index.reclaim(NEW)
    assert not index.is_deleted(b"k")
    assert not index.is_stale(b"k")


def test_key_is_forgotten_only_at_the_position_named() -> None:
    """Another one has replaced it, or its volume was reclaimed: nothing changes."""
    index = make_index()
    index.set(b"k", OLD, 64, 100)
    assert not index.forget(b"k", OLD, 65)
    assert not index.forget(b"k", NEW, 64)
    assert not index.forget(b"other", OLD, 64)
    assert index.find(b"k") == (OLD, 64, 100)

    assert index.forget(b"k", OLD, 64)

    assert not index.forget(b"k", OLD, 64)
    assert index.is_deleted(b"k")
    assert index.find(b"k") is None
    assert (index.count, index.live(OLD)) == (0, (0, 0))
    index.set(b"k", OLD, 64, 100)
    index.reclaim(OLD)
    assert not index.forget(b"k", OLD, 64)


def test_an_overwritten_key_is_live_in_the_newer_volume_only() -> None:
    """Records and bytes move from one volume to the other."""
    index = make_index()
    index.set(b"k", OLD, 64, 100)
    index.add_volume(NEW)
    index.set(b"k", NEW, 64, 50)

    assert (index.live(OLD), index.live(NEW)) == ((0, 0), (1, 50))
    assert index.count == 1


def test_reclaim_returns_what_was_lost_and_a_sweep_frees_the_memory() -> None:
    """Stale entries are removed in steps; live ones stay."""
    index = make_index()
    for number in range(1000):
        index.set(b"%d" % number, OLD, 64 + number, 70)
    index.add_volume(NEW)
    index.set(b"0", NEW, 64, 50)

    assert index.reclaim(OLD) == (999, 999 * 70)
    assert (index.count, index.stale) == (1, 999)
    index.sweep(100)
    assert 0 < index.stale < 999
    finish_sweep(index)
    assert index.stale == 0
    assert index.find(b"0") == (NEW, 64, 50)
    assert index.find(b"5") is None


def test_one_sweep_step_reads_about_as_many_entries_as_allowed() -> None:
    """A put pays for a bounded number of entries, whatever the number of keys."""
    index = make_index()
    for number in range(20_000):
        index.set(b"%d" % number, OLD, 64, 70)
    index.reclaim(OLD)

    index.sweep(40)

    assert index.stale >= 20_000 - 40


def test_a_sweep_starts_only_when_it_is_worth_reading_the_table() -> None:
    """A volume with few live records costs no sweep."""
    index = make_index()
    index.set(b"stale", OLD, 64, 70)
    index.add_volume(NEW)
    for number in range(100):
        index.set(b"%d" % number, NEW, 64, 70)
    index.reclaim(OLD)

    assert not index.is_sweeping
    assert index.stale == 1


def test_a_sweep_removes_tombstones_of_reclaimed_volumes() -> None:
    """Those of other volumes stay."""
    index = make_index()
    index.add_volume(NEW)
    for key in (b"old", b"new", b"never"):
        index.set(key, OLD, 64, 100)
    index.set_tombstone(b"old", OLD, 164, 67)
    index.set_tombstone(b"new", NEW, 64, 67)
    assert index.reclaim(OLD) == (1, 100)
    assert index.stale == 2
    assert index.is_sweeping

    finish_sweep(index)

    assert index.stale == 0
    assert index.find(b"never") is None
    assert index.is_deleted(b"new")
    assert not index.is_deleted(b"old")


def test_a_key_of_a_reclaimed_volume_can_be_set_before_the_sweep() -> None:
    """The old position is not counted twice."""
    index = make_index()
    index.set(b"k", OLD, 64, 100)
    index.add_volume(NEW)
    index.reclaim(OLD)
    index.set(b"k", NEW, 64, 80)
    assert index.stale == 0
    finish_sweep(index)

    assert index.live(NEW) == (1, 80)
    assert index.count == 1
    assert index.find(b"k") == (NEW, 64, 80)


def test_an_empty_volume_can_be_reclaimed() -> None:
    """Nothing is lost, and no sweep is needed."""
    index = make_index()

    assert index.reclaim(OLD) == (0, 0)
    assert index.reclaim(NEW) == (0, 0)
    assert not index.is_sweeping


KEYS = st.binary(min_size=1, max_size=2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS),
        st.tuples(st.just("set_tombstone"), KEYS),
        st.tuples(st.just("forget"), KEYS),
        st.tuples(st.just("rotate"), st.just(b"")),
        st.tuples(st.just("sweep"), st.just(b"")),
    ),
    max_size=80,
)


class Model:
    """
    A dict, and three volumes of which the oldest is reclaimed.

    The position of a tombstone has the size 0.
    """

    def __init__(self) -> None:
        self.index = PythonIndex()
        self.positions: dict[bytes, tuple[int, int, int]] = {}
        self.volumes = [0]
        self.index.add_volume(self.volumes[0])

    def do(self, number: int, what: str, key: bytes) -> None:
        """Do one step to both, and compare what they return."""
        if what == "set":
            self.positions[key] = (self.volumes[-1], 64 + number, 1 + number)
            self.index.set(key, *self.positions[key])
        elif what == "set_tombstone":
            self.positions[key] = (self.volumes[-1], 64 + number, 0)
            self.index.set_tombstone(key, self.volumes[-1], 64 + number, 65)
        elif what == "forget":
            seq, offset, size = self.positions.get(key, (self.volumes[0], 0, 0))
            assert self.index.forget(key, seq, offset) == (size > 0)
            if size:
                self.positions[key] = (seq, offset, 0)
        elif what == "sweep":
            self.index.sweep(300)
        else:
            self._rotate(number)

    def _rotate(self, number: int) -> None:
        self.volumes.append(number + 1)
        self.index.add_volume(self.volumes[-1])
        if len(self.volumes) > 3:
            oldest = self.volumes.pop(0)
            assert self.index.reclaim(oldest) == self.live(oldest)
            self.positions = {
                key: found
                for key, found in self.positions.items()
                if found[0] != oldest
            }

    def live(self, volume: int) -> tuple[int, int]:
        """Return the number of records in a volume and their size."""
        sizes = [size for seq, _, size in self.positions.values() if seq == volume]
        return len([size for size in sizes if size]), sum(sizes)

    def agrees(self) -> None:
        """Compare everything."""
        sizes = [size for _, _, size in self.positions.values()]
        assert self.index.count == len([size for size in sizes if size])
        for key, position in self.positions.items():
            assert self.index.find(key) == (position if position[2] else None)
            assert self.index.is_deleted(key) == (position[2] == 0)
        for volume in self.volumes:
            assert self.index.live(volume) == self.live(volume)


@pytest.mark.slow
@given(STEPS)
def test_any_history_gives_what_a_dict_gives(steps: list[tuple[str, bytes]]) -> None:
    """Positions, live records and their bytes, before and after a sweep."""
    model = Model()
    for number, (what, key) in enumerate(steps):
        model.do(number, what, key)
    for _ in range(2):
        model.agrees()
        finish_sweep(model.index)
