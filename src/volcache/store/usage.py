"""
How full the volumes are, for whoever watches: computed when asked, kept nowhere.

Every byte of a volume is one of three: *live*, of a record that a get would find; *dead*,
written and of no use any more (records replaced, deleted, damaged, and the volume's
header); *free*, not written in this life.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from volcache.store.index import Index
    from volcache.store.volume import Volume

State = Literal["head", "sealed", "empty"]


class VolumeUsage(NamedTuple):
    """One slot of the cycle, and the life in it; sizes are bytes."""

    id: int
    generation: int
    state: State
    size: int
    used: int  # header included
    live_records: int
    live: int
    began_ms: int  # since the epoch, when it became the head; 0: empty, or not known

    @property
    def dead(self) -> int:
        """Bytes that are written and of no use any more."""
        return self.used - self.live


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """All volumes by their ids, and which is being written."""

    volumes: list[VolumeUsage]
    volume_size: int  # of one that is begun now
    volume_num: int
    head_id: int
    head_generation: int
    head_end: int  # where the next record goes

    @property
    def keys(self) -> int:
        """The number of keys, expired ones included."""
        return sum(volume.live_records for volume in self.volumes)

    @property
    def live(self) -> int:
        """Bytes of records that a get would find."""
        return sum(volume.live for volume in self.volumes)

    @property
    def dead(self) -> int:
        """Bytes that are written and of no use any more."""
        return sum(volume.dead for volume in self.volumes)

    @property
    def free(self) -> int:
        """Bytes not written: what is neither live nor dead; 0 after a shrinking."""
        return max(0, self.volume_num * self.volume_size - self.live - self.dead)


def measure(
    volumes: Mapping[int, Volume],
    head: Volume,
    index: Index,
    *,
    volume_size: int,
    volume_num: int,
    size_of: Callable[[Volume], int],
) -> StoreUsage:
    """
    Look at every slot that may hold a volume, and at every volume that holds a life.

    Args:
        volumes: By their lives.
        head: The one being written.
        index: Knows what is live.
        volume_size: Bytes of a volume that is begun now.
        volume_num: How many slots there are.
        size_of: Tells how long the file of a volume is; may raise `OSError`.
    """
    found = {
        slot: VolumeUsage(slot, 0, "empty", volume_size, 0, 0, 0, 0)
        for slot in range(volume_num)
    }
    for life, volume in volumes.items():
        records, live = index.live(life)
        found[volume.id] = VolumeUsage(
            volume.id,
            volume.generation,
            "head" if volume is head else "sealed",
            max(volume.end, _size_or_none(volume, size_of)),
            volume.end,
            records,
            live,
            volume.began_ms,
        )
    return StoreUsage(
        volumes=[found[slot] for slot in sorted(found)],
        volume_size=volume_size,
        volume_num=volume_num,
        head_id=head.id,
        head_generation=head.generation,
        head_end=head.end,
    )


def _size_or_none(volume: Volume, size_of: Callable[[Volume], int]) -> int:
    """Ask the disk; one that does not answer is no reason to know nothing else."""
    try:
        return size_of(volume)
    except OSError:
        return 0
