"""
Replace files of a stopped or killed store, and start.

Each file, alone and with each other one, is replaced by an earlier one of the same store,
by one of a copy of the mount point that went its own way, by one of another store, or is
removed; META.txt is there or not. A get must then return the value that was put last, or
a miss, or the start is refused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from support.extent import SEED, step
from support.histories import (
    MOUNT_POINT,
    Files,
    files_of,
    make_disk,
    open_simulated,
)
from support.simulated import SimulatedFileSystem
from volcache.cli.repair import repair
from volcache.errors import MismatchedFilesError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.store import Store

pytestmark = [pytest.mark.crash, pytest.mark.slow]

VOLUMES: Final = range(4)
FILES: Final = [
    *("META.txt", "LOCK"),
    *(f"{kind}/{number}" for kind in ("data", "index") for number in VOLUMES),
]
KEYS: Final = [b"key %d" % number for number in range(13)]


class Scene(NamedTuple):
    """The files of a mount point, what they should contain, and files from elsewhere."""

    files: Files
    values: dict[bytes, bytes | None]  # those put last; None: deleted
    sources: dict[str, Files]


class Writer:
    """A store in use, with values that no other one has."""

    def __init__(self, name: bytes, fs: SimulatedFileSystem | None = None) -> None:
        """Start on an empty disk, or on one with files."""
        self.fs = fs or SimulatedFileSystem()
        self.name = name
        self.store: Store = open_simulated(self.fs)
        self.values: dict[bytes, bytes | None] = {}
        self._number = 0

    def write(self, number: int) -> None:
        """Put and delete some values, then sync."""
        for _ in range(number):
            self._number += 1
            key = KEYS[self._number * 7 % len(KEYS)]
            if self._number % 6 == 5:
                self.store.delete(key)
                self.values[key] = None
            else:
                self.values[key] = b"%b %d" % (self.name, self._number) * 12
                self.store.put(key, self.values[key] or b"")
        self.store.sync()

    def rotate(self, number: int) -> None:
        """Write until so many volumes were started."""
        until = self.store.stats.rotations + number
        while self.store.stats.rotations < until:
            self.write(1)

    def files(self) -> Files:
        """Return the contents of all files."""
        return files_of(self.fs, FILES)


def make_scene(*, is_stopped: bool) -> Scene:
    """Write three stores: ours, a copy of it from some time ago, and another one."""
    ours = Writer(b"ours")
    sources: dict[str, Files] = {}
    ours.rotate(4)
    for name in ("a turn ago", "a volume ago"):
        ours.write(3)
        sources[name] = ours.files()
        ours.rotate(5 if name == "a turn ago" else 1)
    ours.write(4)
    sources["in this volume"] = ours.files()
    copy = Writer(b"copy", make_disk(sources["in this volume"]))
    copy.write(4)
    sources["a copy"] = copy.files()
    copy.rotate(2)
    sources["a copy, later"] = copy.files()
    late = Writer(b"late", make_disk(sources["a turn ago"]))
    late.rotate(6)
    late.write(4)
    sources["an old copy"] = late.files()
    other = Writer(b"other")
    other.rotate(9)
    other.write(5)
    sources["another store"] = other.files()
    sources["nothing"] = {}
    ours.write(4)
    if is_stopped:
        ours.store.close()
    return Scene(ours.files(), ours.values, sources)


def attacks(scene: Scene, sizes: tuple[int, ...]) -> Iterator[tuple[str, Files]]:
    """Yield what was replaced, and the files after it; so many at the same time."""
    for (name, source), size in itertools.product(scene.sources.items(), sizes):
        for paths in itertools.combinations(FILES, size):
            if size == 3 and "META.txt" not in paths:  # All three would be too many.
                continue
            for is_meta_there in {True, "META.txt" in paths}:
                files = dict(scene.files)
                for path in paths:
                    files.pop(path)
                    if path in source:
                        files[path] = source[path]
                if not is_meta_there:
                    files.pop("META.txt", None)
                yield f"{paths} from {name}, META.txt {is_meta_there}", files


def wrong_values(store: Store, scene: Scene) -> dict[bytes, bytes]:
    """Return the values that a get must not return."""
    wrong = {}
    for key in KEYS:
        record = store.get(key)
        if record is not None and record.value != scene.values.get(key):
            wrong[key] = record.value[:20]
    return wrong


@pytest.mark.parametrize("is_stopped", [True, False])
def test_no_replaced_file_exposes_a_wrong_value(*, is_stopped: bool) -> None:
    """At the start with these files, and at the next one after more puts."""
    scene = make_scene(is_stopped=is_stopped)
    outcomes: Counter[str] = Counter()
    # A sample takes every seventh: 7 has no factor in common with the numbers of files.
    for what, files in itertools.islice(
        attacks(scene, (1, 2, 3)), SEED % step(7), None, step(7)
    ):
        fs = make_disk(files)
        try:
            store = open_simulated(fs)
        except MismatchedFilesError:
            outcomes["refused"] += 1
            continue
        assert wrong_values(store, scene) == {}, what
        outcomes["served"] += 1
        store.put(b"new", b"value" * 50)
        again = open_simulated(fs.after_kill())
        assert wrong_values(again, scene) == {}, what
    print(outcomes)  # noqa: T201

    assert outcomes["refused"] > 20
    assert outcomes["served"] > 20


@pytest.mark.parametrize("is_stopped", [True, False])
def test_without_replaced_files_every_value_is_there(*, is_stopped: bool) -> None:
    """Also if META.txt or all index files are lost."""
    scene = make_scene(is_stopped=is_stopped)
    for lost in ("none", "META.txt", "index", "LOCK"):
        files = {
            path: data
            for path, data in scene.files.items()
            if not path.startswith(lost)
        }
        store = open_simulated(make_disk(files))
        found = {key for key in KEYS if store.get(key)}
        assert found, lost
        assert found == {
            key for key in KEYS if open_simulated(make_disk(scene.files)).get(key)
        }


@pytest.mark.parametrize("is_stopped", [True, False])
def test_after_a_repair_a_refused_store_starts(*, is_stopped: bool) -> None:
    """What does not match is left out, and with it whatever may be outdated."""
    scene = make_scene(is_stopped=is_stopped)
    repaired = 0
    for what, files in itertools.islice(
        attacks(scene, (1, 2)), SEED % step(7), None, step(7)
    ):
        fs = make_disk(files)
        try:
            open_simulated(fs)
            continue
        except MismatchedFilesError:
            fs = make_disk(files)
        repair(MOUNT_POINT, fs, lambda _: None)
        store = open_simulated(fs)
        repaired += 1
        assert wrong_values(store, scene) == {}, what
    assert repaired > 20
