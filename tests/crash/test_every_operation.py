"""
Kill the process at operation 1, 2, 3 ... of a script, start again, and compare.

The process dies, the machine does not: written bytes survive, buffered ones do not. After
each crash a key has its last acknowledged value or, if an operation on it was under way,
the value after that operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.extent import every
from support.stores import (
    VOLUME_NUM,
    VOLUME_SIZE,
    Crash,
    CrashingFileSystem,
    UnsyncedFileSystem,
    disk_bytes,
    kill,
    open_fifo,
    value_of,
)
from volcache.store import Store

pytestmark = [pytest.mark.sampled(4), pytest.mark.crash]


class Script:
    """Puts, overwrites and deletes over several rotations, and what was acknowledged."""

    def __init__(self) -> None:
        """Begin with nothing acknowledged."""
        self.acknowledged: dict[bytes, bytes | None] = {}
        self.under_way: tuple[bytes, bytes | None] | None = None
        self.turns: dict[bytes, int] = {}
        self.turn = 0

    def steps(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of every operation; None deletes."""
        for number in range(34):
            yield b"same", b"same %d" % number
            yield b"key %d" % number, b"v" * (700 * (number % 7))
            if number % 5 == 4:
                yield b"key %d" % (number - 2), None

    def run(self, store: Store) -> None:
        """Do every step, or die in one of them."""
        for key, value in self.steps():
            self.under_way = (key, value)
            if value is None:
                store.delete(key)
            else:
                store.put(key, value)
                self.turn = store.usage().active_seq
                self.turns[key] = self.turn
            self.acknowledged[key] = value
            self.under_way = None

    def verify(self, store: Store) -> None:
        """Compare every key with its allowed values."""
        usage = store.usage()
        turn = usage.active_seq
        for key, value in self.acknowledged.items():
            allowed = [value]
            if turn - self.turns[key] >= VOLUME_NUM - 1:
                # The interrupted rotation may have reclaimed it.
                allowed.append(None)
            if self.under_way is not None and self.under_way[0] == key:
                allowed.append(self.under_way[1])
            assert value_of(store.get(key)) in allowed, key
        if self.under_way is not None and self.under_way[0] not in self.acknowledged:
            assert value_of(store.get(self.under_way[0])) in (None, self.under_way[1])


def crash_and_verify(directory: Path, survive: int, torn: int, sync_mode: str) -> bool:
    """Run the script until it dies; return whether it completed instead."""
    script = Script()
    fs = CrashingFileSystem(UnsyncedFileSystem(), survive, torn)
    ended = False
    with suppress(Crash):
        script.run(open_fifo(directory, fs=fs, sync_mode=sync_mode))
        ended = True
    fs.die()
    again = open_fifo(directory)
    script.verify(again)
    assert again.recovery.damaged == 0
    assert again.stats.damaged_records == 0
    assert disk_bytes(directory) <= VOLUME_NUM * VOLUME_SIZE
    again.put(b"after", b"wards")
    kill(again)
    last = open_fifo(directory)
    script.verify(last)
    assert value_of(last.get(b"after")) == b"wards"
    last.close()
    return ended


@pytest.mark.parametrize("torn", [0, 1, 17, 18, 59, 63, 70, 400])
@pytest.mark.parametrize("sync_mode", ["none", "always"])
def test_a_kill_at_any_operation_loses_nothing_acknowledged(
    tmp_path: Path, torn: int, sync_mode: str
) -> None:
    """
    Each operation of the script is the last one once; a write is torn after `torn` bytes.

    A sample takes every fourth operation, beginning with another one for each length.
    """
    for survive in every(4, 1000, offset=torn):
        if crash_and_verify(tmp_path / str(survive), survive, torn, sync_mode):
            break
    else:
        pytest.fail("the script never completed")

    assert survive > 100
