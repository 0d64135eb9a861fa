"""
Flip bits in every file of a directory: gets return right values or misses, which are
counted.

With `CRASH_EXTENT=0` every bit of the small directories is flipped, and in `make test` a
random one in every byte of the short files and in every fifth of the volumes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from support.extent import EXTENT, Count, step
from support.histories import MOUNT_POINT, files_of, make_value, open_simulated
from support.simulated import SimulatedFileSystem
from support.unsynced import File
from volcache.store import Store
from volcache.store.eviction import Eviction
from volcache.store.format import Record

pytestmark = [pytest.mark.sampled(2), pytest.mark.crash, pytest.mark.slow]

SHORT_BYTES = 1024  # Files up to this length have no byte left out.
VOLUME_NUM: dict[Eviction, int] = {"fifo": 4, "frequency": 6}
FILES = {
    eviction: [
        "META.txt",
        *(f"{kind}/{n}" for kind in ("data", "index") for n in range(number)),
    ]
    for eviction, number in VOLUME_NUM.items()
}


class Outcome(NamedTuple):
    """What a start and a get of every key found."""

    missing: list[bytes]
    stale: list[bytes]
    counted: int


class Written(NamedTuple):
    """A directory of four volumes, and what was put and deleted in it."""

    image: SimulatedFileSystem
    history: dict[bytes, list[bytes | None]]  # All values that each key ever had.
    records: dict[bytes, Record]  # Those put last, and not deleted since.
    active_id: int  # Of the active volume.


def start(fs: SimulatedFileSystem, eviction: Eviction = "fifo") -> Store:
    """Start a process; with two rings, there are volumes for both."""
    return open_simulated(fs, volume_num=VOLUME_NUM[eviction], eviction=eviction)


def write(eviction: Eviction = "fifo", *, stop: bool) -> Written:
    """Fill a directory; end with a stop, or else with a kill."""
    fs = SimulatedFileSystem()
    store = start(fs, eviction)
    history: dict[bytes, list[bytes | None]] = {}
    records: dict[bytes, Record] = {}
    for number in range(34 if eviction == "fifo" else 68):
        for key in (b"same", b"key %d" % (number % 11)):
            # With two rings: what was asked for goes to probation, and what is read again
            # is copied.
            if eviction == "frequency" and number % 3:
                store.get(b"key %d" % (number % 4))
                store.stat(key)
            history.setdefault(key, []).append(make_value(key, number))
            records[key] = store.put(key, make_value(key, number))
        if number % 4 == 3:
            key = b"key %d" % ((number - 2) % 11)
            store.delete(key)
            history[key].append(None)
            del records[key]
    active_id = store.usage().active_id
    assert bool(store.stats.disposition.copied) == (eviction == "frequency")
    if stop:
        store.close()
        return Written(fs, history, records, active_id)
    return Written(fs.after_kill(), history, records, active_id)


def find_file(fs: SimulatedFileSystem, path: str) -> File:
    """Return a file of the mount point."""
    return fs.file(f"{MOUNT_POINT}/{path}")


def read_all(store: Store, history: dict[bytes, list[bytes | None]]) -> Outcome:
    """Read every key and classify the results."""
    missing, stale = [], []
    for key, values in history.items():
        record = store.get(key)
        found = None if record is None else record.value
        if found == values[-1]:
            continue
        if found is None:
            missing.append(key)
        else:
            assert found in values, "a value of another key, or of no key"
            stale.append(key)
    report, stats = store.recovery, store.stats
    counted = report.damaged + report.rebuilt + report.meta_lost + report.unknown
    counted += stats.damaged_records + report.torn
    return Outcome(missing, stale, counted)


def flips(length: int, dice: random.Random) -> Iterator[tuple[int, int]]:
    """Yield offset and bit of each flip."""
    distance = step(5) if length > SHORT_BYTES else 1
    for offset in range(dice.randrange(distance), length, distance):
        bits = range(8) if not EXTENT else [dice.randrange(8)]
        yield from ((offset, bit) for bit in bits)


@pytest.mark.parametrize("eviction", list(VOLUME_NUM))
@pytest.mark.parametrize("kind", ["META.txt", "data", "index"])
def test_after_a_flipped_bit_a_get_returns_the_right_value_or_a_counted_miss(
    eviction: Eviction, kind: str, record_property: Count
) -> None:
    """After a stop every record has an index line, so no old value comes back."""
    image, history, *_ = write(eviction, stop=True)
    before = read_all(start(image.after_kill(), eviction), history).missing
    dice = random.Random(kind)  # noqa: S311 - Repeatable on purpose.
    tried = missed = 0
    paths = [path for path in FILES[eviction] if path.startswith(kind)]
    for path, data in files_of(image, paths).items():
        for offset, bit in flips(len(data), dice):
            fs = image.after_kill()
            find_file(fs, path).data[offset] ^= 1 << bit
            found = read_all(start(fs, eviction), history)
            tried += 1
            assert not found.stale, (path, offset, bit)
            lost = set(found.missing) - set(before)
            assert found.counted >= bool(lost), (path, offset, bit)
            missed += len(lost)
    record_property("flips_after_a_stop", tried)

    assert tried > 60
    assert bool(missed) == (kind == "data")


def test_after_a_kill_no_flipped_bit_brings_an_old_value_back(
    record_property: Count,
) -> None:
    """
    Neither where records have no index entry yet: a single wrong bit in a header is
    corrected, and one in a value is recognised. Many of them prevent no start.
    """
    written = write(stop=False)
    image, history = written.image, written.history
    assert unindexed(written)
    dice = random.Random(1)  # noqa: S311 - Repeatable on purpose.
    tried = missed = 0
    for path in [*FILES["fifo"], "LOCK"]:
        for offset, bit in flips(len(find_file(image, path).data), dice):
            fs = image.after_kill()
            find_file(fs, path).data[offset] ^= 1 << bit
            found = read_all(open_simulated(fs), history)
            assert not found.stale, (path, offset, bit)
            missed += len(found.missing)
            tried += 1
            if tried % 4 == 0:
                fs = fs.after_kill()
                data = find_file(fs, path).data
                for _ in range(40):
                    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
                open_simulated(fs).put(b"new", b"value")
    record_property("flips_after_a_kill", tried)

    assert missed


def unindexed(written: Written) -> list[bytes]:
    """Return the keys of live records that have no entry in the index file."""
    lines = bytes(find_file(written.image, f"index/{written.active_id}").data)
    return [
        key
        for key, record in written.records.items()
        if record.volume == written.active_id
        and b" %d %d\n" % (record.offset, record.size) not in lines
    ]
