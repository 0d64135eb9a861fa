"""
Replace files of a store with two rings, in the middle of a reclaim, and start.

As in test_replaced_files.py: each file, alone and with each other one, is replaced by an
earlier one, by one of a copy of the mount point or of another store, or is removed; also,
files of two volumes are swapped, and files are cut off. A get must then return the value
that was put last, or a miss, or the start is refused.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from support.extent import SEED, step
from support.histories import MOUNT_POINT, Files, files_of, make_disk
from support.simulated import SimulatedFileSystem
from support.stores import FakeClock, open_store
from volcache.cli.repair import repair
from volcache.errors import MismatchedFilesError
from volcache.store.format import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store import Store
    from volcache.store.eviction import Eviction

pytestmark = [pytest.mark.sampled(2), pytest.mark.crash, pytest.mark.slow]

VOLUMES: Final = range(6)
FILES: Final = [
    *("META.txt", "LOCK"),
    *(f"{kind}/{number}" for kind in ("data", "index") for number in VOLUMES),
]
KEYS: Final = [b"key %d" % number for number in range(18)]


class Scene(NamedTuple):
    """The files of a mount point, what they should contain, and files from elsewhere."""

    files: Files
    values: dict[bytes, bytes | None]  # those put last; None: deleted
    sources: dict[str, Files]


def start(fs: SimulatedFileSystem, eviction: Eviction = "frequency") -> Store:
    """Open a store with two rings."""
    return open_store(
        MOUNT_POINT,
        volume_size=2048,
        volume_num=len(VOLUMES),
        eviction=eviction,
        reinsert_reads=1.0,
        fs=fs,
        clock=FakeClock(),
        sync_mode="periodic",
    )


class Writer:
    """A store in use, with values that no other one has."""

    def __init__(self, name: bytes, fs: SimulatedFileSystem | None = None) -> None:
        """Start on an empty disk, or on one with files."""
        self.fs = fs or SimulatedFileSystem()
        self.name = name
        self.store = start(self.fs)
        self.values: dict[bytes, bytes | None] = {}
        self._number = 0
        self._dice = random.Random(name)  # noqa: S311 - Repeatable.

    def write(self, number: int) -> None:
        """Read some values, then put or delete one, so many times; then sync."""
        dice = self._dice
        for _ in range(number):
            self._number += 1
            for _ in range(4):
                self.store.get(min(dice.choices(KEYS, k=2)))
            key = dice.choice(KEYS)
            if self._number % 6 == 5:
                self.store.delete(key)
                self.values[key] = None
            else:
                if dice.random() < 0.6:
                    self.store.stat(key)
                self.values[key] = b"%b %d" % (self.name, self._number) * 20
                self.store.put(key, self.values[key] or b"")
        self.store.sync()

    def rotate(self, number: int) -> None:
        """Write until so many volumes were started."""
        until = self.store.stats.rotations + number
        while self.store.stats.rotations < until:
            self.write(1)

    def reclaim(self) -> None:
        """Write until a volume of ring probation is reclaimed and has copies."""
        while True:
            self.write(1)
            reclaimer = self.store._log._reclaimer
            if reclaimer is None or not reclaimer.targets:
                continue
            if reclaimer.volume.use.ring is Ring.PROBATION:
                return

    def files(self) -> Files:
        """Return the contents of all files."""
        return files_of(self.fs, FILES)


def make_scene(*, is_stopped: bool) -> Scene:
    """Write three stores: ours, a copy of it from some time ago, and another one."""
    ours = Writer(b"ours")
    sources: dict[str, Files] = {}
    ours.rotate(6)
    ours.reclaim()
    sources["a turn ago"] = ours.files()
    ours.rotate(8)
    ours.reclaim()
    sources["before a reclaim"] = ours.files()
    ours.rotate(1)
    sources["after a reclaim"] = ours.files()
    copy = Writer(b"copy", make_disk(sources["after a reclaim"]))
    copy.write(4)
    sources["a copy"] = copy.files()
    copy.rotate(3)
    sources["a copy, later"] = copy.files()
    late = Writer(b"late", make_disk(sources["a turn ago"]))
    late.rotate(9)
    sources["an old copy"] = late.files()
    other = Writer(b"other")
    other.rotate(12)
    sources["another store"] = other.files()
    sources["nothing"] = {}
    ours.reclaim()
    if is_stopped:
        ours.store.close()
    return Scene(ours.files(), ours.values, sources)


def replaced(scene: Scene) -> Iterator[tuple[str, Files]]:
    """Yield what was replaced, and the files after it; up to three at the same time."""
    for (name, source), size in itertools.product(scene.sources.items(), (1, 2, 3)):
        for paths in itertools.combinations(FILES, size):
            if size == 3 and "META.txt" not in paths:  # All three would be too many.
                continue
            for is_meta_there in {True, "META.txt" in paths}:
                files = dict(scene.files)
                for path in paths:
                    files.pop(path, None)
                    if path in source:
                        files[path] = source[path]
                if not is_meta_there:
                    files.pop("META.txt", None)
                yield f"{paths} from {name}, META.txt {is_meta_there}", files


def swapped(scene: Scene) -> Iterator[tuple[str, Files]]:
    """Yield the files after those of two volumes were swapped, or one was cut off."""
    for one, other in itertools.combinations(VOLUMES, 2):
        for kinds in (("data",), ("index",), ("data", "index")):
            for lost in ("", "META.txt", "LOCK"):
                files = dict(scene.files)
                for kind in kinds:
                    here, there = f"{kind}/{one}", f"{kind}/{other}"
                    files[here], files[there] = (
                        scene.files.get(there, b""),
                        scene.files.get(here, b""),
                    )
                if lost == "LOCK" and len(kinds) > 1:
                    continue  # These are five files, which is not promised.
                files.pop(lost, None)
                yield f"{kinds} of {one} and {other} swapped, without {lost}", files
    for path, share in itertools.product(FILES, (0, 1, 4, 7)):
        files = dict(scene.files)
        if path in files:
            files[path] = files[path][: len(files[path]) * share // 8]
            yield f"{path} cut to {share}/8", files


def wrong_values(store: Store, scene: Scene) -> dict[bytes, bytes]:
    """Return the values that a get must not return."""
    wrong = {}
    for key in KEYS:
        record = store.get(key)
        if record is not None and record.value != scene.values.get(key):
            wrong[key] = record.value[:20]
    return wrong


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize("attacks", [replaced, swapped])
def test_no_replaced_file_of_two_rings_exposes_a_wrong_value(
    attacks: Callable[[Scene], Iterator[tuple[str, Files]]], *, is_stopped: bool
) -> None:
    """At the start, at the next one after more puts, and after a repair."""
    scene = make_scene(is_stopped=is_stopped)
    outcomes: Counter[str] = Counter()
    distance = step(5) if attacks is replaced else 1
    cases = itertools.islice(attacks(scene), SEED % distance, None, distance)
    for number, (what, files) in enumerate(cases):
        eviction: Eviction = "fifo" if number % 3 == 0 else "frequency"
        fs = make_disk(files)
        try:
            store = start(fs, eviction)
        except MismatchedFilesError:
            outcomes["refused"] += 1
            fs = make_disk(files)
            repair(MOUNT_POINT, fs, lambda _: None)
            store = start(fs, eviction)
            if what.count("/") + what.count("META.txt'") > 2:
                continue  # Three files may agree that they are another store.
        else:
            outcomes["served"] += 1
        assert wrong_values(store, scene) == {}, what
        for more in range(8):
            store.put(b"new %d" % more, bytes(700))
        again = start(fs.after_kill())
        assert wrong_values(again, scene) == {}, what
    print(outcomes)  # noqa: T201

    assert outcomes["refused"] > 10
    assert outcomes["served"] > 10
