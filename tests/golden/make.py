"""
Make the directories in `v2`: what format version 2 looks like on a disk.

They were made once and are not made again for that version: the tests open copies of them
to show that today's code still reads what was written then. Run it for a new version, into
a new folder: `python tests/golden/make.py FOLDER`
"""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from collections.abc import Callable, Iterator

from support.clocks import ManualClock
from volcache.store import Store
from volcache.store.files import OsFileSystem

VOLUME_SIZE = 2048
VOLUME_NUM = 3
RING_VOLUMES = 5  # of the directories with two rings
RING_VOLUME_SIZE = 1024
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


def make(function: Callable[..., None], *paths: Path) -> None:
    """Let a function create directories, with the same random numbers each time."""
    with mock.patch("secrets.randbits", side_effect=random_numbers()):
        function(*paths)


@contextmanager
def opened(
    directory: Path, size: int = VOLUME_SIZE, number: int = VOLUME_NUM, **options: Any
) -> Iterator[Store]:
    """Open a store whose bytes are deterministic, and stop it."""
    store = Store.open(
        str(directory),
        volume_size=size,
        volume_num=number,
        fs=OneBoot(),
        clock=ManualClock(lambda: NOW_MS * 1000, lambda: 0),
        **options,
    )
    yield store
    store.close()
    (directory / "LOCK").unlink()


def make_healthy(directory: Path, before_stop: Path) -> None:
    """
    Every kind of record and entry, over more than a full turn and two mounts.

    Args:
        directory: Is created, with a store that was stopped.
        before_stop: Becomes a copy of META.txt as it was before the stop.
    """
    with opened(directory) as store:
        for turn in range(VOLUME_NUM):
            store.put(b"turn", b"%d" % turn)
            store.put(b"fill/%d" % turn, bytes([48 + turn]) * 1500)
            store.put(b"fill/%d more" % turn, bytes([48 + turn]) * 300)
        store.put(b"a/hello.txt", b"Hello, disk!\n", content_type=b"text/plain")
        store.put(b"gr\xc3\xbcn & 100%", b"")
        store.put(b"packed", b"\x1f\x8b", content_encoding=b"gzip", flags=0x01020304)
    with opened(directory) as store:
        store.put(b"later gone", b"x", expires_ms=NOW_MS + 1000)
        store.put(b"deleted", b"x")
        store.delete(b"deleted")
        shutil.copy(directory / "META.txt", before_stop)


def make_directives(directory: Path) -> None:
    """Create a stopped store with a value that has cache directives."""
    with opened(directory) as store:
        store.put(
            b"tile.pbf",
            b"\x1a\x0a",
            content_type=b"application/x-protobuf",
            content_encoding=b"gzip",
            cache_control=b"public, immutable",
            expires_ms=NOW_MS + 60_000,
        )
        store.put(b"plain", b"value")


def make_purged(directory: Path) -> None:
    """
    Values that were stored before and after two purges, killed after the second.

    That has appended a line to PURGE.txt. In `purged`, which is older, it has replaced the
    file; that is what a purge does if the file has grown.
    """
    with opened(directory.with_name("stopped")) as store:
        for key in (b"tiles/12/a", b"tiles/12/b", b"tiles/13/a", b"gr\xc3\xbcn/1"):
            store.put(key, b"old")
        store.purge(b"tiles/12/")
        store.put(b"tiles/12/b", b"new")
        store.purge(b"gr\xc3\xbcn/")
        store.sync()
        shutil.copytree(
            directory.with_name("stopped"),
            directory,
            ignore=shutil.ignore_patterns("LOCK", "1", "2"),
        )
    shutil.rmtree(directory.with_name("stopped"))


def ask_and_put(store: Store, key: bytes, value: bytes) -> None:
    """Put a value that was asked for: it belongs to ring probation."""
    assert store.get(key) is None
    store.put(key, value)


def make_rings(directory: Path, killed: Path) -> None:
    """
    Values in both rings, copies of some, and of these a newer value and a deletion.

    Args:
        directory: Is created, with a store that was stopped.
        killed: Becomes a copy as it was in the middle of the reclaim: three values of the
            volume of ring probation have been copied; of one, the copy was replaced, and
            of another, it was deleted.
    """
    rings: dict[str, Any] = {"eviction": "frequency", "reinsert_reads": 1.0}
    with opened(directory, RING_VOLUME_SIZE, RING_VOLUMES, **rings) as store:
        store.put(b"main/0", b"0" * 300)
        for number in range(4):
            ask_and_put(store, b"asked/%d" % number, b"%d" % number * 120)
        ask_and_put(store, b"asked/once", b"1" * 600)
        for number in (1, 2, 3):
            for _ in range(3):
                store.get(b"asked/%d" % number)
        for number in count(1):
            if (
                store.usage().eviction.reclaiming >= 0
                and store.stats.disposition.copied == 3
            ):
                break
            store.put(b"main/%d" % number, b"%d" % number * 100)
        store.put(b"asked/2", b"newer")
        store.delete(b"asked/3")
        shutil.copytree(directory, killed, ignore=shutil.ignore_patterns("LOCK"))
        for number in range(4):
            store.put(b"later/%d" % number, b"%d" % number * 100)


def make_all_rings(target: Path) -> None:
    """Create directories with two rings, and damaged copies of them."""
    killed = target / "rings_killed"
    make(make_rings, target / "rings", killed)
    for name in ("no_index", "no_meta", "bit_rot"):
        shutil.copytree(killed, target / f"rings_{name}")
    shutil.rmtree(target / "rings_no_index" / "index")
    (target / "rings_no_meta" / "META.txt").unlink()
    # One wrong byte in the copy of "asked/1", which is in ring main.
    overwrite_copy(target / "rings_bit_rot" / "data", b"1" * 120)


def overwrite_copy(data: Path, value: bytes) -> None:
    """Damage a value in the newest volume that has it."""
    found = [path for path in data.iterdir() if value in path.read_bytes()]
    newest = max(
        found, key=lambda path: int.from_bytes(path.read_bytes()[20:28], "little")
    )
    overwrite(newest, value, 5, b"?")


def make_all(target: Path) -> None:
    """Create the healthy directories and damaged copies of them."""
    target.mkdir(exist_ok=True)
    make_all_rings(target)
    make(make_directives, target / "directives")
    make(make_purged, target / "purged_appended")
    healthy, meta = target / "healthy", target / "META.txt"
    make(make_healthy, healthy, meta)
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
