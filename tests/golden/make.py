"""
Make the directories in `v2`: what format version 2 looks like on a disk.

They were made once and are not made again for that version: the tests open copies of them
to show that today's code still reads what was written then. Run it for a new version, into
a new folder: `python tests/golden/make.py FOLDER`
"""

from __future__ import annotations

import shutil
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from volcache.store import Store
from volcache.store.clock import Clock
from volcache.store.files import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

VOLUME_SIZE = 2048
VOLUME_NUM = 3
STORE_ID = 0x0123456789ABCDEF
NOW_MS = 1_790_000_000_000
_ODD = 0x9E3779B97F4A7C15


class OneBoot(OsFileSystem):
    """The real disk of a machine that always has the same boot id."""

    def boot_id(self) -> str:
        """Return a fixed id."""
        return "01234567-89ab-4cde-8f01-23456789abcd"


def random_numbers() -> Iterator[int]:
    """Yield the salt of volume 0, the store id, and more salts."""
    salts = (_ODD * use % 2**64 for use in count(1))
    yield next(salts)
    yield STORE_ID
    yield from salts


def open_store(directory: Path) -> Store:
    """Open a store whose bytes are deterministic, as far as random numbers are."""
    return Store.open(
        str(directory),
        volume_size=VOLUME_SIZE,
        volume_num=VOLUME_NUM,
        fs=OneBoot(),
        clock=Clock(lambda: NOW_MS * 1000, lambda: 0),
    )


@mock.patch("secrets.randbits")
def make_healthy(directory: Path, before_stop: Path, randbits: mock.Mock) -> None:
    """
    Every kind of record and entry, over more than a full turn and two mounts.

    Args:
        directory: Is created, with a store that was stopped.
        before_stop: Becomes a copy of META.txt as it was before the stop.
        randbits: Returns the random numbers.
    """
    randbits.side_effect = random_numbers()
    store = open_store(directory)
    for turn in range(VOLUME_NUM):
        store.put(b"turn", b"%d" % turn)
        store.put(b"fill/%d" % turn, bytes([48 + turn]) * 1500)
        store.put(b"fill/%d more" % turn, bytes([48 + turn]) * 300)
    store.put(b"a/hello.txt", b"Hello, disk!\n", content_type=b"text/plain")
    store.put(b"gr\xc3\xbcn & 100%", b"")
    store.put(b"packed", b"\x1f\x8b", content_encoding=b"gzip", flags=0x01020304)
    store.close()
    store = open_store(directory)
    store.put(b"later gone", b"x", expires_ms=NOW_MS + 1000)
    store.put(b"deleted", b"x")
    store.delete(b"deleted")
    shutil.copy(directory / "META.txt", before_stop)
    store.close()
    (directory / "LOCK").unlink()


def make_all(target: Path) -> None:
    """Create the healthy directory and damaged copies of it."""
    target.mkdir(exist_ok=True)
    healthy, meta = target / "healthy", target / "META.txt"
    make_healthy(healthy, meta)
    for name in ("no_index", "no_meta", "torn_tail", "bit_rot"):
        shutil.copytree(healthy, target / name)
    shutil.rmtree(target / "no_index" / "index")
    (target / "no_meta" / "META.txt").unlink()
    # A power loss during the stop: of the tombstone, the last record, and of the last
    # block of its index file not all bytes have reached the disk, nor has META.txt.
    meta.rename(target / "torn_tail" / "META.txt")
    overwrite(target / "torn_tail" / "data" / "1", b"deleted", 7, bytes(4))
    index = target / "torn_tail" / "index" / "1"
    whole = index.read_bytes()
    index.write_bytes(whole[: whole.rindex(b"later%20gone 689") + 10])
    # One wrong byte in the value of "fill/1 more".
    overwrite(target / "bit_rot" / "data" / "2", b"1111111111", 5, b"3")


def overwrite(path: Path, behind: bytes, skip: int, new: bytes) -> None:
    """Overwrite the bytes `skip` after the beginning of the last `behind`."""
    data = bytearray(path.read_bytes())
    at = data.rindex(behind) + skip
    data[at : at + len(new)] = new
    path.write_bytes(data)


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
