"""How many volumes a disk holds, by numbers."""

from __future__ import annotations

import pytest

from support.tables import each_row
from volcache.errors import DiskTooSmallError
from volcache.store.disk import (
    AUTO_VOLUMES_MAX,
    Holding,
    refuse_too_small,
)

MIB = 1 << 20
GIB = 1 << 30


@each_row("free", [64 * GIB, 20 * MIB, 700 * MIB, 3 * GIB])
def test_auto_leaves_a_reserve_and_is_the_same_when_the_disk_is_full(free: int) -> None:
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


def test_auto_does_not_shrink_a_store_because_others_fill_the_disk() -> None:
    """There are never fewer volumes than those that have space."""
    assert Holding(0, 40 * MIB, 40 * MIB, 40).auto_volumes(MIB) == 40


def test_auto_leaves_space_for_index_files_as_large_as_they_are() -> None:
    """With small files, index files take much of the disk."""
    without = Holding(GIB, 0, 0, 0).auto_volumes(MIB)
    half = Holding(GIB - 15 * MIB, 15 * MIB, 10 * MIB, 10).auto_volumes(MIB)

    assert half == pytest.approx(without / 1.5, rel=0.01)


def test_auto_is_at_least_two_and_bounded() -> None:
    """Below two nothing could be given up; each volume takes a descriptor."""
    assert Holding(MIB, 0, 0, 0).auto_volumes(MIB) == 2
    assert Holding(1 << 50, 0, 0, 0).auto_volumes(MIB) == AUTO_VOLUMES_MAX
    assert Holding(1 << 50, 0, 0, 0).auto_volumes(1 << 40) == 127


def test_a_disk_without_room_for_two_volumes_is_refused() -> None:
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
