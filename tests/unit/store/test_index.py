"""The index in memory: the newest position, counts, and reclaim in pieces."""

from __future__ import annotations

from support.stores import unswept
from volcache.store.index import Index, make_seq, pack_position

OLD = make_seq(0, 0)
NEW = make_seq(0, 1)


def make_index() -> Index:
    """Return an index with the life `OLD` begun."""
    index = Index()
    index.begin(OLD)
    return index


def test_the_position_set_last_counts() -> None:
    """A second set replaces the first, in the account as well."""
    index = make_index()
    index.set(b"k", pack_position(OLD, 64, 100))
    index.set(b"k", pack_position(OLD, 164, 70))

    assert index.get(b"k") == pack_position(OLD, 164, 70)
    assert index.count == 1
    assert index.live(OLD) == (1, 70)


def test_a_deleted_key_is_gone() -> None:
    """Delete tells whether the key was there, and takes it out of the account."""
    index = make_index()
    index.set(b"k", pack_position(OLD, 64, 100))

    assert index.delete(b"k")
    assert not index.delete(b"k")
    assert index.get(b"k") is None
    assert index.live(OLD) == (0, 0)


def test_reclaim_tells_what_was_lost_and_counts_it_no_more() -> None:
    """From reclaim on, nothing of the life is counted, swept or not."""
    index = make_index()
    for number in range(10):
        index.set(b"%d" % number, pack_position(OLD, 64 + number, 100))
    index.begin(NEW)
    index.set(b"0", pack_position(NEW, 64, 50))

    assert index.reclaim(OLD) == (9, 900)
    assert index.count == 1
    assert index.live(OLD) == (0, 0)
    assert index.reclaim(OLD) == (0, 0)


def test_sweep_frees_in_pieces_and_keeps_newer_copies() -> None:
    """Each sweep looks at no more keys than it may; a key set since stays."""
    index = make_index()
    for number in range(10):
        index.set(b"%d" % number, pack_position(OLD, 64 + number, 100))
    index.begin(NEW)
    index.set(b"0", pack_position(NEW, 64, 50))
    index.reclaim(OLD)

    index.sweep(4)

    assert unswept(index) == 6
    while index.sweeping:
        index.sweep(4)
    assert dict(index.items()) == {b"0": pack_position(NEW, 64, 50)}
    assert index.get(b"0") == pack_position(NEW, 64, 50)
    assert index.get(b"5") is None


def test_sweeping_over_deleted_keys_works() -> None:
    """A key deleted before its life is reclaimed is no trouble."""
    index = make_index()
    index.set(b"k", pack_position(OLD, 64, 100))
    index.delete(b"k")
    index.reclaim(OLD)

    index.sweep(100)

    assert not index.sweeping


def test_a_key_of_a_reclaimed_life_can_be_set_again_before_the_sweep() -> None:
    """The old position is not counted twice when the key returns first."""
    index = make_index()
    index.set(b"k", pack_position(OLD, 64, 100))
    index.begin(NEW)
    index.reclaim(OLD)
    index.set(b"k", pack_position(NEW, 64, 80))
    index.sweep(100)

    assert index.live(NEW) == (1, 80)
    assert index.count == 1
    assert index.get(b"k") == pack_position(NEW, 64, 80)


def test_memory_goes_with_the_keys_and_not_with_the_puts() -> None:
    """A key overwritten a thousand times in a life is remembered once for it."""
    index = make_index()
    for number in range(1000):
        index.set(b"k", pack_position(OLD, 64 + number, 70))
    index.begin(NEW)
    index.set(b"k", pack_position(NEW, 64, 70))
    index.reclaim(OLD)
    index.reclaim(NEW)

    assert unswept(index) == 2


def test_an_empty_life_is_swept_too() -> None:
    """A life without a key does not stay in the queue for ever."""
    index = make_index()
    index.reclaim(OLD)
    index.sweep(1)

    assert not index.sweeping
