"""What may be believed after a restart, and which keys may have an item."""

from __future__ import annotations

import pytest

from support.journal import MemoryJournal
from volcache.hot.versions import KeyVersions


def open_names(journal: MemoryJournal, **options: object) -> KeyVersions:
    """Open the journal as the next process does."""
    store_id = options.get("store_id", 7)
    boot_id = options.get("boot_id", "boot")
    assert isinstance(store_id, int)
    assert isinstance(boot_id, str)
    return KeyVersions(journal, store_id=store_id, boot_id=boot_id)


def test_a_key_never_promoted_certainly_has_no_item() -> None:
    """So a miss or a put need ask nobody."""
    found = open_names(MemoryJournal())
    assert not found.may_hold(b"k")
    found.record_promotion(b"k")

    assert found.may_hold(b"k")
    assert not found.may_hold(b"other")


def test_promotions_are_remembered_over_a_restart() -> None:
    """The epoch goes on, its names are the same, and so are the keys."""
    journal = MemoryJournal()
    found = open_names(journal)
    for number in range(100):
        found.record_promotion(b"%d" % number)
    again = open_names(journal)

    assert again.name(b"k") == found.name(b"k")
    assert all(again.may_hold(b"%d" % number) for number in range(100))


def test_an_invalidated_key_has_a_new_name_for_good() -> None:
    """No old name ever returns, however often and after whatever restart."""
    journal = MemoryJournal()
    found = open_names(journal)
    seen = set()
    for _ in range(5):
        found.record_promotion(b"k")
        found.record_promotion(b"k")
        assert found.may_hold(b"k")
        seen.add(found.name(b"k"))
        found.invalidate(b"k")
        assert not found.may_hold(b"k")
        assert found.name(b"k") not in seen
        found = open_names(journal)
        assert found.name(b"k") not in seen
        assert not found.may_hold(b"k")

    assert len(seen) == 5
    assert journal.data.count(b"\n") == 1 + 5 + 5


def test_what_was_never_promoted_needs_no_line_to_be_invalidated() -> None:
    """A put of a key that is not hot writes nothing."""
    journal = MemoryJournal()
    found = open_names(journal)
    before = journal.data
    found.invalidate(b"k")

    assert journal.data == before


def test_a_new_epoch_has_other_names_and_no_promotions() -> None:
    """Nothing stored before is found, in this process or the next."""
    journal = MemoryJournal()
    found = open_names(journal)
    found.record_promotion(b"k")
    name = found.name(b"k")
    found.begin()

    for names_ in (found, open_names(journal)):
        assert names_.name(b"k") != name
        assert not names_.may_hold(b"k")


@pytest.mark.parametrize("options", [{"store_id": 8}, {"boot_id": "another"}])
def test_another_store_or_boot_begins_a_new_epoch(options: dict[str, object]) -> None:
    """The items are not ours, or what was appended may not have survived."""
    journal = MemoryJournal()
    name = open_names(journal).name(b"k")

    assert open_names(journal, **options).name(b"k") != name


def test_a_torn_last_line_is_cut_off() -> None:
    """It was never sent; the lines before it count, and the next one takes its place."""
    journal = MemoryJournal()
    open_names(journal).record_promotion(b"a")
    whole = len(journal.data)
    open_names(journal).record_promotion(b"b")
    line = journal.data[whole:]
    for length in range(len(line)):
        journal.data = journal.data[:whole] + line[:length]
        found = open_names(journal)
        assert found.may_hold(b"a")
        assert not found.may_hold(b"b")
        found.record_promotion(b"c")
        assert open_names(journal).may_hold(b"c")


def test_every_flipped_bit_begins_a_new_epoch_or_cuts_the_last_line() -> None:
    """A key is never forgotten in silence while its item may be found."""
    journal = MemoryJournal()
    found = open_names(journal)
    found.record_promotion(b"a")
    found.record_promotion(b"b")
    name, good = found.name(b"a"), journal.data

    for bit in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        found = open_names(MemoryJournal(bytes(damaged)))
        if found.name(b"a") == name:
            assert found.may_hold(b"a")
            assert found.may_hold(b"b") or b"\n" not in damaged[-1:]


def test_a_full_epoch_makes_room_by_beginning_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """File and memory are bounded; the key that was too many is in the new epoch."""
    monkeypatch.setattr("volcache.hot.versions.LINES_MAX", 10)
    journal = MemoryJournal()
    found = open_names(journal)
    for number in range(11):
        found.record_promotion(b"%d" % number)

    assert found.may_hold(b"10")
    assert not found.may_hold(b"0")
    assert journal.data.count(b"\n") == 2


def test_a_journal_that_cannot_be_written_promotes_nothing() -> None:
    """The error comes before the item is sent."""
    journal = MemoryJournal()
    found = open_names(journal)
    journal.is_broken = True

    with pytest.raises(OSError, match="broken"):
        found.record_promotion(b"k")
    assert not found.may_hold(b"k")
    with pytest.raises(OSError, match="broken"):
        found.begin()
