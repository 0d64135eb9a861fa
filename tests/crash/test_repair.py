"""`volcache repair` rebuilds index files from volumes, and may be killed at any step."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.contents import files_of
from support.damage import VOLUME_NUM, VOLUME_SIZE, fill, keys
from support.histories import MOUNT_POINT, make_disk
from support.simulated import SimulatedFileSystem
from support.stores import open_fifo, value_of
from volcache.cli.repair import repair
from volcache.store.offline import OfflineStore
from volcache.store.volume_check import Anomaly, Counts

pytestmark = pytest.mark.crash

RECORDS = 100


def values(disk: SimulatedFileSystem) -> list[bytes | None]:
    """Return the value of each key that a start finds."""
    sizes = {"volume_size": VOLUME_SIZE, "volume_num": VOLUME_NUM}
    store = open_fifo(MOUNT_POINT, fs=disk.after_kill(), **sizes)
    return [value_of(store.get(key)) for key in keys(RECORDS)]


def test_repair_killed_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    """A start in between finds all values, too."""
    fill(tmp_path, records=RECORDS)
    whole = files_of(tmp_path)
    expected = values(make_disk(whole))
    assert any(expected)
    damaged = whole | {"index/0": b"# volcache ind"}
    del damaged["META.txt"]
    for survive in range(100):
        disk = make_disk(damaged)
        left = disk.dying(
            survive,
            lambda: repair(MOUNT_POINT, disk, lambda _: None),  # noqa: B023
            lambda _: disk.after_kill(torn=9),  # noqa: B023
        )
        is_whole, disk = left is None, left or disk
        assert values(disk) == expected
        repair(MOUNT_POINT, disk, lambda _: None)
        with OfflineStore.inspect(disk, MOUNT_POINT) as offline:
            found = list(offline.check(Counts()))
        assert not any(isinstance(one, Anomaly) for one in found)
        for name, data in whole.items():
            if name.startswith("data/"):
                assert bytes(disk.file(f"{MOUNT_POINT}/{name}").data) == data
        assert values(disk) == expected
        if is_whole:
            break
    else:
        pytest.fail("the repair never completed")
    assert survive > 10
