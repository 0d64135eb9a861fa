"""`volcache import` is killed at any moment: what was stored before is kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.stores import (
    Crash,
    CrashingFileSystem,
    UnsyncedFileSystem,
    open_store,
    value_of,
)
from volcache.cli.import_ import ImportLimits, import_folder
from volcache.store.files import FileSystem

pytestmark = pytest.mark.crash

LIMITS = ImportLimits(
    volume_size=4096, volume_num=4, max_value_size=2000, max_key_size=99
)


def fill(root: Path, files: int, length: int) -> dict[bytes, bytes]:
    """Make a store with two keys, and a folder with one of them; return the files."""
    store = open_store(root / "store", volume_size=4096)
    store.put(b"old", b"kept")
    store.put(b"000", b"before")
    store.close()
    (root / "files").mkdir()
    values = {
        b"%03d" % number: bytes([number % 256]) * length for number in range(files)
    }
    for key, value in values.items():
        (root / "files" / key.decode()).write_bytes(value)
    return values


def test_an_import_killed_at_any_step_keeps_what_was_stored(tmp_path: Path) -> None:
    """The store has the files up to that step; a second import adds the others."""
    for survive in range(200):
        root = tmp_path / str(survive)
        files = fill(root, files=8, length=900)
        fs: Any = CrashingFileSystem(UnsyncedFileSystem(), survive, torn=70)
        ended = False
        with suppress(Crash):
            run(root, fs)
            ended = True
        fs.die()
        keys = sorted(files)
        store = open_store(root / "store", volume_size=4096)
        assert value_of(store.get(b"old")) == b"kept"
        assert value_of(store.get(b"000")) in {b"before", files[b"000"]}
        found = [key for key in keys if value_of(store.get(key)) == files[key]]
        assert found == keys[: len(found)]
        assert store.count == 2 + max(0, len(found) - 1)
        store.close()
        run(root, UnsyncedFileSystem())
        store = open_store(root / "store", volume_size=4096)
        assert [value_of(store.get(key)) for key in keys] == list(files.values())
        store.close()
        if ended:
            break
    else:
        pytest.fail("the import never completed")
    assert survive > 20


def run(root: Path, fs: FileSystem) -> None:
    """Import the folder."""
    import_folder(
        str(root / "store"),
        str(root / "files"),
        limits=LIMITS,
        expires_ms=0,
        report=lambda _: None,
        fs=fs,
    )
