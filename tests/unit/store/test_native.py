"""native.py: how many volumes an index may have, and what is said without the core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.stores import UnsyncedFileSystem, open_store
from support.tables import each_row
from volcache.errors import GeometryError
from volcache.store import native
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.offline import OfflineStore

VOLUME_BYTES = 2**24
FS = UnsyncedFileSystem()


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
def test_open_too_many_or_too_long_volumes_is_refused(
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


def test_open_volumes_that_were_longer_is_refused(tmp_path: Path) -> None:
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
def test_import_without_the_core_says_how_to_get_it() -> None:
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


def test_hash_key_of_another_store_is_another() -> None:
    """The same at every start, another one for another store."""
    keys = {native.hash_key_of(store_id) for store_id in (0, 1, 2**64 - 1)}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {16}
    assert native.hash_key_of(1) in keys
