"""The native core and Python find the same in a mount point, however it is damaged."""

from __future__ import annotations

import errno
import os
import random
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest import mock

import pytest

from support.damage import flip, overwrite
from support.extent import EXTENT, SEED, every
from support.native import needs_native
from support.stores import UnsyncedFileSystem, kill, open_store
from volcache.cli.repair import repair
from volcache.errors import StoreError
from volcache.store import cross_check, native
from volcache.store.cross_check import EntryWalk, Matching
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.index_format import close_block, decode_blocks
from volcache.store.offline import OfflineStore
from volcache.store.recovery import open_contents
from volcache.store.verify import verify
from volcache.store.volume_check import Counts, Finding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from volcache.store.files import FileSystem

    Damage = Callable[[Path, random.Random], None]

pytestmark = [pytest.mark.sampled(6), needs_native]

VOLUME_SIZE: Final = 256 * 1024
VOLUME_NUM: Final = 4
KEYS: Final = [
    *(b"a", b"b/c", b"b c", b"%20", b"#", b"a#b", b"a 0 0\nb", b"\n\x00\xff"),
    *("grün".encode(), b"x" * 300),
    *(b"key %d" % number for number in range(60)),
]


class Result(NamedTuple):
    """What a check says."""

    findings: list[Finding]
    counts: dict[str, int]
    advanced: int


def check(directory: Path, *, is_native: bool, fs: FileSystem | None = None) -> Result:
    """Check a directory with or without the native core."""
    with mock.patch.object(native, "IS_NATIVE", is_native):
        store = OfflineStore.inspect(fs or ReadOnlyFileSystem(), str(directory))
        counts, steps = Counts(), [0]
        try:
            findings = list(verify(store, counts, steps.append))
        finally:
            store.close()
    return Result(findings, asdict(counts), sum(steps))


def repaired(
    directory: Path, copy: Path, *, is_native: bool
) -> tuple[object, list[bytes]]:
    """Repair a copy with or without the native core; return what was said and written."""
    shutil.copytree(directory, copy)
    lines: list[str] = []
    with mock.patch.object(native, "IS_NATIVE", is_native):
        try:
            repair(str(copy), UnsyncedFileSystem(), lines.append)
        except StoreError as error:
            lines.append(type(error).__name__)
    text = [line.replace(str(copy), "") for line in lines]
    return text, [
        path.read_bytes() for path in sorted(copy.joinpath("index").iterdir())
    ]


def make(directory: Path, *, is_closed: bool = True) -> None:
    """Make a store of several volumes with segments, deletions and unusual keys."""
    dice = random.Random(3)  # noqa: S311 - Seeded, to be repeated.
    for _ in range(4):
        store = open_store(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
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


def some_file(directory: Path, folder: str, dice: random.Random) -> Path:
    """Choose a data file or an index file."""
    return dice.choice(sorted((directory / folder).iterdir()))


def rewrite(path: Path, change: Callable[[list[bytes]], None]) -> None:
    """Change the entries of an index file; its checksums stay right."""
    data, previous = b"", None
    for number, block in enumerate(decode_blocks(path.read_bytes())):
        lines = block.lines.splitlines(keepends=True)
        if number and lines:
            change(lines)
        added, previous = close_block(
            b"".join(lines), block.volume_end, sealed=block.sealed, previous=previous
        )
        data += added
    path.write_bytes(data)


def flip_records(directory: Path, dice: random.Random) -> None:
    """Flip bits of volumes."""
    for _ in range(dice.choice([1, 2, 40])):
        path = some_file(directory, "data", dice)
        flip(path, dice.randrange(path.stat().st_size), dice)


def flip_lines(directory: Path, dice: random.Random) -> None:
    """Flip bits of an index file."""
    path = some_file(directory, "index", dice)
    flip(path, dice.randrange(path.stat().st_size), dice)


def cut_volume(directory: Path, dice: random.Random) -> None:
    """Cut a volume."""
    path = some_file(directory, "data", dice)
    os.truncate(path, dice.randrange(path.stat().st_size))


def cut_index_file(directory: Path, dice: random.Random) -> None:
    """Cut an index file."""
    path = some_file(directory, "index", dice)
    os.truncate(path, dice.randrange(path.stat().st_size))


def remove_index_file(directory: Path, dice: random.Random) -> None:
    """Remove an index file."""
    some_file(directory, "index", dice).unlink()


def remove_volume(directory: Path, dice: random.Random) -> None:
    """Remove a data file."""
    some_file(directory, "data", dice).unlink()


def clear_bytes(directory: Path, dice: random.Random) -> None:
    """Overwrite part of a volume with zeros."""
    path = some_file(directory, "data", dice)
    length = dice.choice([64, 512, 5000, 40_000])
    overwrite(path, dice.randrange(path.stat().st_size - length), bytes(length))


def copy_bytes(directory: Path, dice: random.Random) -> None:
    """Overwrite part of a volume with another part."""
    path = some_file(directory, "data", dice)
    data = path.read_bytes()
    start = dice.randrange(len(data) - 5000)
    overwrite(path, dice.randrange(len(data) - 5000), data[start : start + 5000])


def swap_lines(directory: Path, dice: random.Random) -> None:
    """Swap two lines of each block."""

    def change(lines: list[bytes]) -> None:
        one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        lines[one], lines[other] = lines[other], lines[one]

    rewrite(some_file(directory, "index", dice), change)


def remove_lines(directory: Path, dice: random.Random) -> None:
    """Remove lines of each block."""

    def change(lines: list[bytes]) -> None:
        for _ in range(dice.randrange(3)):
            lines[:] = lines[: -dice.randrange(1, 4)]
            if lines:
                del lines[dice.randrange(len(lines))]

    rewrite(some_file(directory, "index", dice), change)


def add_lines(directory: Path, dice: random.Random) -> None:
    """Add a line to each block."""

    def change(lines: list[bytes]) -> None:
        line = dice.choice(lines)
        added = dice.choice(
            [line, b"a 0 0\n", b"new 0 0\n", b"new 64 100\n", b"# a comment\n"]
        )
        lines.insert(dice.randrange(len(lines) + 1), added)

    rewrite(some_file(directory, "index", dice), change)


def change_lines(directory: Path, dice: random.Random) -> None:
    """Change a line of each block."""

    def change(lines: list[bytes]) -> None:
        at = dice.randrange(len(lines))
        if lines[at].startswith(b"#"):
            return
        key, offset, size = lines[at].split()
        lines[at] = dice.choice(
            [
                b"other %b %b\n" % (offset, size),
                b"%%%02x%b %b %b\n" % (key[0], key[1:], offset, size),
                b"%b 00%b %b\n" % (key, offset, size),
                b"%b %d %b\n" % (key, int(offset) + 1, size),
                b"%b %b %d\n" % (key, offset, max(0, int(size) - 1)),
                b"%b 0 0\n" % key,
                b"%b x %b\n" % (key, size),
            ]
        )

    rewrite(some_file(directory, "index", dice), change)


DAMAGES: Final[list[Damage]] = [
    flip_records,
    flip_lines,
    cut_volume,
    cut_index_file,
    remove_index_file,
    remove_volume,
    clear_bytes,
    copy_bytes,
    swap_lines,
    remove_lines,
    add_lines,
    change_lines,
]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_native_core_finds_the_same(
    made: Path, tmp_path: Path, damage: Damage
) -> None:
    """Findings, their order, counts, progress; and repair writes the same."""
    for seed in range(12):
        dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
        directory = tmp_path / str(seed)
        shutil.copytree(made, directory)
        damage(directory, dice)
        if seed % 3 == 2:
            dice.choice(DAMAGES)(directory, dice)

        assert check(directory, is_native=True) == check(directory, is_native=False)

        if seed % 4 == 0:
            one, other = tmp_path / f"{seed} native", tmp_path / f"{seed} python"
            one_repaired = repaired(directory, one, is_native=True)
            assert one_repaired == repaired(directory, other, is_native=False)


@pytest.mark.slow
def test_any_flipped_bit(tmp_path: Path) -> None:
    """In a volume or in its index file; of some bytes one bit, in `make crash` every."""
    made = tmp_path / "made"
    store = open_store(made)
    store.put(b"a", b"v")
    store.put(b"b c", b"value" * 10, content_type=b"text/plain")
    store.delete(b"a")
    store.close()
    store = open_store(made)
    store.put(b"a", b"again")
    end = store.put(b"last", b"x").offset + 100
    store.close()
    dice = random.Random(SEED)  # noqa: S311 - Seeded, to be repeated.
    for name in ("data/0", "index/0"):
        path = made / name
        data = path.read_bytes()
        for offset in every(4, min(len(data), end)):
            for bit in [dice.randrange(8)] if EXTENT else range(8):
                damaged = bytearray(data)
                damaged[offset] ^= 1 << bit
                path.write_bytes(damaged)
                assert check(made, is_native=True) == check(made, is_native=False)
        path.write_bytes(data)


def test_a_record_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    """Longer than the window of the core, and than a piece that a scan reads."""
    store = open_store(tmp_path, volume_size=2**25)
    for number, length in enumerate([100, 2**19, 2**20 + 1, 9 * 2**20, 100, 2**19 + 7]):
        store.put(b"%d" % number, bytes(length))
    store.close()
    healthy = check(tmp_path, is_native=True)
    assert healthy == check(tmp_path, is_native=False)
    assert (healthy.findings, healthy.counts["keys"]) == ([], 6)
    assert healthy.advanced == healthy.counts["bytes"] > 11 * 2**20

    flip(tmp_path / "data" / "0", 3 * 2**20, random.Random(1))  # noqa: S311

    damaged = check(tmp_path, is_native=True)
    assert damaged == check(tmp_path, is_native=False)
    assert [finding.kind for finding in damaged.findings] == ["record"]
    assert damaged.counts["keys"] == 5


class UnreadableFileSystem(ReadOnlyFileSystem):
    """A disk on which reads of some sectors fail."""

    def __init__(self, sectors: set[int]) -> None:
        """Name the sectors by number; in all files longer than 100,000 bytes."""
        self._sectors = sectors

    def _read(self, fd: int, length: int, offset: int) -> bytes:
        last = offset + length - 1
        if self.size(fd) > 100_000 and not self._sectors.isdisjoint(
            range(offset // 4096, last // 4096 + 1)
        ):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, length, offset)

    pread: Any = _read


@pytest.mark.slow
def test_unreadable_sectors(made: Path) -> None:
    """What is in them is missing, all else is found."""
    for seed in range(12):
        dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
        fs = UnreadableFileSystem({dice.randrange(1, 64) for _ in range(seed // 3 + 1)})

        found = check(made, is_native=True, fs=fs)

        assert found == check(made, is_native=False, fs=fs)
        assert found.findings


def test_intact_entries_are_not_decoded(made: Path) -> None:
    """The core passes all of them, deletions included, also in a new segment."""
    store = OfflineStore.inspect(ReadOnlyFileSystem(), str(made))
    for volume in store.volumes:
        contents = open_contents(store.directory, volume)
        walk = EntryWalk(store.directory.fs, volume, contents)
        expected = [entry for block in contents.read() for entry in block]
        with mock.patch.object(cross_check, "decode_entries") as decode:
            events = list(cross_check.cross_check(walk))
            assert not decode.called
        matching = [event for event in events if isinstance(event, Matching)]
        assert matching == events
        assert [entry for event in matching for entry in event.entries()] == expected
        assert sum(event.records for event in matching) == len(expected)
    store.close()
