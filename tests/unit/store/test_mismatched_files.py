"""Files that do not belong together: what a start refuses, and what it says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from support.contents import files_of
from support.damage import overwrite
from support.index_files import decode_blocks, entries_of, rewrite
from support.replaced import mix
from support.stores import (
    VOLUME_NUM,
    BootedFileSystem,
    UnreadableFileSystem,
    fill_volume,
    kill,
    open_fifo,
    value_of,
)
from volcache.errors import MismatchedFilesError
from volcache.store import Store
from volcache.store.files import FileSystem, ReadOnlyFileSystem
from volcache.store.format import Record
from volcache.store.index_format import encode_entries
from volcache.store.offline import OfflineStore
from volcache.store.volume_check import Anomaly, Counts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a place for a mount point, with room for others beside it."""
    return tmp_path / "mount"


def assert_refused(
    directory: Path, *files: str, fs: FileSystem | None = None
) -> set[str]:
    """
    Check that a start is refused, and has changed nothing.

    Returns:
        What `volcache check` reports.

    Args:
        directory: The mount point.
        files: That are named, in their order; `volcache check` reports each.
        fs: Of the start.
    """
    before = files_of(directory)
    with pytest.raises(MismatchedFilesError) as caught:
        open_fifo(directory, fs=fs)
    # LOCK was created if it was missing: it has to be locked.
    assert {**files_of(directory), "LOCK": b""} == {**before, "LOCK": b""}
    assert str(caught.value) == str(MismatchedFilesError(str(directory), files))
    with OfflineStore.inspect(ReadOnlyFileSystem(), str(directory)) as store:
        found = [one for one in store.check(Counts()) if isinstance(one, Anomaly)]
    damaged = {one.file for one in found if one.kind == "file"}
    assert damaged >= set(files) or fs is not None
    return damaged


def change(
    directory: Path, *steps: Callable[[Store], object], is_stopped: bool = True
) -> None:
    """Start a process that does some steps, and stop or kill it."""
    store = open_fifo(directory)
    for step in steps:
        step(store)
    if is_stopped:
        store.close()
    else:
        kill(store)


def put_later(store: Store) -> Record:
    """Put one value."""
    return store.put(b"later", b"value")


def make_store(directory: Path, *, turns: int = 6, is_stopped: bool = True) -> None:
    """Make a store of `VOLUME_NUM` volumes."""
    prefixes = (b"%d" % turn for turn in range(turns))
    fills = [lambda store, prefix=one: fill_volume(store, prefix) for one in prefixes]
    change(directory, *fills, is_stopped=is_stopped)


def make_copy(root: Path) -> Path:
    """Make a store, and return a copy of it."""
    make_store(root)
    return Path(shutil.copytree(root, root.with_name("copy")))


def replace(root: Path, source: Path, names: Iterable[str]) -> None:
    """Copy files."""
    for name in names:
        shutil.copy(source / name, root / name)


def remove(root: Path, *names: str) -> None:
    """Remove files."""
    for name in names:
        (root / name).unlink()


def values_in(root: Path, *keys: bytes) -> list[bytes | None]:
    """Start and stop, and return values."""
    store = open_fifo(root)
    found = [value_of(store.get(key)) for key in keys]
    store.close()
    return found


def leave_out(path: Path, records: int, *, is_sealed: bool) -> None:
    """
    Replace an index file by an intact one without the last records.

    A sealed one says that the volume ends before them.
    """
    left_out = entries_of(path)[-records:]
    lines = encode_entries(left_out).splitlines(keepends=True)

    def remove_lines(block: list[bytes]) -> None:
        block[:] = [line for line in block if line not in lines]

    end = left_out[0][1] if is_sealed else None
    rewrite(path, remove_lines, end=end, sealed=is_sealed)


# --- What is refused -----------------------------------------------------------------


def copy_from_copy(root: Path, name: str, *steps: Callable[[Store], object]) -> None:
    """Make a store and a copy that goes on; replace a file by that of the copy."""
    copy = make_copy(root)
    change(copy, *steps)
    replace(root, copy, [name])


def copy_from_twin(root: Path, name: str) -> None:
    """Let a store and a copy of it go on alike; without LOCK, which has the salt of one."""
    make_store(root)
    shutil.copytree(root, root.with_name("twin"))
    for directory in (root, root.with_name("twin")):
        change(directory, put_later)
    replace(root, root.with_name("twin"), [name])
    remove(root, "LOCK")


def copy_from_other(root: Path, *names: str, is_stopped: bool = True) -> None:
    """Replace files by those of another store."""
    make_store(root, is_stopped=is_stopped)
    make_store(root.with_name("other"), turns=9 if is_stopped else 2)
    replace(root, root.with_name("other"), names)


def put_back_what_was_written(root: Path) -> None:
    """Replace a volume that LOCK names by an earlier use, which no kill explains."""
    mix(root, [])
    change(root, put_later, is_stopped=False)
    replace(root, root.with_name(f"{root.name} earlier"), ["data/2", "index/2"])


def put_back_from_before_a_volume(root: Path) -> None:
    """Put back META.txt, LOCK and a data file from before the volume was started."""
    store = open_fifo(root)
    fill_volume(store)
    store.sync()
    earlier = files_of(root)
    fill_volume(store, b"more")
    volume = put_later(store).volume
    kill(store)
    for name in ("META.txt", "LOCK", f"data/{volume}"):
        (root / name).write_bytes(earlier[name])


def cut_index_file(root: Path) -> None:
    """Replace a data file, and remove the last block of its index file."""
    mix(root, ["data/1"])
    data = (root / "index" / "1").read_bytes()
    (root / "index" / "1").write_bytes(data[: list(decode_blocks(data))[-2].file_end])


def shorten_index_file(root: Path) -> None:
    """Replace a data file, and its index file by one that META.txt does not name."""
    mix(root, ["data/2"])
    leave_out(root / "index" / "2", 1, is_sealed=False)


def lose(root: Path, *names: str) -> None:
    """Lose META.txt and other files."""
    make_store(root, turns=8)
    remove(root, "META.txt", *names)


def lose_meta_and_mix(root: Path) -> None:
    """Lose META.txt, and have an earlier data file."""
    mix(root, ["data/1"])
    remove(root, "META.txt")


def lose_meta_and_copy(root: Path) -> None:
    """Lose META.txt, and replace a volume by that of a copy which went its own way."""
    copy = make_copy(root)
    for directory in (root, copy):
        change(directory, fill_volume, fill_volume)
    remove(root, "META.txt")
    replace(root, copy, ["data/3", "index/3"])


DATA = [f"data/{volume}" for volume in range(VOLUME_NUM)]


@pytest.mark.parametrize(
    ("files", "arrange", "arguments"),
    [
        ("META data/1 data/2 index/1 index/2 LOCK index/0", mix, [["META.txt"]]),
        ("META data/3", copy_from_copy, ["data/3", fill_volume, put_later]),
        ("META index/3", copy_from_copy, ["index/3", fill_volume]),
        ("META index/2", put_back_from_before_a_volume, []),
        ("data/2 index/2", put_back_what_was_written, []),
        ("data/1", cut_index_file, []),
        ("data/2", shorten_index_file, []),
        (
            "META data/2 index/2 data/3 index/3 data/0 index/0 data/1 index/1",
            copy_from_other,
            ["META.txt"],
        ),
        ("META data/3 data/0 data/1 data/2", copy_from_other, DATA),
        ("index/2", copy_from_twin, ["META.txt"]),
        ("index/2", copy_from_twin, ["index/2"]),
        ("META data/1", lose, ["data/2", "index/2"]),
        ("META data/3", lose_meta_and_copy, []),
        ("META LOCK", lose, ["data/0", "index/0"]),
        ("META data/1 data/0", lose_meta_and_mix, []),
    ],
)
def test_start_with_mismatched_files_is_refused(
    root: Path,
    files: str,
    arrange: Callable[..., object],
    arguments: list[object],
) -> None:
    """With the files that do not match, and what to do."""
    arrange(root, *arguments)
    assert_refused(root, *files.replace("META", "META.txt").split())


def test_start_with_a_volume_of_another_store_after_a_power_loss_is_refused(
    root: Path,
) -> None:
    """A power loss takes what was written last, but brings no file of another store."""
    copy_from_other(root, "data/2", "index/2", is_stopped=False)
    assert_refused(root, "data/2", "index/2", fs=BootedFileSystem())


def test_start_with_meta_from_before_the_last_start_is_refused(
    root: Path, tmp_path: Path
) -> None:
    """LOCK has the salt of a mount that it does not name; or it is that of a copy."""
    make_store(root)
    shutil.copy(root / "META.txt", tmp_path)
    change(root, put_later, is_stopped=False)
    replace(root, tmp_path, ["META.txt"])

    assert_refused(root, "META.txt", "LOCK")
    remove(root, "LOCK")
    assert values_in(root, b"5/0") != [None]


def test_start_with_a_replaced_volume_of_unknown_keys_is_refused(root: Path) -> None:
    """What it replaced is not known; no power loss explains it after a stop."""
    mix(root, ["data/1", "index/1"])
    for fs in (None, BootedFileSystem()):
        # That a server refuses to start is reported of META.txt.
        assert "META.txt" in assert_refused(root, "data/1", "index/1", fs=fs)
    remove(root, "index/1")
    assert_refused(root, "data/1")


def test_start_with_a_replaced_active_data_file_does_not_write_it(root: Path) -> None:
    """It may be that of a copy, to be put back there: the next volume is started."""
    mixed = mix(root, ["data/2"])
    before = (root / "data" / "2").read_bytes()
    store = open_fifo(root)
    assert put_later(store).volume == 3
    store.close()

    assert (root / "data" / "2").read_bytes() == before
    left = mixed.of({0, 1})
    assert values_in(root, b"later", *left) == [b"value", *left.values()]


# --- Without META.txt --------------------------------------------------------------


def test_start_with_volumes_of_two_stores_without_meta_is_refused(
    root: Path, tmp_path: Path
) -> None:
    """Those that are fewer do not belong here; or else those that LOCK does not name."""
    make_store(root)
    make_store(tmp_path / "other")
    lock = (root / "LOCK").read_bytes()
    remove(root, "META.txt", "LOCK")
    replace(root, tmp_path / "other", ["data/0"])
    for lock_data, replaced in ((b"", "data/0"), (lock, "data/0, data/2, data/3")):
        if lock_data:
            (root / "LOCK").write_bytes(lock_data)
        replace(root, tmp_path / "other", replaced.split(", "))
        broken = "LOCK" if lock_data else "data/3"
        assert_refused(root, "META.txt", *replaced.split(", "), broken)


def test_start_with_an_unreadable_header_without_meta_is_refused(root: Path) -> None:
    """The volume may be newer than any other one."""
    make_store(root)
    remove(root, "META.txt")

    assert_refused(root, "META.txt", *DATA, fs=UnreadableFileSystem(0))
    open_fifo(root).close()


# --- Keys that are not known -------------------------------------------------------


def make_superseded(directory: Path, *, is_filled: bool = True) -> Record:
    """
    Store a key in two volumes, with other keys in the second one.

    Returns:
        Its second record.
    """
    store = open_fifo(directory)
    store.put(b"same", b"old")
    fill_volume(store, b"old")
    store.put(b"before", b"value")
    record = store.put(b"same", b"new")
    store.put(b"after", b"value")
    store.sync()
    if is_filled:
        fill_volume(store, b"newer")
        put_later(store)
        store.close()
    else:
        kill(store)
    return record


@pytest.mark.parametrize(
    ("byte", "is_filled"), [(b"\0", True), (b"\0", False), (b"\xff", True)]
)
def test_start_with_records_missing_before_a_known_end_drops_the_volume(
    root: Path, byte: bytes, *, is_filled: bool
) -> None:
    """
    And all older ones. They may have been newer values.

    META.txt has the end, or LOCK that of a killed process; or records follow.
    """
    record = make_superseded(root, is_filled=is_filled)
    remove(root, f"index/{record.volume}")
    path = root / "data" / str(record.volume)
    size = record.size if byte != b"\0" else path.stat().st_size - record.offset
    overwrite(path, record.offset, byte * size)

    *gone, later = values_in(root, b"old/1", b"before", b"same", b"later")
    assert gone == [None] * 3
    assert bool(later) == is_filled


def test_start_with_earlier_files_of_a_volume_without_meta_drops_it(root: Path) -> None:
    """Its index file was sealed before the next volume was started."""
    store = open_fifo(root)
    store.put(b"same", b"old")
    fill_volume(store)
    volume = store.put(b"before", b"value").volume
    store.sync()
    earlier = files_of(root)
    store.put(b"same", b"new")
    fill_volume(store, b"more")
    put_later(store)
    store.close()
    for name in (f"data/{volume}", f"index/{volume}"):
        (root / name).write_bytes(earlier[name])
    remove(root, "META.txt")

    *gone, left = values_in(root, b"same", b"before", b"fill/1", b"later")
    assert gone == [None] * 3
    assert left == b"value"


def test_start_with_a_sealed_index_file_that_ends_early_finds_all_records(
    root: Path,
) -> None:
    """META.txt has the end of the volume: the rest is found by a scan."""
    volume = make_superseded(root).volume
    leave_out(root / "index" / str(volume), 3, is_sealed=True)
    store = open_fifo(root)

    assert store.recovery.scanned == 3
    assert value_of(store.get(b"same")) == b"new"
    store.close()


def test_start_with_a_damaged_deletion_keeps_it(root: Path) -> None:
    """Its entry was in the index file when the delete returned."""
    store = open_fifo(root)
    store.put(b"key", b"value")
    last = store.put(b"other", b"value")
    store.delete(b"key")
    kill(store)
    overwrite(root / "data" / "0", last.offset + last.size, b"\xff" * 60)

    assert values_in(root, b"key", b"other") == [None, b"value"]


@pytest.mark.parametrize("damage", ["", "index lost", "copied"])
def test_hot_snapshot_with_other_files_is_not_used(root: Path, damage: str) -> None:
    """The last index file shows it, and META.txt has the inode of the snapshot."""
    change(
        root,
        lambda store: store.put(b"key", b"value"),
        lambda store: store.write_hot_snapshot(lambda binding: binding.encode()),
    )
    if damage == "index lost":
        remove(root, "index/0")
    elif damage == "copied":
        shutil.copy(root / "HOT.txt", root / "HOT.txt.new")
        (root / "HOT.txt.new").rename(root / "HOT.txt")
    store = open_fifo(root)

    assert bool(store.take_hot_snapshot()[0]) is not bool(damage)
    assert value_of(store.get(b"key")) == b"value"
    store.close()


def test_start_after_a_flush_without_meta_brings_nothing_back(root: Path) -> None:
    """The header of the volume that the flush has started ends what is valid."""
    make_store(root)
    change(root, lambda store: store.flush(), put_later)
    remove(root, "META.txt")
    store = open_fifo(root)
    assert (store.count, value_of(store.get(b"later"))) == (1, b"value")
    store.close()
