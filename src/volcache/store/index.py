"""
The index in memory: key to position.

Knows neither files nor volumes. A life (see `position.py`) is begun, receives positions,
and is one day reclaimed. Reclaiming is constant work: the positions of that life are dead
from then on because the caller no longer knows the life; `sweep` takes their memory back
in pieces, so that no single request pays for a million keys.

Invariants:
    - `get` returns the position set last, unless the key was deleted or swept since.
    - `live(seq)` counts the keys whose position lies in the life; their sum over all
      lives not reclaimed is `count`.

Where a record lies, packed into one integer.

The index holds one position for every key, so it is one Python int (48 bytes) and not a
tuple of four (over 150). From high bits to low::

    generation 32 | volume 16 | offset 40 | size 32

The two high fields together are a *life*: one use of one volume, from the time it becomes
the head to the time it is reclaimed. Generations count the turns of the cycle, so that
lives, compared as integers, stand in the order in which they were written.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Volume:
    """What is known of one use of a volume."""

    __slots__ = ("bytes", "keys", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        # Every key set in this life: what to look at when it is swept. A key that is
        # overwritten in the same life stands here once, so that the memory goes with
        # the keys there are and not with the puts there were.
        self.keys: list[bytes] = []


class Index:
    """Key to position, in a dict."""

    def __init__(self) -> None:
        """Make an empty index without a life."""
        self._positions: dict[bytes, int] = {}
        # Returns the position of a key, or None. It may belong to a life that was
        # reclaimed: then it is as good as none, and the caller, who knows which lives
        # there are, must take it so. The dict's own method: each get of the store is one.
        self.get: Callable[[bytes], int | None] = self._positions.get
        self._lives: dict[int, _Volume] = {}
        self._current = _Volume()
        self._to_sweep: deque[tuple[int, list[bytes]]] = deque()

    @property
    def count(self) -> int:
        """The number of keys that have a live position."""
        return sum(seq.records for seq in self._lives.values())

    def live(self, seq: int) -> tuple[int, int]:
        """Return the number of live records of a life and their bytes."""
        found = self._lives.get(seq)
        return (found.records, found.bytes) if found else (0, 0)

    def begin(self, seq: int) -> None:
        """Let positions of this life be set from now on."""
        self._current = self._lives.setdefault(seq, _Volume())

    def set(self, key: bytes, position: int) -> None:
        """Set the position of a key; it must lie in the life begun last."""
        previous = self.get(key)
        self._positions[key] = position
        seq = self._current
        if previous is None:
            seq.keys.append(key)
        elif previous >> SEQ_SHIFT == position >> SEQ_SHIFT:
            seq.bytes += (position & SIZE_MAX) - (previous & SIZE_MAX)
            return
        else:
            seq.keys.append(key)
            self._died(previous)
        seq.records += 1
        seq.bytes += position & SIZE_MAX

    def delete(self, key: bytes) -> bool:
        """Forget a key; tell whether it had a live position."""
        previous = self._positions.pop(key, None)
        return previous is not None and self._died(previous)

    def _died(self, position: int) -> bool:
        """Take a position out of the account of its life, if there still is one."""
        seq = self._lives.get(position >> SEQ_SHIFT)
        if seq is None:
            return False
        seq.records -= 1
        seq.bytes -= position & SIZE_MAX
        return True

    def reclaim(self, seq: int) -> tuple[int, int]:
        """
        Forget everything that lies in a life, whatever its size, in constant time.

        Returns:
            The number of live records lost by it, and their bytes.
        """
        gone = self._lives.pop(seq, None)
        if gone is None:
            return 0, 0
        self._to_sweep.append((seq, gone.keys))
        return gone.records, gone.bytes

    def sweep(self, budget: int) -> None:
        """Look at up to `budget` keys of reclaimed lives and free what is dead."""
        positions = self._positions
        while self._to_sweep and budget > 0:
            seq, keys = self._to_sweep[0]
            steps = min(budget, len(keys))
            budget -= max(1, steps)
            for _ in range(steps):
                key = keys.pop()
                position = positions.get(key)
                if position is not None and position >> SEQ_SHIFT == seq:
                    del positions[key]
            if not keys:
                self._to_sweep.popleft()

    @property
    def sweeping(self) -> bool:
        """Whether there are reclaimed lives still to be swept."""
        return bool(self._to_sweep)

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield every key with its live position."""
        for key, position in self._positions.items():
            if position >> SEQ_SHIFT in self._lives:
                yield key, position


VOLUME_MAX: Final = 2**16 - 1
OFFSET_MAX: Final = 2**40 - 1
SIZE_MAX: Final = 2**32 - 1

SEQ_SHIFT: Final = 72  # position >> LIFE_SHIFT is the life.
OFFSET_SHIFT: Final = 32  # position >> OFFSET_SHIFT & OFFSET_MAX is the offset.


def make_seq(generation: int, volume: int) -> int:
    """Return the life of a volume in a generation."""
    return generation << 16 | volume


def volume_of(seq: int) -> int:
    """Return the id of the volume a life belongs to."""
    return seq & VOLUME_MAX


def generation_of(seq: int) -> int:
    """Return the generation of a life."""
    return seq >> 16


def pack_position(seq: int, offset: int, size: int) -> int:
    """Return the position of a record of `size` bytes at `offset`."""
    return seq << SEQ_SHIFT | offset << OFFSET_SHIFT | size
