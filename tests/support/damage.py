"""A store of a few thousand records, and ways to damage its files."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.contents import files_of
from support.stores import open_fifo
from volcache.cli.dump import dump

VOLUME_SIZE = 192 * 1024
VOLUME_NUM = 5


class Extent(NamedTuple):
    """The place of a record."""

    volume: int
    start: int
    end: int


RECORDS = 3000


def keys(records: int = RECORDS) -> list[bytes]:
    """Return the keys that `fill` chooses from."""
    return [b"folder/key %d" % number for number in range(records)]


def fill(directory: Path, records: int = RECORDS, seed: int = 1) -> None:
    """Make a directory after puts, overwrites and deletes that reuse all volumes."""
    for name, data in _filled(records, seed).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@cache
def _filled(records: int, seed: int) -> dict[str, bytes]:
    """Return the files of such a directory; to write them takes a tenth of the time."""
    dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
    with tempfile.TemporaryDirectory() as folder:
        store = open_fifo(folder, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
        for number in range(records):
            key = b"folder/key %d" % dice.randrange(records)
            store.put(key, dice.randbytes(dice.randrange(700)))
            if number % 9 == 0:
                store.delete(key)
        store.close()
        return files_of(Path(folder))


def extents(directory: Path) -> list[Extent]:
    """Return the places of all records of a directory that is not damaged yet."""
    rows = dump(str(directory), 0)
    return [Extent(row.volume, row.offset, row.offset + row.size) for row in rows]


def flip(path: Path, offset: int, dice: random.Random | None = None) -> None:
    """Flip one or more bits of a byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ (dice.randrange(1, 256) if dice else 0x55)]))


def flipped(data: bytes) -> Iterator[bytes]:
    """Yield some bytes with each bit flipped once."""
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
