"""The reclaim of a volume: which of its records are copied, and what errors do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from support.damage import flip
from support.stores import FakeClock, WatchedFileSystem, fail, open_store
from volcache.store import Record
from volcache.store.index import Disposition

VOLUME_SIZE: Final = 64 * 1024
VOLUME_NUM: Final = 8
USED: Final = [b"used %d" % number for number in range(6)]


class Bench:
    """A store with a full ring main, whose first volume of probation is reclaimed."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.disk, self.clock = WatchedFileSystem(), FakeClock()
        self.store = open_store(
            directory,
            volume_size=VOLUME_SIZE,
            volume_num=VOLUME_NUM,
            fs=self.disk,
            clock=self.clock,
            **{"reinsert_reads": 1.0} | options,
        )
        self.placed: dict[bytes, Record] = {}
        for number in range(250):
            self.store.put(b"main %d" % number, bytes(900))
        self.put(b"first")
        (self.seq,) = (
            v.seq for v in self.store.usage().volumes if v.ring == "probation"
        )

    @property
    def disposition(self) -> Disposition:
        """What became of the records."""
        return self.store.stats.disposition

    def put(self, key: bytes, length: int = 900, **fields: Any) -> Record:
        """Put a value that was asked for, which belongs to ring probation."""
        assert self.store.get(key) is None
        self.placed[key] = self.store.put(key, key.ljust(length, b"."), **fields)
        return self.placed[key]

    def fill(self, count: int = 1) -> None:
        """Put values that are not read."""
        for _ in range(count):
            self.put(b"fill %d" % len(self.placed))

    def read(self, keys: Iterable[bytes]) -> None:
        """Read keys when enough was appended after them that this counts."""
        self.fill(40)
        for key in keys:
            assert self.store.get(key) is not None

    def damage(self, key: bytes, at: int) -> None:
        """Change a byte of a record."""
        record = self.placed[key]
        flip(self.directory / "data" / str(record.volume), record.offset + at)

    def begin(self) -> None:
        """Put values until the reclaim begins."""
        while self.store.usage().eviction.reclaiming < 0:
            self.fill()
        usage = self.store.usage()
        assert usage.volumes[usage.eviction.reclaiming].seq == self.seq

    def finish(self) -> None:
        """Put values until the volume is gone."""
        done = 0.0
        while self.seq in {volume.seq for volume in self.store.usage().volumes}:
            eviction = self.store.usage().eviction
            assert eviction.reclaiming < 0 or eviction.reclaimed >= done
            done = eviction.reclaimed
            self.fill()

    def place(self, key: bytes) -> tuple[str, int, int]:
        """Return ring, sequence number and offset of a key."""
        record = self.store.peek(key)
        assert record is not None
        volume = self.store.usage().volumes[record.volume]
        return volume.ring, volume.seq, record.offset


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A store with tokens for all copies."""
    made = Bench(tmp_path)
    yield made
    made.store.close()


def fields_of(bench: Bench, key: bytes) -> Record | None:
    """Return all of a record but its place."""
    record = bench.store.peek(key)
    return record and record._replace(volume=0, offset=0)


def test_reclaim_keeps_or_drops_each_record_by_its_state(bench: Bench) -> None:
    """By hits, size and expiry, or if it was purged, damaged, replaced or deleted."""
    damaged = [b"damaged %d" % number for number in range(5)]
    once = [*USED[:3], b"purged", b"replaced", b"deleted", *damaged]
    for key in (*once, b"unused"):
        bench.put(key)
    bench.put(b"expired", expires_ms=bench.clock.now_ms + 1000)
    for key in (b"large, once", b"large, twice"):
        bench.put(key, 2000)
    bench.put(b"huge, twice", 5000)
    bench.put(b"small", 60)
    bench.put(USED[3], content_type=b"a/b", content_encoding=b"c", flags=7)
    kept = [*USED[:3], b"large, twice", b"small", USED[3]]
    bench.read([*once, USED[3], b"expired", b"large, once"])
    bench.read(2 * [b"large, twice", b"huge, twice"])
    before = {key: fields_of(bench, key) for key in kept}
    for key, at in zip(damaged, (6, 20, 70, 500, 900), strict=True):
        bench.damage(key, at)
    bench.store.purge(b"purged")
    bench.clock.advance(2)
    bench.begin()
    unused = [
        key
        for key, record in bench.placed.items()
        if key.startswith((b"first", b"unused", b"fill", b"large, once", b"huge"))
        and record.volume == bench.placed[b"first"].volume
    ]
    assert bench.store.delete(b"deleted")
    bench.store.put(b"replaced", b"new")
    bench.finish()
    gone = [*unused, *damaged, b"expired", b"purged", b"deleted"]

    assert [key for key in gone if bench.store.peek(key) is not None] == []
    assert bench.place(b"replaced")[0] == "probation"
    assert bench.disposition._asdict() == {
        "copied": len(kept),
        "copied_bytes": sum(bench.placed[key].size for key in kept),
        "unused": len(unused),
        "expired": 1,
        "damaged": len(damaged),
        "purged": 1,
        **dict.fromkeys(("unpaid", "unreadable", "left"), 0),
    }
    places = [bench.place(key) for key in kept]
    assert places == sorted(places)
    assert {ring for ring, _, _ in places} == {"main"}
    assert {key: fields_of(bench, key) for key in kept} == before


def test_put_again_after_probation_dropped_it_goes_to_main(
    bench: Bench,
) -> None:
    """Its key is in the ghost, once; that of a copy is not. Some are, or not, by chance."""
    used, unused = ([b"%b %d" % (name, n) for n in range(16)] for name in (b"a", b"b"))
    for key in (*used, *unused):
        bench.put(key)
    bench.read(used)
    bench.begin()
    bench.finish()
    hits = 0
    for keys, least, most in ((used, 0, 8), (unused, 12, 16), (unused, 0, 8)):
        for key in keys:
            bench.store.delete(key)
            bench.put(key)
        before, hits = hits, bench.store.usage().eviction.ghost_hits
        assert least <= hits - before <= most
        assert sum(bench.place(key)[0] == "main" for key in keys) >= least


def test_reclaim_without_tokens_for_reads_copies_less(tmp_path: Path) -> None:
    """Without those for reads, 0.3 bytes are copied for each one that is put."""
    bench = Bench(tmp_path, reinsert_reads=0.0)
    keys = [b"often %d" % number for number in range(1200)]
    for key, earlier in zip(keys, [*[b"first"] * 50, *keys], strict=False):
        bench.put(key)
        bench.store.get(earlier)
    eviction = bench.store.usage().eviction

    assert eviction.disposition.unpaid > 100
    assert (
        eviction.disposition.copied_bytes + eviction.tokens <= 0.3 * eviction.put_bytes
    )
    assert eviction.disposition.copied_bytes > 0.25 * eviction.put_bytes
    bench.store.close()


def test_reclaim_with_three_refused_reads_ends_copying(bench: Bench) -> None:
    """Each is counted; with two, the next records are still copied."""
    for key in USED:
        bench.put(key)
    bench.read(USED)
    bad = [bench.placed[USED[at]].offset for at in (1, 2, 4)]
    bench.disk.before_read = lambda _, __, offset: offset in bad and fail()
    bench.begin()
    bench.finish()

    assert bench.disposition[:2] == (
        2,
        sum(bench.placed[USED[at]].size for at in (0, 3)),
    )
    assert (bench.disposition.unreadable, bench.disposition.left) == (3, 1)
    assert bench.store.stats.read_errors == 3


def test_reclaim_with_a_refused_write_ends_copying(bench: Bench) -> None:
    """It is counted once; the puts succeed, and what was copied before is there."""
    for key in USED:
        bench.put(key)
    bench.read(USED)
    bench.disk.before_write = lambda _, data, __: USED[2] in data and fail()
    bench.begin()
    bench.finish()

    assert (bench.disposition.copied, bench.disposition.left) == (2, 3)
    assert bench.store.stats.write_errors == 1
    assert {bench.place(key)[0] for key in USED[:2]} == {"main"}
    assert [bench.store.peek(key) for key in USED[2:]] == [None] * 4


def test_reclaim_with_many_damaged_records_ends_copying(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """They are read in vain."""
    keys = [b"damaged %d" % number for number in range(70)]
    for key in keys:
        bench.put(key, 400)
    bench.read(keys)
    for key in keys:
        bench.damage(key, 300)
    bench.begin()
    bench.finish()

    assert (
        bench.disposition.damaged,
        bench.disposition.left,
        bench.disposition.copied,
    ) == (64, 6, 0)
    assert caplog.messages[0].startswith("reclaim.damaged count=1 error=")
