"""
The native core: what it accepts, and where histories of a store hardly ever lead.

An index is used by itself here: positions that a store sets only for two keys with one
fingerprint, and keys that share a place in a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from google_crc32c import value as crc32c

from support.stores import BareProcess, UnsyncedFileSystem, counted_size, open_store
from support.tables import each_row
from volcache.store import Store
from volcache.store._core import _native
from volcache.store.eviction import HITS_MAX, Rates, Thresholds
from volcache.store.files import SyncFailedError
from volcache.store.format import (
    RECORD_OVERHEAD_BYTES,
    VOLUME_HEADER_BYTES,
    Ring,
    VolumeUse,
)
from volcache.store.index import SHARES, Found, Run
from volcache.store.index_format import (
    close_block,
    decode_entries,
    decode_key,
    encode_entries,
)
from volcache.store.volume import Volume

FS: Final = UnsyncedFileSystem()
VOLUME_BYTES: Final = 2**24
# One hit is needed, whatever the size.
THRESHOLDS: Final = Thresholds((1.0,) * 3, (1,) * 4, HITS_MAX, is_probation=True)
WAYS: Final = 8
CHECKSUM_BYTES: Final = 4
SEQ: Final = 3
USE: Final = VolumeUse(1, 1, Ring.MAIN, 1)
NOW_US: Final = 1_790_000_000_000_000


def make_index(volumes: int = 4) -> _native.Index:
    """Return an index without volumes."""
    return _native.Index(FS, bytes(16), volume_bytes=VOLUME_BYTES, volumes=volumes)


@pytest.fixture
def index() -> Iterator[Any]:
    """An index with one volume, SEQ."""
    made = make_index()
    made.add_volume(SEQ)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store whose active volume the tests bind to an index of their own."""
    made = open_store(tmp_path, fs=BareProcess(FS))
    yield made
    made.close()


def bind(index: Any, store: Store) -> Any:
    """Let SEQ be the active volume of a store; return this."""
    active = store._log.rings.last_started
    index.bind_volume(SEQ, active.fd, active.id, active.salts)
    return active


def make_volume(fd: int, use: VolumeUse) -> Volume:
    """Return a volume without an index file."""
    return Volume(FS, fd, use=use, store_id=1)


def put_at(index: Any, key: bytes, seq: int, offset: int, size: int) -> None:
    """Put a record of a size at an offset."""
    fd = os.open("/dev/null", os.O_WRONLY)
    volume = make_volume(fd, VolumeUse(seq, seq, Ring.MAIN, 0))
    volume.end = offset
    volume.set_room(offset + size, offset + size)
    value = bytes(size - RECORD_OVERHEAD_BYTES - len(key))
    fields = key, value, b"", b"", b"", 1, 0, 0
    assert index.put(*fields, volume=volume) is not None
    os.close(fd)


def put(index: Any, store: Store, key: bytes, value: bytes = b"value") -> Any:
    """Put a value, and let the index know its position; return the record."""
    record = store.put(key, value)
    bind(index, store)
    index.set(key, SEQ, record.offset, record.size)
    return record


# --- What is accepted --------------------------------------------------------------


@each_row("volumes", [1, 2, 3, 5])
def test_add_volume_beyond_what_was_promised_is_refused(volumes: int) -> None:
    """Until one is reclaimed; a volume that is there already is no error."""
    index = make_index(volumes)
    count = 0
    with suppress(MemoryError):
        while count < 99:
            index.add_volume(count)
            count += 1
    assert volumes <= count < 99
    with pytest.raises(MemoryError, match="too many volumes"):
        index.add_volume(count)
    index.add_volume(0)
    index.reclaim(0)
    index.add_volume(1000)
    index.set(b"k", 1000, 64, 70)
    assert index.find(b"k") == (1000, 64, 72)


def test_volume_not_added_is_an_error() -> None:
    """Nothing is set, and the index still works."""
    index = make_index()
    with pytest.raises(KeyError):
        index.set(b"k", 7, 64, 70)
    with pytest.raises(KeyError):
        index.bind_volume(7, 0, 0, [(0, 1)])
    with pytest.raises(KeyError):
        index.load(7, 0, [])
    assert index.find(b"k") is None
    assert index.reclaim(7) == (0, 0)


@each_row(
    ("offset", "size"),
    [(0, 70), (VOLUME_BYTES, 70), (2**40, 70), (2**63, 70), (64, 0), (64, 2**32)],
)
def test_set_impossible_position_sets_nothing(offset: int, size: int) -> None:
    """A file may name any numbers; the entry that the key had may stay or not."""
    index = make_index()
    index.add_volume(1)
    index.set(b"other", 1, 64, 70)
    index.set(b"k", 1, offset, size)
    assert index.find(b"k") is None
    assert index.find(b"other") == (1, 64, 72)
    assert index.count == 1


@each_row("name", ["find", "is_deleted", "read", "is_stale"])
def test_key_not_bytes_is_refused(name: str) -> None:
    """None and text are errors, not another key."""
    for key in (None, "k", 5, bytearray(b"k")):
        with pytest.raises(TypeError):
            getattr(make_index(), name)(key)


def append(volume: Volume, key: bytes, value: bytes, *types: bytes) -> None:
    """Put a record into a volume with 1 MiB of room."""
    volume.set_room(1 << 20, 1 << 20)
    index = make_index()
    index.add_volume(volume.seq)
    first, second, third = types or (b"", b"", b"")
    index.put(key, value, first, second, third, 1, 0, 0, volume=volume)


def test_put_key_or_stored_header_of_wrong_length_is_refused() -> None:
    """Nothing is written."""
    fd = os.memfd_create("volume")
    volume = make_volume(fd, USE)
    for key in (b"", bytes(65_536), bytes(100_000)):
        with pytest.raises(ValueError, match="1 to 65,535"):
            append(volume, key, b"v")
    for lengths in ((256, 0, 0), (0, 256, 0), (70_000, 1, 0), (0, 0, 256)):
        with pytest.raises(ValueError, match="at most 255"):
            append(volume, b"k", b"v", *map(bytes, lengths))
    assert (volume.end, volume.lines) == (64, b"")
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_put_into_a_closed_file_is_an_error_of_the_disk() -> None:
    """For a write; and the bare functions of `os` are called without Python."""
    volume = make_volume(-1, USE)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        append(volume, b"k", b"v")
    assert not isinstance(caught.value, SyncFailedError)
    assert (volume.end, volume.lines) == (64, b"")


# --- Reading -----------------------------------------------------------------------


def test_read_record_of_another_key_finds_nothing(index: Any, store: Store) -> None:
    """Nor that of a longer key which begins with the one asked for."""
    record = put(index, store, b"longer key")
    for key in (b"longer", b"longer kez", b"longer key 2", b"x"):
        index.set(key, SEQ, record.offset, record.size)
        assert index.read(key) is None
    assert index.read(b"longer key") == tuple(record)


def test_read_record_of_a_deletion_finds_nothing(index: Any, store: Store) -> None:
    """An entry that leads to one is wrong."""
    put(index, store, b"k")
    active = bind(index, store)
    begin = active.end
    store.delete(b"k")
    index.set(b"k", SEQ, begin, active.end - begin)

    assert index.read(b"k") is None


def test_read_record_of_another_place_finds_nothing(index: Any, store: Store) -> None:
    """Of another version, salt, offset or volume, with right checksums."""
    record = put(index, store, b"k")
    fd = bind(index, store).fd
    right = os.pread(fd, record.size, record.offset)
    checked = record.size - len(b"value") - CHECKSUM_BYTES
    for at in (3, 4, 11, 32, 39, 56, 57):
        data = bytearray(right)
        data[at] ^= 1
        checksum = crc32c(bytes(data[:checked])).to_bytes(4, "little")
        data[checked : checked + CHECKSUM_BYTES] = checksum
        assert index.read(b"k") is not None
        os.pwrite(fd, data, record.offset)
        assert index.read(b"k") is None, at
        os.pwrite(fd, right, record.offset)


def test_read_before_a_segment_uses_the_salt_before(index: Any, store: Store) -> None:
    """It has the salt of the segment, those in front of it have another one."""
    keys = (b"a", b"b", b"c")
    records = [put(index, store, key) for key in keys]
    active = bind(index, store)
    salt = active.salts[-1][1]
    salts = [(0, salt ^ 1), (records[1].offset, salt)]
    index.bind_volume(SEQ, active.fd, active.id, salts)

    assert [index.read(key) is None for key in keys] == [True, False, False]


def test_read_before_bind_or_after_close_finds_nothing(
    index: Any, store: Store
) -> None:
    """`find` needs neither."""
    record = store.put(b"k", b"value")
    index.set(b"k", SEQ, record.offset, record.size)
    assert index.find(b"k")[:2] == (SEQ, record.offset)
    assert index.read(b"k") is None
    bind(index, store)
    assert index.read(b"k") == tuple(record)
    index.close()
    assert index.read(b"k") is None


# --- What was there ----------------------------------------------------------------


def test_reclaim_deleted_key_is_not_stale(index: Any) -> None:
    """When the volume of its deletion is reclaimed."""
    index.set(b"value", SEQ, 64, 70)
    index.set(b"deletion", SEQ, 200, 70, tombstone=True)
    index.reclaim(SEQ)

    assert index.is_stale(b"value")
    assert not index.is_stale(b"deletion")


def test_put_with_few_stale_entries_sweeps_none(index: Any) -> None:
    """They cost less than a pass through the index."""
    index.add_volume(SEQ + 1)
    index.set(b"stale", SEQ, 64, 70)
    keys = [b"%d" % number for number in range(100)]
    for key in keys:
        index.set(key, SEQ + 1, 64, 70)
    index.reclaim(SEQ)
    for key in keys:
        put_at(index, key, SEQ + 1, 64, 70)

    assert index.is_stale(b"stale")


def test_forget_key_elsewhere_changes_nothing(index: Any) -> None:
    """Not if it was stored again meanwhile, here or elsewhere."""
    index.add_volume(SEQ + 1)
    index.set(b"k", SEQ, 64, 70)
    assert not index.forget(b"k", SEQ, 65)
    assert not index.forget(b"k", SEQ + 1, 64)
    assert index.find(b"k") is not None
    assert index.forget(b"k", SEQ, 64)
    assert not index.forget(b"k", SEQ, 64)


# --- Keys that are remembered ------------------------------------------------------


def test_miss_of_any_key_is_remembered(index: Any) -> None:
    """One in 65,536 has the tag that means an empty place."""
    index.set_policy(Rates(0.0, 0.0, 1e9, (0, 0)))
    for number in range(400_000):
        key = b"%d" % number
        index.miss(key)
        assert index.ring_for(key) is Ring.PROBATION, key


def test_miss_of_a_key_again_takes_no_other_place(index: Any) -> None:
    """There are 65,536 places."""
    index.set_policy(Rates(0.0, 0.0, 1e9, (0, 0)))
    keys = [b"%d" % number for number in range(30_000)]
    for key in keys:
        for _ in range(4):
            index.miss(key)

    assert sum(index.ring_for(key) is Ring.PROBATION for key in keys) > 25_000


def test_hit_of_a_value_only_earns_tokens(index: Any) -> None:
    """As many as the middle of their size class."""
    index.set_policy(Rates(1.0, 0.0, 1e9, (0, 0)))
    index.set_age(SEQ, Ring.MAIN, 0, VOLUME_BYTES)
    index.set(b"value", SEQ, 64, 1000)
    index.set(b"deletion", SEQ, 2000, 100, tombstone=True)
    assert not index.hit(b"deletion", NOW_US)
    assert index.policy_stats().tokens == 0

    assert index.hit(b"value", NOW_US)
    assert index.policy_stats().tokens == counted_size(1000)


def drop(index: Any, keys: list[bytes]) -> None:
    """Let SEQ be a volume of ring probation with these keys, and reclaim it."""
    index.set_age(SEQ, Ring.PROBATION, 0, VOLUME_BYTES)
    for number, key in enumerate(keys):
        put_at(index, key, SEQ, 64 + 100 * number, 100)
    _native.Reclaim(index, SEQ, 1).collect(SHARES, THRESHOLDS)
    index.reclaim(SEQ)


def returned(index: Any, keys: list[bytes], seq: int) -> int:
    """Return how many of the keys leave the ghost when they are put."""
    before = index.policy_stats().ghost_hits
    index.add_volume(seq)
    for number, key in enumerate(keys):
        put_at(index, key, seq, 64 + 100 * number, 100)
    index.reclaim(seq)
    return int(index.policy_stats().ghost_hits - before)


def test_put_key_of_the_ghost_leaves_it(index: Any) -> None:
    """Whatever its place in a full bucket is."""
    index.set_policy(Rates(0.0, 0.0, 1e9, (0, 0)))
    keys = [b"%d" % number for number in range(WAYS)]
    drop(index, keys)

    assert returned(index, keys, SEQ + 1) == WAYS
    assert returned(index, keys, SEQ + 2) == 0


def test_ghost_that_shrinks_keeps_some_keys(index: Any) -> None:
    """As many as it has room for."""
    index.set_policy(Rates(0.0, 0.0, 1e9, (0, 0)))
    index.size_ghost(64 * WAYS)
    keys = [b"%d" % number for number in range(64 * WAYS)]
    drop(index, keys)
    index.size_ghost(1)

    assert returned(index, keys, SEQ + 1) == WAYS


# --- Reclaiming --------------------------------------------------------------------


@pytest.fixture
def target(index: Any, tmp_path: Path) -> Iterator[Any]:
    """A volume of ring main, with room."""
    index.set_policy(Rates(0.0, 2.0, 1e9, (500, 0)))
    index.add_volume(SEQ + 1)
    index.set_age(SEQ + 1, Ring.MAIN, 0, VOLUME_HEADER_BYTES)
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    volume = make_volume(fd, VolumeUse(5, SEQ + 1, Ring.MAIN, 6))
    volume.end = 200
    volume.set_room(VOLUME_BYTES, VOLUME_BYTES)
    yield volume
    os.close(fd)


def begin_reclaim(index: Any, store: Store, key: bytes = b"k") -> tuple[Any, int]:
    """Search SEQ: `k` leads to the record of a key, and has a hit; return its offset."""
    record = store.put(key, bytes(900))
    active = bind(index, store)
    index.set_age(SEQ, Ring.PROBATION, 0, active.end)
    put_at(index, b"k", SEQ, record.offset, record.size)
    assert index.hit(b"k", NOW_US)
    reclaim = _native.Reclaim(index, SEQ, active.id)
    reclaim.collect(SHARES, THRESHOLDS)
    return reclaim, record.offset


def test_reclaim_copies_count_as_bytes_of_the_ring(
    index: Any, store: Store, target: Any
) -> None:
    """Hits of its records count when enough was appended after them."""
    put_at(index, b"old", target.seq, VOLUME_HEADER_BYTES, 100)
    reclaim, _ = begin_reclaim(index, store)
    assert index.hit(b"k", NOW_US)
    assert not index.hit(b"old", NOW_US)

    thresholds = THRESHOLDS._replace(hits_taken=1)
    step = reclaim.step(VOLUME_BYTES, VOLUME_BYTES, thresholds, target, 0)

    assert step.disposition.copied == 1
    assert index.hit(b"old", NOW_US)
    put_at(index, b"more", target.seq, target.end, 1000)
    assert [index.hit(b"k", NOW_US) for _ in range(3)] == [True, True, False]


def test_reclaim_while_writes_are_blocked_copies_nothing(
    index: Any, store: Store, target: Any
) -> None:
    """A start may find a record that the disk has refused; later, copies go on."""
    reclaim, _ = begin_reclaim(index, store)
    index.block_writes(is_blocked=True)
    step = reclaim.step(VOLUME_BYTES, VOLUME_BYTES, THRESHOLDS, target, 0)
    assert (step.why, step.disposition.copied) == ("full", 0)
    index.block_writes(is_blocked=False)
    step = reclaim.step(VOLUME_BYTES, VOLUME_BYTES, THRESHOLDS, target, 0)
    assert (step.why, step.disposition.copied) == ("done", 1)


def test_reclaim_key_forgotten_after_the_search_copies_nothing(
    index: Any, store: Store, target: Any
) -> None:
    """Its entry has the same position as before."""
    reclaim, offset = begin_reclaim(index, store)
    index.forget(b"k", SEQ, offset)

    # Whatever hits it has.
    thresholds = Thresholds((1.0,) * 3, (0,) * 4, HITS_MAX, is_probation=True)
    step = reclaim.step(VOLUME_BYTES, VOLUME_BYTES, thresholds, target, 0)

    assert step.disposition.copied == 0
    assert index.find(b"k") is None


def test_reclaim_step_ends_at_an_offset_or_enough_bytes_or_no_room(
    index: Any, store: Store, target: Any
) -> None:
    """At an offset, after enough bytes, and at a record that finds no room."""
    keys = [b"%d" % number for number in range(8)]
    records = [store.put(key, bytes(900)) for key in keys]
    large = store.put(b"large", bytes(5000))
    active, size = bind(index, store), records[0].size
    index.set_age(SEQ, Ring.PROBATION, 0, active.end)
    for key, record in zip((*keys, b"large"), (*records, large), strict=True):
        put_at(index, key, SEQ, record.offset, record.size)
        assert index.hit(key, NOW_US)
    reclaim = _native.Reclaim(index, SEQ, active.id)
    reclaim.collect(SHARES, THRESHOLDS)

    def step(end: int, copy_bytes: int) -> tuple[str, int, int]:
        found = reclaim.step(end, copy_bytes, THRESHOLDS, target, 0)
        return found.why, found.disposition.copied, found.disposition.left

    assert step(records[0].offset, VOLUME_BYTES) == ("more", 0, 0)
    assert step(records[1].offset, VOLUME_BYTES) == ("more", 1, 0)
    assert step(records[1].offset + 1, VOLUME_BYTES) == ("more", 1, 0)
    assert step(VOLUME_BYTES, 1) == ("more", 1, 0)
    assert step(VOLUME_BYTES, size + 1) == ("more", 2, 0)
    target.set_room(target.length, target.end + 2 * size - 1)
    assert step(VOLUME_BYTES, VOLUME_BYTES) == ("full", 1, 0)
    assert step(VOLUME_BYTES, VOLUME_BYTES) == ("full", 0, 0)
    target.end = 200
    target.set_room(200 + 2 * size, 200 + 2 * size)
    assert step(VOLUME_BYTES, VOLUME_BYTES) == ("done", 2, 1)


@pytest.mark.parametrize("is_probation", [False, True])
def test_reclaim_key_dropped_at_the_last_look_goes_into_the_ghost(
    index: Any, store: Store, target: Any, *, is_probation: bool
) -> None:
    """A key that is put again then is a hit of the ghost."""
    reclaim, _ = begin_reclaim(index, store)
    thresholds = Thresholds((1.0,) * 3, (3,) * 4, 1, is_probation=is_probation)

    step = reclaim.step(VOLUME_BYTES, VOLUME_BYTES, thresholds, target, 0)

    assert step.disposition.unused == 1
    index.reclaim(SEQ)
    put_at(index, b"k", target.seq, 64, 100)
    assert index.policy_stats().ghost_hits == is_probation


def test_reclaim_record_of_another_key_is_damaged(
    index: Any, store: Store, target: Any
) -> None:
    """It is damaged: the entry leads to the record of another key."""
    reclaim, _ = begin_reclaim(index, store, b"another")

    step = reclaim.step(VOLUME_BYTES, VOLUME_BYTES, THRESHOLDS, target, 0)

    assert (step.disposition.copied, step.disposition.damaged) == (0, 1)
    assert index.is_deleted(b"k")


def test_reclaim_record_at_a_limit_needs_the_hits_of_larger_ones(index: Any) -> None:
    """The larger ones need none here."""
    index.set_policy(Rates(0.0, 0.0, 1e9, (0, 0)))
    index.set(b"k", SEQ, 64, 1000)
    for more, unused in ((-1.0, 0), (0.0, 0), (1.0, 1)):
        limits = (counted_size(1000) + more,) * 3
        thresholds = Thresholds(limits, (3,) * 3 + (0,), HITS_MAX, is_probation=True)
        disposition = _native.Reclaim(index, SEQ, 1).collect(SHARES, thresholds)
        assert disposition.unused == unused, more


# --- A start -----------------------------------------------------------------------

FIRST, FIRST_CHECKSUM = close_block(b"", 64, sealed=False, previous=None)
# Of the only segment that has to be named.


def test_add_entry_with_any_byte_is_encoded_as_in_python() -> None:
    """Eight bytes at a time, and one by one."""
    for length, byte in product((1, 7, 8, 9, 16), range(256)):
        key = b"k" * (length - 1) + bytes([byte])
        volume = make_volume(-1, VolumeUse(1, 1, Ring.MAIN, 0))
        volume.add_entry(key, 64, 70)
        assert volume.lines == encode_entries([(key, 64, 70)])


def load(index: Any, path: Path, entry: bytes, end: int) -> int:
    """Load an index file with an entry; return how much of the block is valid."""
    block, _ = close_block(entry, end, sealed=False, previous=FIRST_CHECKSUM)
    path.write_bytes(FIRST + block)
    with path.open("rb") as file:
        loaded = index.load(SEQ, file.fileno(), [])
    return int(loaded.file_end - len(FIRST)) // len(block)


def test_load_position_behind_all_volumes_hides_an_older_one(
    index: Any, tmp_path: Path
) -> None:
    """The record is not there, but the key was put."""
    for offset, size, is_there in ((0, 1, 0), (1, 1, 0), (-1, 1, 1), (-1, 2, 0)):
        index.set(b"a", SEQ, 64, 70)
        entry = b"a %d %d\n" % (VOLUME_BYTES + offset, size)
        assert load(index, tmp_path / "index", entry, 2**30) == 1
        assert (index.find(b"a") is not None) == is_there


def test_load_key_is_decoded_as_in_python(index: Any, tmp_path: Path) -> None:
    """A percent sign without two hexadecimal digits stays."""
    texts = (b"%", b"a%4", b"%4g", b"%g4", b"%%41", b"%41%", b"%e2%82%AC", b"a" * 300)
    for text in texts:
        assert load(index, tmp_path / "index", b"%b 64 30\n" % text, 94)
        assert index.find(decode_key(text)) is not None, text


def test_load_file_that_cannot_be_read_is_an_error(index: Any, tmp_path: Path) -> None:
    """It is not empty."""
    with (tmp_path / "index").open("wb") as file, pytest.raises(OSError, match="Bad"):
        index.load(SEQ, file.fileno(), [])


@pytest.mark.parametrize("ring", list(Ring))
def test_scan_stops_at_a_key_of_the_other_ring(
    index: Any, store: Store, ring: Ring
) -> None:
    """If that is ring probation: the times of the two records are to be compared."""
    record = store.put(b"k", b"value")
    active = bind(index, store)
    index.add_volume(SEQ + 1)
    index.set_age(SEQ, Ring.MAIN, 0, 64)
    index.set_age(SEQ + 1, ring, 0, 164)
    index.set(b"k", SEQ + 1, 64, 100)

    volume = make_volume(active.fd, active.use._replace(seq=SEQ))
    found = next(_native.Records(FS, volume, record.offset, step=1, index=index))

    assert isinstance(found, Run if ring is Ring.MAIN else Found)


@pytest.mark.parametrize("size", [1000, 100_000, 700_000])
def test_scan_from_any_place_passes_all_records(
    index: Any, tmp_path: Path, size: int
) -> None:
    """Each is in one piece that is read, or in several."""
    store = open_store(tmp_path, fs=BareProcess(FS), volume_size=VOLUME_BYTES)
    keys = [b"%d" % number for number in range(8 * 10**6 // size)]
    offsets = [store.put(key, size * b"v").offset for key in keys]
    active = bind(index, store)
    end = active.end
    volume = make_volume(active.fd, active.use._replace(seq=SEQ))
    for first in (0, len(keys) // 2, len(keys) - 1):
        records = _native.Records(
            FS, volume, offsets[first], end, step=end, index=index, adds_entries=True
        )
        passed = [(run.end, run.records) for run in records if isinstance(run, Run)]
        assert passed == [(end, len(keys) - first)]
        assert [key for key, _, _ in decode_entries(volume.lines)] == keys[first:]
        volume.clear()
        records.at = offsets[0]
        assert sum(run.records for run in records if isinstance(run, Run)) == len(keys)
        volume.clear()
    steps = _native.Records(FS, volume, offsets[0], end, step=1)
    assert [run[0] for run in steps] == [*offsets[1:], end]
    store.close()


def test_scan_with_equal_lines_says_what_it_has_passed(store: Store) -> None:
    """And the latest time."""
    keys = [b"a", b"b", b"c"]
    puts = [store.put(key, b"value") for key in keys]
    active = store._log.rings.last_started
    lines = encode_entries(
        (key, put.offset, put.size) for key, put in zip(keys, puts, strict=True)
    )
    records = _native.Records(FS, active, puts[0].offset, active.end, step=active.end)
    records.expect(lines, active.end)

    assert list(records) == [Run(active.end, len(keys), puts[-1].stored_us)]
