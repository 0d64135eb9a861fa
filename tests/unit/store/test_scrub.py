"""The scrub: damage is found while the store runs, and nothing else is."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.damage import flip
from support.stores import WatchedFileSystem, fail, open_fifo, open_store
from support.waiting import wait_until
from volcache.store import Store
from volcache.store.files import UncachedReader
from volcache.store.scrub import Pace
from volcache.store.stats import ScrubStats

FAST = 1 << 40


class Scrubbed:
    """A store with values in all volumes, and the one pass of a scrub over it."""

    def __init__(self, directory: Path) -> None:
        """Fill three volumes; the fourth is being written."""
        self.directory, self.disk = directory, WatchedFileSystem()
        self.store: Store = open_fifo(
            directory, volume_size=1 << 20, volume_num=4, fs=self.disk
        )
        self.placed = {}
        for number in range(110):
            key = b"key %d" % number
            self.placed[key] = self.store.put(key, os.urandom(30_000))
        self.store.delete(b"key 3")

    @property
    def stats(self) -> ScrubStats:
        """What the scrub has done."""
        return self.store.stats.scrub

    def flip(self, key: bytes, at: int = 1000) -> None:
        """Change a byte of a record on the disk."""
        record = self.placed[key]
        flip(self.directory / "data" / str(record.volume), record.offset + at)

    def run(self, passes: int = 1) -> dict[str, int]:
        """Scrub until as many passes are complete; return the findings of one."""
        self.stats.found_by_kind = {"record": 0, "file": 0}
        self.stats.passes = 0
        scrub = self.store.scrub(FAST, period=0)
        wait_until(lambda: self.stats.passes >= passes, "a pass")
        scrub.stop()
        done = self.stats.passes + (self.stats.left_bytes == 0)
        return {k: n for k, n in self.stats.found_by_kind.items() if n and done}


@pytest.fixture
def scrubbed(tmp_path: Path) -> Iterator[Scrubbed]:
    """An intact store."""
    made = Scrubbed(tmp_path)
    yield made
    made.store.close()


def test_scrub_of_an_intact_store_finds_nothing(
    scrubbed: Scrubbed, caplog: pytest.LogCaptureFixture
) -> None:
    """All volumes but the active one are read."""
    caplog.set_level(logging.INFO)
    assert scrubbed.run() == {}
    sealed = sum(r.size for r in scrubbed.placed.values() if r.volume != 3)
    assert scrubbed.stats.bytes >= sealed
    assert scrubbed.stats.ended_ms > 0
    assert scrubbed.stats.found_ms == 0
    assert "scrub.completed volumes=3" in caplog.text


def test_scrub_of_a_damaged_record_names_it(
    scrubbed: Scrubbed, caplog: pytest.LogCaptureFixture
) -> None:
    """With its file, offset and key; it is a miss, as before."""
    scrubbed.flip(b"key 5")
    record = scrubbed.placed[b"key 5"]
    # Each pass finds it again, until the volume is reclaimed.
    assert scrubbed.run(passes=3)["record"] >= 3
    expected = (
        f"scrub.damaged file=data/{record.volume} offset={record.offset}"
        f" what='key%205, {record.size} bytes: "
    )
    assert expected in caplog.text
    assert scrubbed.stats.found_ms > 0
    assert scrubbed.store.stats.damaged_records == 0
    assert scrubbed.store.get(b"key 5") is None
    assert scrubbed.store.stats.damaged_records == 1


def test_scrub_of_a_damaged_or_missing_index_file_names_it(
    scrubbed: Scrubbed, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records are then found by a scan, and are no findings; the pass goes on."""
    path = scrubbed.directory / "index" / "1"
    damages: list[Callable[[], None]] = [
        lambda: flip(path, 200),
        path.unlink,
        path.mkdir,
    ]
    for damage in damages:
        damage()
        caplog.clear()
        assert set(scrubbed.run()) == {"file"}
        assert "scrub.damaged file=index/1 " in caplog.text


def test_scrub_does_not_read_the_volume_being_written(scrubbed: Scrubbed) -> None:
    """Its last record may be incomplete at any moment."""
    active = next(k for k, r in scrubbed.placed.items() if r.volume == 3)
    scrubbed.flip(active)
    assert scrubbed.run() == {}


def test_scrub_of_a_bad_sector_names_it(
    scrubbed: Scrubbed, caplog: pytest.LogCaptureFixture
) -> None:
    """With its offset. A read of the record decides whether it is lost."""
    record = scrubbed.placed[b"key 50"]
    start = (record.offset + 9000) // 4096 * 4096
    end = f"/data/{record.volume}"

    def before_read(fd: int, length: int, offset: int) -> None:
        is_bad = offset < start + 4096 and start < offset + length
        if is_bad and str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(end):
            fail()

    scrubbed.disk.before_read = before_read
    assert set(scrubbed.run()) == {"file"}
    assert f"offset={start} what='1 sector cannot be read'" in caplog.text
    assert scrubbed.store.is_ready()


def test_scrub_of_a_volume_that_is_reclaimed_finds_nothing(scrubbed: Scrubbed) -> None:
    """Its file then has the records of another use."""
    flushed = threading.Event()

    def flush_and_fill(*_: object) -> None:
        if threading.current_thread().name == "scrub" and not flushed.is_set():
            flushed.set()
            for number in range(200):
                scrubbed.store.put(b"new %d" % number, os.urandom(30_000))

    scrubbed.disk.before_read = flush_and_fill
    assert scrubbed.run(passes=2) == {}
    assert flushed.is_set()


def test_scrub_of_an_empty_store_verifies_nothing(tmp_path: Path) -> None:
    """The thread waits, and stops at once."""
    store = open_store(tmp_path)
    store.scrub(FAST).stop()
    assert store.stats.scrub.passes == 0
    store.close()


def test_scrub_waits_a_period_before_the_next_pass(scrubbed: Scrubbed) -> None:
    """And the wait for it ends with the scrub."""
    scrub = scrubbed.store.scrub(FAST, period=3600)
    wait_until(lambda: scrubbed.stats.passes, "a pass")
    scrub.stop()
    assert scrubbed.stats.passes == 1


def test_scrub_at_a_low_rate_stops_at_once(scrubbed: Scrubbed) -> None:
    """At one byte per second a piece would take days."""
    scrub = scrubbed.store.scrub(1)
    wait_until(lambda: scrubbed.stats.bytes, "the first piece")
    scrub.stop()
    assert scrubbed.stats.passes == 0


def test_pace_over_many_pieces_is_the_rate() -> None:
    """Over many pieces, whatever a read takes; lost time is not caught up."""
    now = 100.0

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    pace = Pace(1000, wait, lambda: now)
    for _ in range(10):
        now += 0.05  # The read.
        pace.wait(100)
    assert now == pytest.approx(100 + 10 * 0.1, abs=0.11)
    now += 60
    pace.wait(100)
    before = now
    for _ in range(5):
        pace.wait(100)
    assert now - before == pytest.approx(0.5)


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_uncached_read_returns_what_a_read_returns(
    tmp_path: Path, *, is_in_memory: bool
) -> None:
    """At any offset, and at the end; also of a file that allows no direct reads."""
    flags = os.O_RDWR | os.O_CREAT
    path = tmp_path / "file"
    fd = os.memfd_create("file") if is_in_memory else os.open(path, flags)
    os.write(fd, os.urandom(12_345))
    reader = UncachedReader(10_000)
    for length, offset in (
        *((0, 0), (1, 0), (10_000, 0), (4096, 4096)),
        *((5000, 4095), (9000, 9000), (5, 20_000)),
    ):
        assert reader.pread(fd, length, offset) == os.pread(fd, length, offset)
    os.close(fd)
