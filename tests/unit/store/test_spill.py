"""spill.py: a start without index files needs little memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from bench.extra.boot import Job, in_new_process
from support.stores import WatchedFileSystem, fail, kill, open_store, value_of
from volcache.store import spill

KIB: Final = 1 << 10
KEYS: Final = 300_000


def read_index(mount_point: Path) -> dict[str, list[bytes]]:
    """Return the entries of the index files, in their order."""
    return {
        file.name: [
            line for line in file.read_bytes().splitlines() if not line.startswith(b"#")
        ]
        for file in (mount_point / "index").iterdir()
    }


@pytest.mark.parametrize("is_refused", [False, True])
def test_start_without_index_files_rebuilds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """Or from memory if the disk does not take it; in several blocks, and complete."""
    monkeypatch.setattr(spill, "_SPILLED_BYTES", 1000)
    if is_refused:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: fail())
    sizes = {"volume_size": 2048 * KIB, "volume_num": 8}
    store = open_store(str(tmp_path), **sizes)
    for number in range(6000):
        store.put(b"key %d" % (number % 5000), b"%d" % number + bytes(500))
        if number % 7 == 0:
            store.delete(b"key %d" % (number // 2))
    expected = {b"key %d" % n: value_of(store.get(b"key %d" % n)) for n in range(5000)}
    store.close()
    entries = read_index(tmp_path)
    shutil.rmtree(tmp_path / "index")
    for scanned in (6000, 0):
        store = open_store(str(tmp_path), **sizes)
        assert store.recovery.damaged == store.recovery.unknown == 0
        found = {key: value_of(store.get(key)) for key in expected}
        assert found == expected
        assert read_index(tmp_path) == entries
        if scanned:
            kill(store)
        else:
            assert store.recovery.scanned == 0
            store.close()


@pytest.mark.parametrize("allowed", [0, 1, 2, 3])
def test_start_with_a_refused_index_block_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    """What follows it is not written either: the next start scans it."""
    monkeypatch.setattr(spill, "_SPILLED_BYTES", 1000)
    sizes = {"volume_size": 8192 * KIB, "volume_num": 4}
    store = open_store(str(tmp_path), **sizes)
    for number in range(10_000):
        store.put(b"key %d" % (number % 9000), b"%d" % number + bytes(500))
    store.close()
    shutil.rmtree(tmp_path / "index")
    fs, writes = WatchedFileSystem(), count()

    def before_write(fd: int, *_: object) -> None:
        """Refuse to write to index files after some writes."""
        is_index = "/index/" in str(Path(f"/proc/self/fd/{fd}").readlink())
        if is_index and next(writes) >= allowed:
            fail()

    fs.before_write = before_write
    store = open_store(str(tmp_path), **sizes, fs=fs)
    assert store.stats.index_errors
    store.put(b"key 1", b"new")
    kill(store)
    store = open_store(str(tmp_path), **sizes)
    for number in range(2, 9000):
        last = number + 9000 if number < 1000 else number
        found = value_of(store.get(b"key %d" % number))
        assert found is not None
        assert found.startswith(b"%d\0" % last)
    assert value_of(store.get(b"key 1")) == b"new"
    store.close()


@pytest.mark.slow
@pytest.mark.skipif("ASAN_OPTIONS" in os.environ, reason="sanitizers need memory")
def test_start_without_index_files_needs_no_memory_for_entries(
    tmp_path: Path,
) -> None:
    """Only for the index, as one with index files, and a fixed amount."""
    job = Job(keys=KEYS)
    place = tmp_path / "store"
    in_new_process("fill", place, job)
    peaks = []
    for _ in range(2):
        peaks.append(in_new_process("open", place, job)["resident_max"])
        shutil.rmtree(place / "index")

    assert peaks[1] - peaks[0] < 12 << 20, asdict(job)
