"""A mount point in which files were replaced by those of an earlier copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from support.contents import values
from support.stores import open_fifo, value_of

# The volumes of the mount point, oldest first, with their sequence numbers, and the
# sequence numbers of two of them in the copy.
SEQUENCES = {3: 4, 0: 5, 1: 6, 2: 7}
EARLIER = {1: 2, 2: 3}
ACTIVE = 2


class Mixed(NamedTuple):
    """What a mount point had before its files were replaced."""

    values: dict[bytes, bytes]
    volumes: dict[bytes, int]  # that the values are in

    def of(self, volumes: Iterable[int]) -> dict[bytes, bytes]:
        """Return the values in some volumes."""
        ids = set(volumes)
        return {key: v for key, v in self.values.items() if self.volumes[key] in ids}


def newer_than(volume: int) -> list[int]:
    """Return the volumes that were started after another one."""
    return [v for v, seq in SEQUENCES.items() if seq > SEQUENCES[volume]]


def mix(directory: Path, names: Iterable[str]) -> Mixed:
    """Make a mount point of four volumes, and replace files by those of a copy."""
    earlier = directory.with_name(f"{directory.name} earlier")
    _fill_volumes(directory, range(4))
    shutil.copytree(directory, earlier)
    _fill_volumes(directory, range(4, 6))
    found = values(directory)
    store = open_fifo(directory)
    assert [v.seq for v in store.usage().volumes] == [SEQUENCES[v] for v in range(4)]
    volumes = {key: record.volume for key in found if (record := store.get(key))}
    store.close()
    for name in names:
        shutil.copy(earlier / name, directory / name)
    return Mixed(found, volumes)


def _fill_volumes(directory: Path, turns: range) -> None:
    """Fill a volume in each turn, with new keys and with keys of all turns before."""
    store = open_fifo(directory)
    for turn in turns:
        rotations, number = store.stats.rotations, 0
        while store.stats.rotations == rotations:
            value = (b"%d " % turn).ljust(700, b".")
            store.put(b"again/%d" % number, value)
            store.put(b"%d/%d" % (turn, number), value)
            number += 1
    assert value_of(store.get(b"again/0")) is not None
    store.close()
