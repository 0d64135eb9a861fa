"""The native core and Python find the same in a mount point, however it is damaged."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import pytest

from support.contents import values
from support.damage import flip, overwrite
from support.index_files import rewrite
from support.readers import without_the_core
from support.stores import UnreadableFileSystem, UnsyncedFileSystem, kill, open_store
from volcache.cli.repair import repair
from volcache.errors import StoreError
from volcache.store.files import FileSystem, ReadOnlyFileSystem
from volcache.store.offline import OfflineStore
from volcache.store.volume_check import Anomaly, Counts

pytestmark = pytest.mark.sampled(6)

OPTIONS: Final = {"volume_size": 256 * 1024, "volume_num": 4}
READINGS: Final[list[Callable[[], AbstractContextManager[None]]]] = [
    nullcontext,
    without_the_core,
]
KEYS: Final = [
    *(b"a", b"b/c", b"b c", b"%20", b"#", b"a#b", b"a 0 0\nb", b"\n\x00\xff"),
    *("grün".encode(), b"x" * 300),
    *(b"key %d" % number for number in range(60)),
]


def check(
    directory: Path, fs: FileSystem | None = None
) -> tuple[list[Anomaly], Counts]:
    """Return what a check says with the core; without it, it must say the same."""
    says = []
    for reading in READINGS:
        counts, opened = Counts(), fs or ReadOnlyFileSystem()
        with reading(), OfflineStore.inspect(opened, str(directory)) as store:
            events = list(store.check(counts))
        says.append(([event for event in events if isinstance(event, Anomaly)], counts))
    assert says[0] == says[1]
    return says[0]


def repaired(directory: Path) -> Path:
    """Return a repaired copy; without the core, the same is said and written."""
    says = []
    copies = [directory.with_name(f"{directory.name} {name}") for name in ("a", "b")]
    for reading, copy in zip(READINGS, copies, strict=True):
        lines: list[str] = []
        shutil.copytree(directory, copy)
        with reading():
            try:
                repair(str(copy), UnsyncedFileSystem(), lines.append)
            except StoreError as error:
                lines.append(type(error).__name__)
        written = [path.read_bytes() for path in sorted((copy / "index").iterdir())]
        says.append(([line.replace(str(copy), "") for line in lines], written))
    assert says[0] == says[1]
    return copies[0]


def make(directory: Path, *, is_closed: bool = True) -> None:
    """Make a store of several volumes with segments, deletions and unusual keys."""
    dice = random.Random(3)  # noqa: S311 - Seeded, to be repeated.
    for _ in range(4):
        store = open_store(directory, **OPTIONS)
        for number in range(220):
            key = dice.choice(KEYS)
            store.put(key, dice.randbytes(dice.choice([0, 10, 900, 3000])))
            if number % 7 == 0:
                store.delete(dice.choice(KEYS))
        if is_closed:
            store.close()
        else:
            kill(store)


@pytest.fixture(scope="module", params=["closed", "killed"])
def made(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """Return a healthy directory; tests work on copies."""
    directory = tmp_path_factory.mktemp("made") / "store"
    make(directory, is_closed=request.param == "closed")
    return directory


FILES: Final = [
    *("data flip", "data cut", "data unlink", "data zeros", "data copy"),
    *("index flip", "index cut", "index unlink"),
]
LINES: Final = ["swap", "remove", "add", "change", "repeat", "shuffle", "empty"]


def damage(what: str, directory: Path, dice: random.Random) -> None:
    """Damage a file in a way of `FILES`, or the lines of an index file."""
    folder, _, how = what.rpartition(" ")
    path = dice.choice(sorted((directory / (folder or "index")).iterdir()))
    size = path.stat().st_size
    at = dice.randrange(size)
    if not folder:
        rewrite(path, lambda lines: change(how, lines, dice))
    elif how == "flip":
        for _ in range(dice.choice([1, 2, 40]) if folder == "data" else 1):
            flip(path, dice.randrange(size), dice)
    elif how == "cut":
        os.truncate(path, at)
    elif how == "unlink":
        path.unlink()
    else:
        length = dice.choice([64, 512, 5000, 40_000])
        start = dice.randrange(size - length)
        data = path.read_bytes() if how == "copy" else bytes(size)
        overwrite(path, min(at, size - length), data[start : start + length])


def change(how: str, lines: list[bytes], dice: random.Random) -> None:
    """Change some entries of a block."""
    at, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    if how == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    elif how == "shuffle":
        dice.shuffle(lines)
    elif how == "repeat":
        lines *= 2
    elif how == "empty":
        lines.clear()
    elif how == "remove":
        del lines[at], lines[len(lines) - dice.randrange(1, 4) :]
    elif how == "add":
        more = [lines[other], b"a 0 0\n", b"new 0 0\n", b"new 64 100\n", b"# comment\n"]
        lines.insert(at, dice.choice(more))
    else:
        key, offset, size = lines[at].split()
        entries = [
            (b"other", offset, size),
            (b"%%%02x%b" % (key[0], key[1:]), offset, size),
            (key, b"00" + offset, size),
            (key, b"%d" % (int(offset) + 1), size),
            (key, offset, b"%d" % max(0, int(size) - 1)),
            (key, b"0", b"0"),
            (key, b"x", size),
        ]
        lines[at] = b" ".join(dice.choice(entries)) + b"\n"


@pytest.mark.slow
@pytest.mark.parametrize("what", [*FILES, *LINES])
def test_check_and_repair_with_damage_find_what_python_finds(
    made: Path, tmp_path: Path, what: str
) -> None:
    """
    Anomalies, their order, and counts; and repair writes the same.

    If only lines of an index file are wrong, a repair has corrected all of them.
    """
    expected = values(shutil.copytree(made, tmp_path / "made"), **OPTIONS)
    for seed in range(12):
        dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
        directory = tmp_path / str(seed)
        shutil.copytree(made, directory)
        damage(what, directory, dice)
        if seed % 3 == 2:
            damage(dice.choice([*FILES, *LINES]), directory, dice)

        check(directory)
        if seed % 4 == 0:
            copy = repaired(directory)
            if what in LINES and seed < 8:
                assert check(copy)[0] == []
                assert values(copy, **OPTIONS) == expected


def test_check_with_records_longer_than_a_piece_finds_all(tmp_path: Path) -> None:
    """Longer than the window of the core, and than a piece that a scan reads."""
    store = open_store(tmp_path, volume_size=2**25)
    for number, length in enumerate([100, 2**19, 2**20 + 1, 9 * 2**20, 100, 2**19 + 7]):
        store.put(b"%d" % number, bytes(length))
    store.close()
    found, counts = check(tmp_path)
    assert (found, counts.keys) == ([], 6)
    assert counts.bytes > 11 * 2**20
    flip(tmp_path / "data" / "0", 3 * 2**20)
    (damaged,), counts = check(tmp_path)
    assert (damaged.kind, counts.keys) == ("record", 5)


@pytest.mark.slow
def test_check_with_an_unreadable_sector_finds_all_else(made: Path) -> None:
    """What is in them is missing, all else is found."""
    for seed in range(12):
        dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
        assert check(made, UnreadableFileSystem(4096 * dice.randrange(1, 64)))[0]
