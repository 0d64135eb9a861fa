"""How much is measured: everything that a short look has less of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """
    The amounts.

    Attributes:
        rounds: In which the contenders of a workload take turns.
        seconds: Of load for each in a round.
        connections: Kept busy.
        keys: Of 1 KiB and of 64 KiB.
        write_keys: Of 64 KiB that are written.
        sample: Keys read once each from a cold disk.
        rotation_volume: Bytes of a volume that is overwritten under load.
        rotation_seconds: Of load for that.
        restart_keys: Keys of the two restarts; none for 0.
        restart_rounds: How often each is opened.
        warms_up: Whether everyone runs once unmeasured.

    """

    rounds: int
    seconds: float
    connections: int = 20
    keys: int
    write_keys: int
    sample: int
    rotation_volume: int
    rotation_seconds: float
    restart_keys: tuple[int, int]
    restart_rounds: tuple[int, int]
    warms_up: bool = True


FULL: Final = Scale(
    rounds=3,
    seconds=1,
    keys=40_000,
    write_keys=10_000,
    sample=4_000,
    rotation_volume=256 * MIB,
    rotation_seconds=8,
    restart_keys=(1_000_000, 5_000_000),
    restart_rounds=(3, 1),
)
QUICK: Final = Scale(
    rounds=1,
    seconds=1,
    keys=4_000,
    write_keys=1_000,
    sample=1_000,
    rotation_volume=16 * MIB,
    rotation_seconds=3,
    restart_keys=(100_000, 0),
    restart_rounds=(1, 0),
    warms_up=False,
)
