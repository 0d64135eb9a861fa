"""A store of a few thousand records, and ways to damage its files."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from support.stores import open_store
from volcache.store.format import VOLUME_HEADER_BYTES

if TYPE_CHECKING:
    from pathlib import Path

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
    """Put, overwrite and delete until all volumes have been reused, and close."""
    dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
    store = open_store(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
    for number in range(records):
        key = b"folder/key %d" % dice.randrange(records)
        store.put(key, dice.randbytes(dice.randrange(700)))
        if number % 9 == 0:
            store.delete(key)
    store.close()


def extents(directory: Path) -> list[Extent]:
    """Return the places of all records, from the index files."""
    found = []
    for path in sorted(directory.joinpath("index").iterdir()):
        at = VOLUME_HEADER_BYTES
        for line in path.read_text().splitlines():
            if line.startswith("#"):
                continue
            key, offset, size = line.split(" ")
            # Of the bytes in these keys, only the space is escaped.
            deleted = 64 + len(key.replace("%20", " "))
            end = at + (int(size) or deleted)
            assert int(offset) in {0, at}
            found.append(Extent(int(path.name), at, end))
            at = end
    return found


def flip(path: Path, offset: int, dice: random.Random) -> None:
    """Flip one or more bits of a byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ dice.randrange(1, 256)]))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
