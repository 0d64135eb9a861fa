"""
Kill the process or cut the power during purges, and replace PURGE.txt or META.txt.

A value that was stored before an acknowledged purge of its key is never returned again,
also not when the entry was dropped. Of a purge that was not acknowledged both outcomes are
allowed, but not one after the other.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from support.damage import flipped
from support.extent import EXTENT, SEED
from support.histories import (
    MOUNT_POINT,
    VOLUME_BYTES,
    Files,
    files_of,
    make_disk,
    open_simulated,
)
from support.simulated import SimulatedFileSystem
from support.unsynced import File
from volcache.cli.repair import repair
from volcache.errors import MismatchedFilesError
from volcache.store import Store
from volcache.store.eviction import Eviction

pytestmark = [pytest.mark.sampled(2), pytest.mark.crash, pytest.mark.slow]

KEYS: Final = [b"%b/%d" % (name, n) for name in (b"a", b"a/b", b"c") for n in range(3)]
PREFIXES: Final = [b"a/b/", b"c", b"a/", b"a/b/1", b"c/2"]
# In each step something is put or purged; with as many, all volumes are reclaimed twice.
STEPS: Final = 30
VOLUME_NUM: Final = 5


class Script:
    """Puts and purges in turn, and which values may be returned."""

    def __init__(
        self, fs: SimulatedFileSystem, eviction: Eviction, *, is_synced: bool
    ) -> None:
        """Begin with an empty store."""
        self.fs = fs
        self.eviction = eviction
        self.is_synced = is_synced
        self.values: dict[bytes, bytes | None] = {}
        self.is_new: set[bytes] = set()  # keys that cannot have been reclaimed
        self.under_way: tuple[str, bytes] = ("", b"")
        self.store = self.open(fs)

    def open(self, fs: SimulatedFileSystem) -> Store:
        """Start on a disk."""
        return open_simulated(
            fs,
            sync_mode="always" if self.is_synced else "none",
            volume_num=VOLUME_NUM,
            eviction=self.eviction,
        )

    def run(self) -> None:
        """Do every step; read some keys, so that they are copied."""
        for number in range(STEPS):
            for key in KEYS[::2]:
                self.store.get(key)
            if number % 5 == 3:
                self.purge(PREFIXES[number // 5 % len(PREFIXES)])
            if number == STEPS // 2:
                self.store.close()
                self.store = self.open(self.fs)
            self.put(KEYS[number * 4 % len(KEYS)], b"%d" % number)
            self.put(b"fill", b"%d" % number)

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value of a quarter of a volume."""
        value = value.ljust(VOLUME_BYTES // 5, b".")
        self.under_way = ("put " + value.decode(), key)
        self.store.put(key, value)
        self.under_way = ("", b"")
        self.values[key] = value

    def purge(self, prefix: bytes) -> None:
        """Purge a prefix."""
        self.under_way = ("purge", prefix)
        self.store.purge(prefix)
        self.under_way = ("", b"")
        for key in self.values:
            if key.startswith(prefix):
                self.values[key] = None

    def verify(self, store: Store) -> None:
        """Compare every key, then store until all that was there is reclaimed."""
        what, name = self.under_way
        before: dict[bytes, bytes | None] = {}
        for key, value in self.values.items():
            allowed = {value, None}
            if what.startswith("put ") and name == key:
                allowed.add(what[4:].encode())
            record = store.get(key)
            before[key] = None if record is None else record.value
            assert before[key] in allowed, key
        self.verify_none_returns(store, before)

    def verify_none_returns(
        self, store: Store, before: dict[bytes, bytes | None]
    ) -> None:
        """Whatever is a miss now stays one, also when purges are dropped."""
        for number in range(3 * VOLUME_NUM):
            if number % 2 and self.eviction == "frequency":
                store.get(b"later %d" % number)  # For ring probation.
            store.put(b"later %d" % number, bytes(VOLUME_BYTES * 3 // 4))
            for key, value in before.items():
                if value is None:
                    assert store.get(key) is None, key


class Explorer:
    """Verifies what a crash leaves, at every operation of the script."""

    def __init__(self, eviction: Eviction, *, power_lost: bool) -> None:
        """Prepare a run on an empty disk."""
        self.power_lost = power_lost
        fs = SimulatedFileSystem()
        self.script = Script(fs, eviction, is_synced=power_lost)
        self.dice = random.Random(SEED)  # noqa: S311 - Repeatable on purpose.
        self.images = self.purging = 0
        fs.watch = self.look

    def look(self, name: str, data: bytes, file: File | None, offset: int) -> None:
        """Verify what is left if the crash comes before this operation."""
        del name, file, offset
        is_purging = self.script.under_way[0] == "purge"
        # Of the others a sample: test_power_loss.py has all of them.
        if not is_purging and self.dice.random() > 0.03 * (EXTENT or 30):
            return
        self.purging += is_purging
        fs = self.script.fs
        torn = sorted(
            {0, *(self.dice.sample(range(len(data)), min(len(data), EXTENT or 9)))}
        )
        images = [fs.after_kill(torn=length) for length in torn]
        if self.power_lost:
            images = [fs.after_power_loss(self.dice) for _ in range(EXTENT or 10)]
        for image in images:
            self.images += 1
            store = self.script.open(image)
            if self.dice.random() < 0.5:
                store = self.script.open(image.after_kill())
            self.script.verify(store)


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("eviction", ["fifo", "frequency"])
def test_nothing_that_was_purged_returns_after_a_crash(
    eviction: Eviction, *, power_lost: bool
) -> None:
    """At any operation, in both eviction policies."""
    explorer = Explorer(eviction, power_lost=power_lost)
    explorer.script.run()

    assert explorer.purging > 40
    assert explorer.images > 60


# --- Replaced files ----------------------------------------------------------------

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
    outcomes: Counter[str] = Counter()
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
