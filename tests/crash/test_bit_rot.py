"""
Flip bits in every file of a directory: right values or misses, and the damage is counted.

Every byte of the small directories is damaged once for each of its bits with
`CRASH_EXTENT=0`, and in one bit chosen by chance in `make test`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.histories import make_value, open_simulated
from support.simulated import SimulatedFileSystem
from support.unsynced import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store import Store

pytestmark = [pytest.mark.crash, pytest.mark.slow]

EXTENT = int(os.environ.get("CRASH_EXTENT", "1"))
FILES = ["META.txt", *(f"{kind}/{n}" for kind in ("data", "index") for n in range(4))]


class Outcome(NamedTuple):
    """What a start and a read of every key found."""

    missing: list[bytes]
    stale: list[bytes]
    counted: int


def fill(*, stop: bool) -> tuple[SimulatedFileSystem, dict[bytes, list[bytes | None]]]:
    """Write a directory of four volumes; the keys with all values they ever had."""
    fs = SimulatedFileSystem()
    store = open_simulated(fs)
    history: dict[bytes, list[bytes | None]] = {}
    for number in range(34):
        for key in (b"same", b"key %d" % (number % 11)):
            history.setdefault(key, []).append(make_value(key, number))
            store.put(key, make_value(key, number))
        if number % 4 == 3:
            store.delete(b"key %d" % ((number - 2) % 11))
            history[b"key %d" % ((number - 2) % 11)].append(None)
    if stop:
        store.close()
        return fs, history
    return fs.after_kill(), history


def find_file(fs: SimulatedFileSystem, path: str) -> File:
    """Return a file of the mount point."""
    folder, name = fs._parent(f"/srv/disk/cache/{path}")
    found = folder.names[name]
    assert isinstance(found, File)
    return found


def read_all(store: Store, history: dict[bytes, list[bytes | None]]) -> Outcome:
    """Read every key and sort what is found."""
    missing, stale = [], []
    for key, values in history.items():
        record = store.get(key)
        found = None if record is None else record.value
        if found == values[-1]:
            continue
        if found is None:
            missing.append(key)
        else:
            assert found in values, "a value of another key, or of none"
            stale.append(key)
    report, stats = store.report, store.stats
    counted = report.damaged + report.rebuilt + report.meta_lost
    counted += stats.damaged_records + report.torn
    return Outcome(missing, stale, counted)


def flips(length: int, dice: random.Random) -> Iterator[tuple[int, int]]:
    """Yield byte and bit of what is to be damaged."""
    for offset in range(length):
        bits = range(8) if not EXTENT else [dice.randrange(8)]
        yield from ((offset, bit) for bit in bits)


@pytest.mark.parametrize("path", FILES)
def test_a_flipped_bit_is_a_right_value_or_a_counted_miss(path: str) -> None:
    """After a stop every record has its line, so nothing old comes back either."""
    image, history = fill(stop=True)
    dice = random.Random(path)  # noqa: S311 - Repeatable on purpose.
    tried = missed = 0
    for offset, bit in flips(len(find_file(image, path).data), dice):
        fs = image.after_kill()
        find_file(fs, path).data[offset] ^= 1 << bit
        found = read_all(open_simulated(fs), history)
        tried += 1
        assert not found.stale, (path, offset, bit)
        assert found.counted >= bool(found.missing), (path, offset, bit)
        missed += len(found.missing)
    print(path, tried, missed)  # noqa: T201

    assert tried > 60
    assert bool(missed) == path.startswith("data")


def test_only_a_header_without_its_line_can_hide_a_newer_value() -> None:
    """
    The one limit, in docs/FORMAT.md: after a kill, the header of a record that has no
    line yet is the only thing that knows its key.
    """
    image, history = fill(stop=False)
    store = open_simulated(image.after_kill())
    head = store._log.active
    starts = {offset: size for _, offset, size in _unindexed(store, image)}
    assert starts
    dice = random.Random(1)  # noqa: S311 - Repeatable on purpose.
    stale = 0
    for path in FILES:
        for offset, bit in flips(len(find_file(image, path).data), dice):
            fs = image.after_kill()
            find_file(fs, path).data[offset] ^= 1 << bit
            found = read_all(open_simulated(fs), history)
            stale += bool(found.stale)
            if found.stale:
                assert path == f"data/{head.id}", (path, offset, bit)
                assert any(s <= offset < s + size for s, size in starts.items())
    print("stale", stale)  # noqa: T201

    assert stale


def _unindexed(
    store: Store, image: SimulatedFileSystem
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the records of the head for which the index file has no line."""
    head = store._log.active
    lines = bytes(find_file(image, f"index/{head.id}").data)
    for key, position in store._index.items():
        offset, size = position >> 32 & (1 << 40) - 1, position & (1 << 32) - 1
        if position >> 72 == head.seq and b" %d %d\n" % (offset, size) not in lines:
            yield key, offset, size


@pytest.mark.parametrize("name", ["healthy", "bit_rot", "no_index", "torn_tail"])
def test_a_flipped_bit_never_ends_the_start(name: str) -> None:
    """Directories of the first format, damaged at places chosen by chance."""
    folder = Path(__file__).parents[1] / "golden" / "v1" / name
    dice = random.Random(name)  # noqa: S311 - Repeatable on purpose.
    contents = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    for _ in range(60 * EXTENT or 3000):
        fs = SimulatedFileSystem()
        for folder_name in ("data", "index"):
            fs.make_directory(f"/srv/disk/cache/{folder_name}")
        victim = dice.choice(list(contents))
        for path, data in contents.items():
            fd = fs.open(f"/srv/disk/cache/{path}", create=True)
            fs.pwritev(fd, [data], 0)
            fs.close(fd)
        found = find_file(fs, victim).data
        for _ in range(dice.choice([1, 1, 2, 40])):
            found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
        store = open_simulated(fs)
        for key, _position in list(store._index.items()):
            store.get(key)
        store.put(b"new", b"value")
        record = store.get(b"new")
        assert record is not None
        assert record.value == b"value"
