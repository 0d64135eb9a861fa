"""versions.py: ids of items, and HOT.txt over restarts."""

from __future__ import annotations

import pytest

from support.journal import MemoryJournal
from volcache.hot.versions import KeyVersions


def open_versions(journal: MemoryJournal, **options: object) -> KeyVersions:
    """Open the journal as the next process does."""
    store_id = options.get("store_id", 7)
    boot_id = options.get("boot_id", "boot")
    assert isinstance(store_id, int)
    assert isinstance(boot_id, str)
    return KeyVersions(journal, store_id=store_id, boot_id=boot_id)


def test_key_that_was_not_promoted_has_no_item() -> None:
    """A miss or a put of it needs no call."""
    versions = open_versions(MemoryJournal())
    assert not versions.may_hold(b"k")
    versions.record_promotion(b"k")

    assert versions.may_hold(b"k")
    assert not versions.may_hold(b"other")


def test_promotions_survive_a_restart() -> None:
    """The epoch continues with the same ids and the same promoted keys."""
    journal = MemoryJournal()
    versions = open_versions(journal)
    for number in range(100):
        versions.record_promotion(b"%d" % number)
    again = open_versions(journal)

    assert again.item_id(b"k") == versions.item_id(b"k")
    assert all(again.may_hold(b"%d" % number) for number in range(100))


def test_id_of_an_invalidated_key_is_never_used_again() -> None:
    """However often it is invalidated, and after any restart."""
    journal = MemoryJournal()
    versions = open_versions(journal)
    seen = set()
    for _ in range(5):
        versions.record_promotion(b"k")
        versions.record_promotion(b"k")
        assert versions.may_hold(b"k")
        seen.add(versions.item_id(b"k"))
        versions.invalidate(b"k")
        assert not versions.may_hold(b"k")
        assert versions.item_id(b"k") not in seen
        versions = open_versions(journal)
        assert versions.item_id(b"k") not in seen
        assert not versions.may_hold(b"k")

    assert len(seen) == 5
    assert journal.data.count(b"\n") == 1 + 5 + 5


def test_invalidation_of_a_key_that_was_not_promoted_writes_nothing() -> None:
    """A put of a key that is not hot costs no write."""
    journal = MemoryJournal()
    versions = open_versions(journal)
    before = journal.data
    versions.invalidate(b"k")

    assert journal.data == before


def test_new_epoch_changes_all_ids() -> None:
    """No item stored before is versions, in this process or the next."""
    journal = MemoryJournal()
    versions = open_versions(journal)
    versions.record_promotion(b"k")
    item_id = versions.item_id(b"k")
    versions.begin_epoch()

    for later in (versions, open_versions(journal)):
        assert later.item_id(b"k") != item_id
        assert not later.may_hold(b"k")


@pytest.mark.parametrize("options", [{"store_id": 8}, {"boot_id": "another"}])
def test_other_store_or_boot_begins_a_new_epoch(options: dict[str, object]) -> None:
    """The items belong to another store, or appended lines may be lost."""
    journal = MemoryJournal()
    item_id = open_versions(journal).item_id(b"k")

    assert open_versions(journal, **options).item_id(b"k") != item_id


def test_torn_last_line_is_removed() -> None:
    """Its item was not sent. The next line replaces it."""
    journal = MemoryJournal()
    open_versions(journal).record_promotion(b"a")
    whole = len(journal.data)
    open_versions(journal).record_promotion(b"b")
    line = journal.data[whole:]
    for length in range(len(line)):
        journal.data = journal.data[:whole] + line[:length]
        versions = open_versions(journal)
        assert versions.may_hold(b"a")
        assert not versions.may_hold(b"b")
        versions.record_promotion(b"c")
        assert open_versions(journal).may_hold(b"c")


def test_flipped_bit_begins_a_new_epoch_or_removes_the_last_line() -> None:
    """No promoted key is forgotten while its item may be versions."""
    journal = MemoryJournal()
    versions = open_versions(journal)
    versions.record_promotion(b"a")
    versions.record_promotion(b"b")
    item_id, good = versions.item_id(b"a"), journal.data

    for bit in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        versions = open_versions(MemoryJournal(bytes(damaged)))
        if versions.item_id(b"a") == item_id:
            assert versions.may_hold(b"a")
            assert versions.may_hold(b"b") or b"\n" not in damaged[-1:]


def test_full_journal_begins_a_new_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """File and memory are bounded; the last key is promoted in the new epoch."""
    monkeypatch.setattr("volcache.hot.versions.LINES_MAX", 10)
    journal = MemoryJournal()
    versions = open_versions(journal)
    for number in range(11):
        versions.record_promotion(b"%d" % number)

    assert versions.may_hold(b"10")
    assert not versions.may_hold(b"0")
    assert journal.data.count(b"\n") == 2


def test_broken_journal_records_no_promotion() -> None:
    """The error is raised before the item is sent."""
    journal = MemoryJournal()
    versions = open_versions(journal)
    journal.is_broken = True

    with pytest.raises(OSError, match="broken"):
        versions.record_promotion(b"k")
    assert not versions.may_hold(b"k")
    with pytest.raises(OSError, match="broken"):
        versions.begin_epoch()
