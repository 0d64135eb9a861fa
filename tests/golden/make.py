"""
Make the directories beside this file: what format version 1 looks like on a disk.

They were made once and are not made again for that version: the tests open copies of them
to show that today's code still reads what was written then. Run it for a new version, into
a new folder: `python tests/golden/make.py FOLDER`
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from volcache.store import Store

VOLUME_SIZE = 2048
VOLUME_NUM = 3
STORE_ID = 0x0123456789ABCDEF
NOW_MS = 1_790_000_000_000


def open_store(directory: Path) -> Store:
    """Open a store whose bytes are deterministic."""
    with mock.patch("secrets.randbits", return_value=STORE_ID):
        return Store.open(
            str(directory),
            volume_size=VOLUME_SIZE,
            volume_num=VOLUME_NUM,
            clock=lambda: NOW_MS,
        )


def make_healthy(directory: Path) -> None:
    """Every kind of record and entry, over a full turn."""
    store = open_store(directory)
    for turn in range(VOLUME_NUM):
        store.put(b"turn", b"%d" % turn)
        store.put(b"fill/%d" % turn, bytes([48 + turn]) * 1500)
        store.put(b"fill/%d more" % turn, bytes([48 + turn]) * 300)
    store.put(b"a/hello.txt", b"Hello, disk!\n", content_type=b"text/plain")
    store.put(b"gr\xc3\xbcn & 100%", b"")
    store.put(b"packed", b"\x1f\x8b", content_encoding=b"gzip")
    store.put(b"later gone", b"x", expires_ms=NOW_MS + 1000)
    store.put(b"deleted", b"x")
    store.delete(b"deleted")
    store.close()


def make_all(target: Path) -> None:
    """Create the healthy directory and damaged copies of it."""
    healthy = target / "healthy"
    make_healthy(healthy)
    (healthy / "LOCK").unlink()
    for name in ("no_index", "no_meta", "torn_tail", "bit_rot"):
        shutil.copytree(healthy, target / name)
    shutil.rmtree(target / "no_index" / "index")
    (target / "no_meta" / "META.txt").unlink()
    # Of the tombstone, the last record, not all bytes have reached the disk.
    cut(target / "torn_tail" / "data" / "1", b"deleted", 7, bytes(4))
    index = target / "torn_tail" / "index" / "1"
    index.write_bytes(index.read_bytes()[:150])
    cut(target / "bit_rot" / "data" / "2", b"1111111111", 5, b"3")


def cut(path: Path, behind: bytes, skip: int, new: bytes) -> None:
    """Overwrite the bytes `skip` after the last occurrence of `behind`."""
    data = bytearray(path.read_bytes())
    at = data.rindex(behind) + skip
    data[at : at + len(new)] = new
    path.write_bytes(data)


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
