"""
Kill the process, or cut the power, before every operation of a run of support/rings.py.

`CRASH_EXTENT` multiplies the number of crashes; 0 tears every write at every byte.
"""

from __future__ import annotations

import random
from typing import Final, Literal

import pytest

from support.extent import EXTENT, SEED, Count
from support.histories import open_simulated
from support.rings import RingRun
from support.simulated import SimulatedFileSystem
from support.stores import value_of
from volcache.store import Store, SyncMode

pytestmark = [pytest.mark.sampled(2), pytest.mark.crash, pytest.mark.slow]

MODES: list[SyncMode] = ["none", "periodic", "always"]
STEPS: Final = 140


def run_to_the_end(
    kind: Literal["kills", "power"], sync_mode: SyncMode, record_property: Count
) -> None:
    """Do a run with a crash at each operation, and count them."""
    run = RingRun(SEED, kind, sync_mode, is_exhaustive=True)
    run.run(STEPS)
    name = {"kills": "kills", "power": "power_losses"}[kind]
    record_property(f"crashes_by_{name}", run.images)
    record_property(f"recoveries_ended_by_{name}", run.nested)
    assert run.images > 500
    assert run.rotations > 10


@pytest.mark.parametrize("sync_mode", MODES)
def test_kill_at_any_operation_loses_nothing_acknowledged(
    sync_mode: SyncMode, record_property: Count
) -> None:
    """In any sync mode, as the kernel has what was written."""
    run_to_the_end("kills", sync_mode, record_property)


@pytest.mark.parametrize("sync_mode", MODES)
def test_power_loss_at_any_operation_keeps_what_was_synced(
    sync_mode: SyncMode, record_property: Count
) -> None:
    """And no older value comes back, whatever else has reached the disk."""
    run_to_the_end("power", sync_mode, record_property)


def several_values(
    sync_mode: SyncMode, length: int, dice: random.Random
) -> tuple[SimulatedFileSystem, Store, dict[bytes, list[bytes]]]:
    """Return a disk, its store, and for each key the synced value and one to be put."""
    fs = SimulatedFileSystem()
    store = open_simulated(fs, sync_mode=sync_mode, volume_size=1 << 17)
    # Random: no lost sector may differ from a stored one in a single bit.
    values = {
        b"key %d" % number: [dice.randbytes(length), dice.randbytes(length)]
        for number in range(8)
    }
    for key, (before, _) in values.items():
        store.put(key, before)
    store.sync()
    return fs, store, values


def put_new(store: Store, values: dict[bytes, list[bytes]]) -> None:
    """Put the second value of each key, all together."""
    puts = [(key, new, b"", b"", b"", 0, 0, 0) for key, (_, new) in values.items()]
    assert all(store.index.group_commit(puts))


def which_after(
    image: SimulatedFileSystem, sync_mode: SyncMode, values: dict[bytes, list[bytes]]
) -> list[int]:
    """Start on an image, and return which value each key has."""
    started = open_simulated(image, sync_mode=sync_mode, volume_size=1 << 17)
    return [two.index(value_of(started.get(key)) or b"") for key, two in values.items()]


@pytest.mark.parametrize("length", [100, 700, 3000])
@pytest.mark.parametrize("sync_mode", ["none", "always"])
def test_a_power_loss_after_a_write_of_several_values_keeps_those_before(
    sync_mode: SyncMode, length: int, record_property: Count
) -> None:
    """Each key has its synced value or the new one, whatever else is lost."""
    dice = random.Random(SEED)  # noqa: S311 - Repeatable on purpose.
    fs, store, values = several_values(sync_mode, length, dice)
    images: list[SimulatedFileSystem] = []

    def lose_power(name: str, *_: object) -> None:
        if name == "sync" and not images:
            images.extend(fs.after_power_loss(dice) for _ in range(30 * EXTENT or 500))

    fs.watch = lose_power
    put_new(store, values)
    lose_power("sync")

    found = {
        which for image in images for which in which_after(image, sync_mode, values)
    }
    assert found == {0, 1}
    record_property("crashes_by_power_losses", len(images))


def test_a_kill_in_a_write_of_several_values_keeps_the_first_of_them(
    record_property: Count,
) -> None:
    """What is whole is found, and each other key has its value from before."""
    dice = random.Random(SEED)  # noqa: S311 - Repeatable on purpose.
    fs, store, values = several_values("none", 700, dice)
    size = 64 + len(b"key 0") + 700
    images: list[tuple[int, SimulatedFileSystem]] = []

    def kill(name: str, _data: bytes) -> None:
        assert name == "pwritev"
        assert not images
        images.extend(
            (torn, fs.after_kill(torn=torn))
            for torn in dice.sample(range(1, 8 * size + 100), 30 * EXTENT or 2000)
            if fs.tears(torn)
        )

    fs.watch = kill
    put_new(store, values)

    for torn, image in images:
        whole = min(8, torn // size)
        assert which_after(image, "none", values) == [1] * whole + [0] * (8 - whole)
    record_property("crashes_by_kills", len(images))
