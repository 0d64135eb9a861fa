"""How many volumes a disk holds, by numbers."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from support.histories import open_simulated
from support.simulated import SimulatedFileSystem
from support.stores import UnsyncedFileSystem, open_store, value_of
from support.tables import each_row
from volcache.errors import DiskTooSmallError, TooFewDescriptorsError
from volcache.store.disk import Holding, refuse_too_small
from volcache.store.files import Space

MIB = 1 << 20
GIB = 1 << 30


@each_row("free", [64 * GIB, 20 * MIB, 700 * MIB, 3 * GIB])
def test_auto_volumes_on_a_full_disk_are_those_of_an_empty_one(free: int) -> None:
    """It does not matter how much of the disk the store has taken."""
    size = MIB
    number = Holding(free, 0, 0, 0).auto_volumes(size)
    left = free - number * size

    assert left >= free // 20
    assert left >= min(64 * MIB, free // 8) - size
    for taken in (1, number // 2, number):
        index = taken * 1000
        held = taken * size + index
        found = Holding(free - held, held, taken * size, taken)
        assert number - 1 - number // 500 <= found.auto_volumes(size) <= number
    full = Holding(left, number * size, number * size, number)
    assert full.auto_volumes(size) == number


def test_auto_volumes_on_a_disk_that_others_fill_stay() -> None:
    """There are never fewer volumes than those that have space."""
    assert Holding(0, 40 * MIB, 40 * MIB, 40).auto_volumes(MIB) == 40


def test_auto_volumes_with_large_index_files_leave_space_for_them() -> None:
    """With small files, index files take much of the disk."""
    without = Holding(GIB, 0, 0, 0).auto_volumes(MIB)
    half = Holding(GIB - 15 * MIB, 15 * MIB, 10 * MIB, 10).auto_volumes(MIB)

    assert half == pytest.approx(without / 1.5, rel=0.01)


def test_auto_volumes_are_at_least_two_and_bounded() -> None:
    """Below two nothing could be given up; the index has so many positions."""
    assert Holding(MIB, 0, 0, 0).auto_volumes(MIB) == 2
    assert Holding(1 << 50, 0, 0, 0).auto_volumes(MIB) == 65_535
    assert Holding(1 << 50, 0, 0, 0).auto_volumes(1 << 40) == 127


@each_row("free", [3 * GIB, 12 * GIB, 100 * GIB, 3_000 * 10**9, 20 << 40, 60 << 40])
def test_auto_volumes_of_an_empty_disk_use_all_of_it(free: int) -> None:
    """With 64 to 1,024 volumes, unless the largest record does not fit so small ones."""
    found, size, least = Holding(free, 0, 0, 0), 160 * MIB, 16 * MIB
    chosen = found.auto_size(size, least)
    number = found.auto_volumes(chosen)
    assert 64 <= number <= 1024
    assert number * chosen > 0.93 * free - chosen
    assert not found.unused(chosen, number)


def test_auto_size_with_the_right_number_stays() -> None:
    """And makes it no smaller than the largest record."""
    assert Holding(100 * GIB, 0, 0, 0).auto_size(160 * MIB, MIB) == 160 * MIB
    assert Holding(GIB, 0, 0, 0).auto_size(160 * MIB, 70 * MIB) == 80 * MIB
    assert Holding(GIB, 0, 0, 0).auto_size(160 * MIB, 160 * MIB) == 160 * MIB


def test_auto_size_with_volumes_is_theirs() -> None:
    """As many more of them fill the disk, up to the limit of the index, which is told."""
    old = Holding(1_600 * GIB, 1_280 * GIB, 1_280 * GIB, 8192, 160 * MIB)
    assert old.auto_size(200 * MIB, 70 * MIB) == 160 * MIB
    assert 17_000 < old.auto_volumes(160 * MIB) < 18_432
    large = old._replace(free=20 << 40)
    number = large.auto_volumes(160 * MIB)
    assert number == 65_535
    assert large.unused(160 * MIB, number) > 9 << 40
    # The largest record does not fit them any longer.
    assert old.auto_size(1024 * MIB, 161 * MIB) > 1024 * MIB


def test_auto_size_after_a_restart_stays(tmp_path: Path) -> None:
    """A mount point is told by its files, whatever `volume_size` is now."""
    options: dict[str, Any] = {"volume_num": None, "volume_size_least": 8192}
    fs = SmallFileSystem()
    store = open_store(tmp_path, volume_size=64 * 1024, fs=fs, **options)
    assert store.usage().volume_size == 16 * 1024
    assert 64 <= store.usage().volume_num < 128
    for number in range(40):
        store.put(b"%d" % number, bytes(1000))
    store.close()
    store = open_store(tmp_path, volume_size=32 * 1024, fs=fs, **options)
    assert store.usage().volume_size == 16 * 1024
    assert value_of(store.get(b"1")) == bytes(1000)
    store.close()


class SmallFileSystem(UnsyncedFileSystem):
    """A disk of 1.5 MiB, whatever is stored on it."""

    def space(self, _path: str) -> Space:
        """Return its space."""
        return Space(3 << 19, 3 << 19)


def test_open_with_too_few_descriptors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a volume is created."""
    monkeypatch.setattr("volcache.store.disk.descriptor_limit", lambda: 100)
    with pytest.raises(TooFewDescriptorsError) as caught:
        open_store(tmp_path, volume_num=90)
    assert str(caught.value) == (
        f"mount point {str(tmp_path)!r} cannot be opened: 90 volumes need as many open"
        " files, besides connections, and this process may have 100; raise LimitNOFILE="
        " of the systemd unit, or ulimit -n, or have fewer and larger volumes"
    )
    assert not any((tmp_path / "data").iterdir())


def test_open_with_too_many_open_files_names_the_limit() -> None:
    """The message names the limit, and not what is wrong with a directory."""
    fs = SimulatedFileSystem()
    fs.failing["create"] = errno.EMFILE
    with pytest.raises(TooFewDescriptorsError, match="raise LimitNOFILE= of") as caught:
        open_simulated(fs)
    assert "this user may write" not in str(caught.value)


def test_open_on_a_disk_without_room_for_two_volumes_is_refused() -> None:
    """The line names the sizes and a size that fits."""
    with pytest.raises(DiskTooSmallError) as caught:
        refuse_too_small("/srv/a", Holding(20 * MIB, 0, 0, 0), 16 * MIB)
    assert str(caught.value) == (
        "mount point '/srv/a': its disk has room for 20971520 bytes, and two volumes of"
        " volume_size = 16777216 take 33554432; set volume_size = 9437184 or less, or give"
        " a mount_point on a larger disk"
    )
    size = 9437184
    refuse_too_small("/srv/a", Holding(20 * MIB, 0, 0, 0), size)
    refuse_too_small("/srv/a", Holding(0, 16 * MIB, 16 * MIB, 1), 16 * MIB)
    with pytest.raises(DiskTooSmallError, match="33554432; give a mount_point on"):
        refuse_too_small("/srv/a", Holding(MIB, 0, 0, 0), 16 * MIB)
