"""
The index in memory: key to position.

Knows neither files nor volumes. A life (see `position.py`) is begun, receives positions,
and is one day reclaimed. Reclaiming is constant work: the positions of that life are dead
from then on because the caller no longer knows the life; `sweep` takes their memory back
in pieces, so that no single request pays for a million keys.

Invariants:
    - `get` returns the position set last, unless the key was deleted or swept since.
    - `live(life)` counts the keys whose position lies in the life; their sum over all
      lives not reclaimed is `count`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from volcache.store.position import LIFE_SHIFT, SIZE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Life:
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
        self._lives: dict[int, _Life] = {}
        self._current = _Life()
        self._to_sweep: deque[tuple[int, list[bytes]]] = deque()

    @property
    def count(self) -> int:
        """The number of keys that have a live position."""
        return sum(life.records for life in self._lives.values())

    def live(self, life: int) -> tuple[int, int]:
        """Return the number of live records of a life and their bytes."""
        found = self._lives.get(life)
        return (found.records, found.bytes) if found else (0, 0)

    def begin(self, life: int) -> None:
        """Let positions of this life be set from now on."""
        self._current = self._lives.setdefault(life, _Life())

    def set(self, key: bytes, position: int) -> None:
        """Set the position of a key; it must lie in the life begun last."""
        previous = self.get(key)
        self._positions[key] = position
        life = self._current
        if previous is None:
            life.keys.append(key)
        elif previous >> LIFE_SHIFT == position >> LIFE_SHIFT:
            life.bytes += (position & SIZE_MAX) - (previous & SIZE_MAX)
            return
        else:
            life.keys.append(key)
            self._died(previous)
        life.records += 1
        life.bytes += position & SIZE_MAX

    def delete(self, key: bytes) -> bool:
        """Forget a key; tell whether it had a live position."""
        previous = self._positions.pop(key, None)
        return previous is not None and self._died(previous)

    def _died(self, position: int) -> bool:
        """Take a position out of the account of its life, if there still is one."""
        life = self._lives.get(position >> LIFE_SHIFT)
        if life is None:
            return False
        life.records -= 1
        life.bytes -= position & SIZE_MAX
        return True

    def reclaim(self, life: int) -> tuple[int, int]:
        """
        Forget everything that lies in a life, whatever its size, in constant time.

        Returns:
            The number of live records lost by it, and their bytes.
        """
        gone = self._lives.pop(life, None)
        if gone is None:
            return 0, 0
        self._to_sweep.append((life, gone.keys))
        return gone.records, gone.bytes

    def sweep(self, budget: int) -> None:
        """Look at up to `budget` keys of reclaimed lives and free what is dead."""
        positions = self._positions
        while self._to_sweep and budget > 0:
            life, keys = self._to_sweep[0]
            steps = min(budget, len(keys))
            budget -= max(1, steps)
            for _ in range(steps):
                key = keys.pop()
                position = positions.get(key)
                if position is not None and position >> LIFE_SHIFT == life:
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
            if position >> LIFE_SHIFT in self._lives:
                yield key, position
