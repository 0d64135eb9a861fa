"""
Replace PURGE.txt or META.txt by other files: no purge is undone by it.

What crashes during purges leave is in support/rings.py.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from support.damage import flipped
from support.extent import SEED
from support.histories import MOUNT_POINT, Files, files_of, make_disk, open_simulated
from support.simulated import SimulatedFileSystem
from volcache.cli.repair import repair
from volcache.errors import MismatchedFilesError
from volcache.store import Store

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KEYS: Final = [b"%b/%d" % (name, n) for name in (b"a", b"a/b", b"c") for n in range(3)]
NAMES: Final = ["PURGE.txt", "META.txt"]
ALL_FILES: Final = [
    *NAMES,
    *("LOCK", "data/0", "data/1", "data/2", "data/3"),
    *("index/0", "index/1", "index/2", "index/3"),
]


class Scene:
    """A store, its files at some moments, and those of others."""

    def __init__(self, *, is_stopped: bool) -> None:
        """Write all of them."""
        fs = SimulatedFileSystem()
        store = open_simulated(fs)
        self.sources: dict[str, Files] = {"nothing": {}}
        for key in KEYS:
            store.put(key, b"old")
        self.sources["before all"] = files_of(fs, NAMES)
        store.purge(b"a/1")
        self.sources["the first"] = files_of(fs, ALL_FILES)
        for name, prefix in (("a copy", b"c/1"), ("a copy, later", b"a/2")):
            copy_fs = make_disk(self.sources["the first"])
            copy = open_simulated(copy_fs)
            copy.purge(prefix)
            if name != "a copy":
                copy.purge(b"x")
            self.sources[name] = files_of(copy_fs, NAMES)
        other_fs = SimulatedFileSystem()
        other = open_simulated(other_fs)
        other.purge(b"x")
        self.sources["another store"] = files_of(other_fs, NAMES)
        store.purge(b"c/")
        self.sources["the second"] = files_of(fs, NAMES)
        store.put(b"c/1", b"new")
        store.purge(b"a/b")
        if is_stopped:
            store.close()
        self.files = files_of(fs, ALL_FILES)
        self._add_damaged(self.files["PURGE.txt"])
        self.values = {
            key: b"old" for key in KEYS if not key.startswith((b"a/1", b"c/", b"a/b"))
        } | {b"c/1": b"new"}

    def _add_damaged(self, data: bytes) -> None:
        """Add files with a wrong bit, and those that are too short."""
        cut = (data[:length] for length in range(0, len(data), 9))
        for number, damaged in enumerate((*list(flipped(data))[::7], *cut)):
            self.sources[f"damage {number}"] = {"PURGE.txt": damaged}

    def attacks(self) -> Iterator[tuple[str, Files]]:
        """Yield which of the two files was replaced or removed, and the files after it."""
        for (name, source), path in itertools.product(self.sources.items(), NAMES):
            if path == "META.txt" and path not in source:
                continue
            files = {other: data for other, data in self.files.items() if other != path}
            if path in source:
                files[path] = source[path]
            yield f"{path} from {name}", files

    def verify(self, store: Store, what: str) -> None:
        """Compare all keys."""
        for key in KEYS:
            record = store.get(key)
            assert record is None or record.value == self.values.get(key), (what, key)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_no_replaced_file_brings_back_what_was_purged(*, is_stopped: bool) -> None:
    """The start is refused, or right; and after a repair it is right."""
    scene = Scene(is_stopped=is_stopped)
    outcomes = Counter[str]()
    for what, files in scene.attacks():
        fs = make_disk(files)
        try:
            store = open_simulated(fs)
        except MismatchedFilesError:
            outcomes["refused"] += 1
            fs = make_disk(files)
            repair(MOUNT_POINT, fs, lambda _: None)
            store = open_simulated(fs)
        else:
            outcomes["served"] += 1
        scene.verify(store, what)
    assert outcomes["refused"] > 50


@pytest.mark.parametrize("growth", [0, 1 << 20])
def test_a_crash_during_a_purge_undoes_none_before(
    growth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A kill or a power loss before each change of the disk, and in the middle of a write.

    PURGE.txt is replaced at some purges, or, with 1 MiB, at the first after a start only.
    """
    monkeypatch.setattr("volcache.store.rings._PURGE_GROWTH", growth)
    dice, fs = random.Random(SEED), SimulatedFileSystem()  # noqa: S311
    store, purged, changes = open_simulated(fs), set[bytes](), Counter[str]()

    def watch(name: str, data: bytes) -> None:
        changes[name] += 1
        disks = [fs.after_power_loss(dice), fs.after_kill()]
        if len(data) > 1:
            disks.append(fs.after_kill(torn=dice.randrange(len(data))))
        for disk in disks:
            verify_purged(disk, purged)
            open_simulated(disk).purge(b"later")
            verify_purged(disk.after_power_loss(dice), purged)

    for number in range(24):
        key = b"key %d/x" % (number % 5)
        store.put(key, b"old")
        store.sync()
        purged.discard(key)
        fs.watch = watch
        store.purge(key[:-1])
        fs.watch = None
        purged.add(key)
        verify_purged(fs.after_kill(), purged)
        if number % 7 == 6:
            store.close()
            store = open_simulated(fs)
    # Each purge writes META.txt, and PURGE.txt or a line of it.
    assert changes["pwritev"] == 48
    appended = changes["pwritev"] - changes["rename"]
    assert appended == 20 if growth else 8 < appended < 20


def verify_purged(disk: SimulatedFileSystem, keys: set[bytes]) -> None:
    """Open the store on a disk as it is; it has none of these keys."""
    store = open_simulated(disk)
    assert not [key for key in keys if store.get(key) is not None]
    store.drop()
