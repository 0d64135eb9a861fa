"""native.py and the extension: what is accepted, and which implementation is chosen."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from support.native import BareProcess, needs_native
from support.stores import UnsyncedFileSystem, open_store
from support.tables import each_row
from volcache.store import native
from volcache.store.index import PythonIndex
from volcache.store.writer import SyncFailedError

if TYPE_CHECKING:
    from pathlib import Path

if native.IS_NATIVE:
    from volcache.store._core import _native

KEY = bytes(range(16))
VOLUME_BYTES = 2**24
FS = UnsyncedFileSystem()


def make_index(*, volumes: int = 2) -> _native.Index:
    """Return a small native index."""
    return _native.Index(FS, KEY, volume_bytes=VOLUME_BYTES, volumes=volumes)


# --- The index ---------------------------------------------------------------------


@needs_native
def test_hash_key_has_16_bytes() -> None:
    """Any other length is an error."""
    for length in (0, 1, 15, 17, 32):
        with pytest.raises(ValueError, match="must have 16 bytes"):
            _native.Index(FS, bytes(length), volume_bytes=VOLUME_BYTES, volumes=2)


@needs_native
@each_row(
    ("volume_bytes", "volumes"),
    [(2**40, 2**8), (2**40 + 1, 1), (2**24, 65_537), (2**24, 0), (2**32, 2**16)],
)
def test_index_whose_positions_do_not_fit_is_refused(
    volume_bytes: int, volumes: int
) -> None:
    """Positions have 48 bits, for twice as many volumes as there may be."""
    with pytest.raises(MemoryError):
        _native.Index(FS, KEY, volume_bytes=volume_bytes, volumes=volumes)


@needs_native
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
    assert index.find(b"k") == (1000, 64, _native.size_max(70))


@needs_native
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
    assert index.reclaim(7) == index.live(7) == (0, 0)


@needs_native
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
    assert index.find(b"other") == (1, 64, _native.size_max(70))
    assert index.count == 1


@needs_native
def test_key_is_found_only_where_its_volume_was_bound(tmp_path: Path) -> None:
    """Without it, `read` finds nothing; `find` does."""
    store = open_store(tmp_path, fs=BareProcess(UnsyncedFileSystem()))
    record = store.put(b"k", b"value")
    index = make_index()
    index.add_volume(3)
    index.set(b"k", 3, record.offset, record.size)
    assert index.find(b"k") == (3, record.offset, _native.size_max(record.size))
    assert index.read(b"k") is None

    active = store.core_parts().log.active  # type: ignore[union-attr]
    index.bind_volume(3, active.fd, active.id, active.salts)
    assert index.read(b"k") == tuple(record)

    index.close()
    assert index.read(b"k") is None
    store.close()


@needs_native
@each_row("name", ["find", "hits", "is_deleted", "read", "is_stale"])
def test_key_that_is_not_bytes_is_refused(name: str) -> None:
    """None and text are errors, not another key."""
    for key in (None, "k", 5, bytearray(b"k")):
        with pytest.raises(TypeError):
            getattr(make_index(), name)(key)


# --- The choice --------------------------------------------------------------------


@each_row(
    ("volume_bytes", "volumes"),
    [
        *((2**40, 2**8), (2**40, 2**20), (2**24, 65_537), (2**40, 129)),
        (2**41, 64),
    ],
)
def test_too_large_a_store_has_the_index_in_python(
    volume_bytes: int, volumes: int
) -> None:
    """It works all the same, with more memory."""
    index = native.make_index(
        FS, 1, volumes=volumes, volume_bytes=volume_bytes, expected=0
    )
    assert isinstance(index, PythonIndex)
    assert not index.is_native


@needs_native
@each_row(
    ("volume_bytes", "volumes"),
    [(1, 1), (4096, 3), (2**24, 65_536), (2**31, 65_536), (2**40, 128)],
)
def test_largest_stores_have_the_native_index(volume_bytes: int, volumes: int) -> None:
    """Whatever `make_index` lets pass, the extension accepts."""
    index = native.make_index(
        FS, 1, volumes=volumes, volume_bytes=volume_bytes, expected=0
    )
    assert index.is_native
    for seq in (1, 2**47):
        if volumes > 1 or seq == 1:
            index.add_volume(seq)
            index.set(b"k", seq, max(volume_bytes, VOLUME_BYTES) - 1, 2**31)
            position = index.find(b"k")
            assert position is not None
            assert position[:2] == (seq, max(volume_bytes, VOLUME_BYTES) - 1)


def test_hash_key_depends_on_the_store() -> None:
    """The same at every start, another one for another store."""
    keys = {native.hash_key_of(store_id) for store_id in (0, 1, 2**64 - 1)}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {16}
    assert native.hash_key_of(1) in keys


# --- The writer --------------------------------------------------------------------


def make_writer(fd: int) -> _native.Writer:
    """Return a writer with 1 MiB of room."""
    writer = _native.Writer(FS, fd, 1)
    writer.capacity = 1 << 20
    return writer


def append(writer: _native.Writer, key: bytes, value: bytes, *types: bytes) -> None:
    """Append a record."""
    types = types or (b"", b"", b"")
    writer.append(key, value, *types, 1, 0, 0, False, False)  # type: ignore[call-arg, arg-type]


@needs_native
def test_key_or_stored_header_of_wrong_length_is_refused() -> None:
    """Nothing is written."""
    fd = os.memfd_create("volume")
    writer = make_writer(fd)
    for key in (b"", bytes(65_536), bytes(100_000)):
        with pytest.raises(ValueError, match="1 to 65,535"):
            append(writer, key, b"v")
    for lengths in ((256, 0, 0), (0, 256, 0), (70_000, 1, 0), (0, 0, 256)):
        with pytest.raises(ValueError, match="at most 255"):
            append(writer, b"k", b"v", *map(bytes, lengths))
    assert (writer.end, writer.pending) == (64, 0)
    assert os.fstat(fd).st_size == 0
    os.close(fd)


@needs_native
def test_record_may_end_where_the_volume_ends() -> None:
    """One byte more is refused, and changes nothing."""
    writer = make_writer(fd := os.memfd_create("volume"))
    writer.capacity = 64 + 65 + 10
    with pytest.raises(ValueError, match="longer than the rest"):
        append(writer, b"k", bytes(11))
    assert (writer.end, writer.pending) == (64, 0)
    append(writer, b"k", bytes(10))
    assert writer.end == writer.capacity
    with pytest.raises(ValueError, match="longer than the rest"):
        append(writer, b"k", b"")
    os.close(fd)


@needs_native
def test_closed_file_is_an_error_of_the_disk() -> None:
    """For a write; and the bare functions of `os` are called without Python."""
    writer = make_writer(-1)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        append(writer, b"k", b"v")
    assert not isinstance(caught.value, SyncFailedError)
    assert (writer.end, writer.pending) == (64, 0)


def test_a_server_in_python_warns_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason."""
    monkeypatch.setattr(native, "IS_NATIVE", False)
    monkeypatch.setattr(native, "WHY_NOT", "there was no compiler")
    with caplog.at_level(logging.INFO):
        native.warn_if_python()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == "core.python reason='there was no compiler'"


@pytest.mark.slow
def test_environment_variable_selects_python() -> None:
    """In a process that has it."""
    code = "from volcache.store import native; print(native.IS_NATIVE, native.WHY_NOT)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"VOLCACHE_PURE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
    )
    assert done.stdout == b"False VOLCACHE_PURE is set\n"
