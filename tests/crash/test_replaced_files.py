"""
Replace files of a stopped or killed store, with one ring or two, and start.

Each file, alone and with each other one, and each three with META.txt, is replaced by an
earlier one of the same store, by one of a clone of it that went its own way, by
one of another store, or is removed; META.txt is there or not. With two rings that is in the
middle of a reclaim; and files of two volumes are swapped, and files are cut off. A get must
then return the value that was put last, or a miss, or the start is refused.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from support.extent import SEED, Count, step
from support.histories import MOUNT_POINT, VOLUME_BYTES, Files, files_of, make_disk
from support.simulated import SimulatedFileSystem
from support.stores import FakeClock, open_store
from volcache.cli.repair import repair
from volcache.errors import MismatchedFilesError
from volcache.store import Store
from volcache.store.eviction import Eviction
from volcache.store.format import Ring

pytestmark = [pytest.mark.sampled(2), pytest.mark.crash, pytest.mark.slow]

KEYS: Final = [b"key %d" % number for number in range(18)]
VOLUME_NUM: Final[dict[Eviction, int]] = {"fifo": 4, "frequency": 6}


class Scene(NamedTuple):
    """The files of a mount point, what they should contain, and files from elsewhere."""

    paths: list[str]
    files: Files
    values: dict[bytes, bytes | None]  # those put last; None: deleted
    sources: dict[str, Files]


def start(fs: SimulatedFileSystem, volumes: int, eviction: Eviction) -> Store:
    """Start a process on a disk."""
    return open_store(
        MOUNT_POINT,
        volume_size=VOLUME_BYTES,
        volume_num=volumes,
        eviction=eviction,
        reinsert_reads=1.0,
        fs=fs,
        clock=FakeClock(),
        sync_mode="periodic",
    )


class Writer:
    """A store in use, with values that no other one has."""

    def __init__(
        self, name: bytes, eviction: Eviction, files: Files | None = None
    ) -> None:
        """Start on an empty disk, or on one with files."""
        self.fs = make_disk(files) if files else SimulatedFileSystem()
        self.name, self.eviction = name, eviction
        volumes = VOLUME_NUM[eviction]
        self.store = start(self.fs, volumes, eviction)
        self.values: dict[bytes, bytes | None] = {}
        self.paths = ["META.txt", "LOCK"]
        for kind in ("data", "index"):
            self.paths += [f"{kind}/{number}" for number in range(volumes)]
        self._number = 0
        self._dice = random.Random(name)  # noqa: S311 - Repeatable.

    def write(self, number: int) -> None:
        """Put and delete some values, then sync."""
        for _ in range(number):
            self._number += 1
            is_deletion = self._number % 6 == 5
            key, copies = KEYS[self._number * 7 % 13], 12
            if self.eviction == "frequency":
                key, copies = self._read(is_asked=not is_deletion), 20
            if is_deletion:
                self.store.delete(key)
                self.values[key] = None
            else:
                self.values[key] = b"%b %d" % (self.name, self._number) * copies
                self.store.put(key, self.values[key] or b"")
        self.store.sync()

    def _read(self, *, is_asked: bool) -> bytes:
        """Read some values, so that they are copied; return a key for either ring."""
        dice = self._dice
        for _ in range(4):
            self.store.get(min(dice.choices(KEYS, k=2)))
        key = dice.choice(KEYS)
        if is_asked and dice.random() < 0.6:
            self.store.stat(key)
        return key

    def rotate(self, number: int) -> None:
        """Write until so many volumes were started."""
        until = self.store.stats.rotations + number
        while self.store.stats.rotations < until:
            self.write(1)

    def reclaim(self) -> None:
        """Write until a volume of ring probation is reclaimed and has copies."""
        while True:
            self.write(1)
            reclaimer = self.store._log.evictor.reclaimer
            if reclaimer is None or not reclaimer.targets:
                continue
            if reclaimer.volume.use.ring is Ring.PROBATION:
                return

    def files(self) -> Files:
        """Return the contents of all files."""
        return files_of(self.fs, self.paths)


def go_on(ours: Writer, sources: dict[str, Files]) -> str:
    """Write, and note the files at some moments; return which ones a copy is made of."""
    if ours.eviction == "fifo":
        ours.rotate(4)
        for name in ("a turn ago", "a volume ago"):
            ours.write(3)
            sources[name] = ours.files()
            ours.rotate(5 if name == "a turn ago" else 1)
        ours.write(4)
        sources["in this volume"] = ours.files()
        return "in this volume"
    ours.rotate(6)
    ours.reclaim()
    sources["a turn ago"] = ours.files()
    ours.rotate(8)
    ours.reclaim()
    sources["before a reclaim"] = ours.files()
    ours.rotate(1)
    sources["after a reclaim"] = ours.files()
    return "after a reclaim"


def make_scene(eviction: Eviction, *, is_stopped: bool) -> Scene:
    """Write three stores: ours, a copy of it from some time ago, and another one."""
    ours = Writer(b"ours", eviction)
    sources: dict[str, Files] = {}
    latest = go_on(ours, sources)
    more = 4 if eviction == "fifo" else 0
    rotations = (2, 6, 9) if eviction == "fifo" else (3, 9, 12)
    copy = Writer(b"copy", eviction, sources[latest])
    copy.write(4)
    sources["a copy"] = copy.files()
    copy.rotate(rotations[0])
    sources["a copy, later"] = copy.files()
    late = Writer(b"late", eviction, sources["a turn ago"])
    late.rotate(rotations[1])
    late.write(more)
    sources["an old copy"] = late.files()
    other = Writer(b"other", eviction)
    other.rotate(rotations[2])
    other.write(more)
    sources["another store"] = other.files()
    sources["nothing"] = {}
    if eviction == "fifo":
        ours.write(4)
    else:
        ours.reclaim()
    if is_stopped:
        ours.store.close()
    return Scene(ours.paths, ours.files(), ours.values, sources)


def replaced(scene: Scene) -> Iterator[tuple[str, Files]]:
    """Yield what was replaced, and the files after it; up to three at the same time."""
    for (name, source), size in itertools.product(scene.sources.items(), (1, 2, 3)):
        for paths in itertools.combinations(scene.paths, size):
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
    volumes = range(len(scene.paths) // 2 - 1)
    for one, other in itertools.combinations(volumes, 2):
        for kinds in (("data",), ("index",), ("data", "index")):
            for lost in ("", "META.txt", "LOCK"):
                if lost == "LOCK" and len(kinds) > 1:
                    continue  # These are five files, which is not promised.
                files = dict(scene.files)
                for kind in kinds:
                    here, there = f"{kind}/{one}", f"{kind}/{other}"
                    files[here] = scene.files.get(there, b"")
                    files[there] = scene.files.get(here, b"")
                files.pop(lost, None)
                yield f"{kinds} of {one} and {other} swapped, without {lost}", files
    for path, share in itertools.product(scene.paths, (0, 1, 4, 7)):
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
@pytest.mark.parametrize(
    ("eviction", "attacks"),
    [("fifo", replaced), ("frequency", replaced), ("frequency", swapped)],
)
def test_no_replaced_file_exposes_a_wrong_value(
    eviction: Eviction,
    attacks: Callable[[Scene], Iterator[tuple[str, Files]]],
    record_property: Count,
    *,
    is_stopped: bool,
) -> None:
    """At the start, at the next one after more puts, and after a repair."""
    scene = make_scene(eviction, is_stopped=is_stopped)
    outcomes: Counter[str] = Counter()
    # The distances have no factor in common with the numbers of files.
    distance = step(7 if eviction == "fifo" else 5) if attacks is replaced else 1
    cases = itertools.islice(attacks(scene), SEED % distance, None, distance)
    volumes = VOLUME_NUM[eviction]
    for number, (what, files) in enumerate(cases):
        policy: Eviction = "fifo" if number % 3 == 0 else eviction
        fs = make_disk(files)
        try:
            store = start(fs, volumes, policy)
        except MismatchedFilesError:
            outcomes["refused"] += 1
            fs = make_disk(files)
            repair(MOUNT_POINT, fs, lambda _: None)
            store = start(fs, volumes, policy)
            files_counted = what.count("'") // 2
            if eviction == "frequency":
                files_counted = what.count("/") + what.count("META.txt'")
            if files_counted > 2:
                continue  # Three files may agree that they are another store.
        else:
            outcomes["served"] += 1
        assert wrong_values(store, scene) == {}, what
        for more in range(volumes + 2):
            store.put(b"new %d" % more, bytes(700))
        again = start(fs.after_kill(), volumes, eviction)
        assert wrong_values(again, scene) == {}, what
    for outcome, count in outcomes.items():
        record_property(f"starts_{outcome}", count)

    assert outcomes["refused"] > 10
    assert outcomes["served"] > 10


@pytest.mark.parametrize("is_stopped", [True, False])
def test_without_replaced_files_every_value_is_there(*, is_stopped: bool) -> None:
    """Also if META.txt or all index files are lost."""
    scene = make_scene("fifo", is_stopped=is_stopped)
    expected: set[bytes] = set()
    for lost in ("none", "META.txt", "index", "LOCK"):
        files = {
            path: data
            for path, data in scene.files.items()
            if not path.startswith(lost)
        }
        store = start(make_disk(files), VOLUME_NUM["fifo"], "fifo")
        found = {key for key in KEYS if store.get(key)}
        expected = expected or found
        assert found == expected != set(), lost
