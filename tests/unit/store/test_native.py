"""native.py and the extension: what is accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from support.stores import BareProcess, UnsyncedFileSystem, open_store
from support.tables import each_row
from volcache.errors import GeometryError
from volcache.store import native
from volcache.store._core import _native
from volcache.store.files import ReadOnlyFileSystem, SyncFailedError
from volcache.store.format import Ring, VolumeUse
from volcache.store.offline import OfflineStore
from volcache.store.volume import Volume

KEY = bytes(range(16))
VOLUME_BYTES = 2**24
FS = UnsyncedFileSystem()


def make_index(*, volumes: int = 2) -> _native.Index:
    """Return a small native index."""
    return _native.Index(FS, KEY, volume_bytes=VOLUME_BYTES, volumes=volumes)


# --- The index ---------------------------------------------------------------------


@each_row("volumes", [1, 2, 3, 5])
def test_more_volumes_than_promised_are_refused(volumes: int) -> None:
    """Until one is reclaimed; a volume that is there already is no error."""
    index = make_index(volumes=volumes)
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


def test_volume_that_was_not_added_is_an_error() -> None:
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
def test_impossible_position_is_not_set(offset: int, size: int) -> None:
    """A file may name any numbers; the entry that the key had may stay or not."""
    index = make_index()
    index.add_volume(1)
    index.set(b"other", 1, 64, 70)
    index.set(b"k", 1, offset, size)
    assert index.find(b"k") is None
    assert index.find(b"other") == (1, 64, 72)
    assert index.count == 1


def test_key_is_found_only_where_its_volume_was_bound(tmp_path: Path) -> None:
    """Without it, `read` finds nothing; `find` does."""
    store = open_store(tmp_path, fs=BareProcess(UnsyncedFileSystem()))
    record = store.put(b"k", b"value")
    index = make_index()
    index.add_volume(3)
    index.set(b"k", 3, record.offset, record.size)
    found = index.find(b"k")
    assert found is not None
    assert found[:2] == (3, record.offset)
    assert index.read(b"k") is None

    active = store._log.rings.last_started
    index.bind_volume(3, active.fd, active.id, active.salts)
    assert index.read(b"k") == tuple(record)

    index.close()
    assert index.read(b"k") is None
    store.close()


@each_row("name", ["find", "is_deleted", "read", "is_stale"])
def test_key_that_is_not_bytes_is_refused(name: str) -> None:
    """None and text are errors, not another key."""
    for key in (None, "k", 5, bytearray(b"k")):
        with pytest.raises(TypeError):
            getattr(make_index(), name)(key)


# --- The geometry ------------------------------------------------------------------


@each_row(
    ("volume_bytes", "volumes", "allowed"),
    [
        *((1, 65_536, "most 65535 of"), (2**31, 65_536, "most 65535 of")),
        *((2**31 + 1, 32_768, "most 32767 of"), (2**39, 256, "most 255 of")),
        *(
            (2**40, 128, "most 127 of"),
            (2**40 + 1, 1, "of at most 1099511627776 bytes"),
        ),
    ],
)
def test_too_many_or_too_long_volumes_are_refused(
    volume_bytes: int, volumes: int, allowed: str
) -> None:
    """The error says what is allowed; one less is accepted."""
    with pytest.raises(GeometryError, match=f"{volumes} volumes of .*{allowed}"):
        open_store("/nowhere", volume_size=volume_bytes, volume_num=volumes)
    with pytest.raises(GeometryError):
        native.make_index(FS, 1, volumes=volumes, volume_bytes=volume_bytes, expected=0)
    if volumes == 1:
        return
    last = volumes - 1
    index = native.make_index(
        FS, 1, volumes=last, volume_bytes=volume_bytes, expected=0
    )
    for seq in range(last + 1):  # One more while the log rotates.
        index.add_volume(seq)
        index.set(b"k", seq, max(volume_bytes, VOLUME_BYTES) - 1, 1)
        position = index.find(b"k")
        assert position is not None
        assert position[:2] == (seq, max(volume_bytes, VOLUME_BYTES) - 1)


def test_volumes_that_were_longer_are_refused(tmp_path: Path) -> None:
    """By a start, and by what reads the files; nothing was changed."""
    open_store(tmp_path).close()
    os.truncate(tmp_path / "data" / "0", 2**40)
    before = (tmp_path / "META.txt").read_bytes()
    with pytest.raises(GeometryError, match="200 volumes of up to 1099511627776 bytes"):
        open_store(tmp_path, volume_num=200)
    assert (tmp_path / "META.txt").read_bytes() == before
    os.truncate(tmp_path / "data" / "0", 2**40 + 1)
    store = OfflineStore.inspect(ReadOnlyFileSystem(), str(tmp_path))
    with pytest.raises(GeometryError, match="of at most 1099511627776 bytes"):
        store.make_index()
    store.close()


@pytest.mark.slow
def test_without_the_core_one_line_says_how_to_get_it() -> None:
    """From the import of the store, and from a command; others work."""
    hidden = "import sys; sys.modules['volcache.store._core._native'] = None; "
    main = "from volcache.cli.main import main; sys.exit(main({}))"
    for code, words in (
        ("import volcache.store", []),
        (main, ["check", "data"]),
        (main, ["files", "--help"]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", hidden + code.format(words)],
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
            capture_output=True,
            text=True,
        )
        works = words[:1] == ["files"]
        assert (done.returncode, bool(done.stdout)) == (0 if works else 1, works)
        last = done.stderr.splitlines()[-1:]
        assert (
            works or "pip install --force-reinstall --no-cache-dir volcache" in last[0]
        )
        assert not words or len(done.stderr.splitlines()) == len(last)


def test_hash_key_depends_on_the_store() -> None:
    """The same at every start, another one for another store."""
    keys = {native.hash_key_of(store_id) for store_id in (0, 1, 2**64 - 1)}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {16}
    assert native.hash_key_of(1) in keys


# --- The writer --------------------------------------------------------------------


def make_volume(fd: int) -> Volume:
    """Return a volume with 1 MiB of room."""
    volume = Volume(FS, fd, use=VolumeUse(1, 1, Ring.MAIN, 1), store_id=1)
    volume.set_room(1 << 20, 1 << 20)
    return volume


def append(volume: Volume, key: bytes, value: bytes, *types: bytes) -> None:
    """Put a record into a volume."""
    index = make_index()
    index.add_volume(volume.seq)
    first, second, third = types or (b"", b"", b"")
    index.put(key, value, first, second, third, 1, 0, 0, volume=volume)


def test_key_or_stored_header_of_wrong_length_is_refused() -> None:
    """Nothing is written."""
    fd = os.memfd_create("volume")
    volume = make_volume(fd)
    for key in (b"", bytes(65_536), bytes(100_000)):
        with pytest.raises(ValueError, match="1 to 65,535"):
            append(volume, key, b"v")
    for lengths in ((256, 0, 0), (0, 256, 0), (70_000, 1, 0), (0, 0, 256)):
        with pytest.raises(ValueError, match="at most 255"):
            append(volume, b"k", b"v", *map(bytes, lengths))
    assert (volume.end, volume.lines) == (64, b"")
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_closed_file_is_an_error_of_the_disk() -> None:
    """For a write; and the bare functions of `os` are called without Python."""
    volume = make_volume(-1)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        append(volume, b"k", b"v")
    assert not isinstance(caught.value, SyncFailedError)
    assert (volume.end, volume.lines) == (64, b"")
