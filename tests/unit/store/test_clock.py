"""The clock of a store, while that of the machine is set to any time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.stores import FakeClock, kill, open_store
from volcache.store._core import _native

HOUR_US = 3_600_000_000
JUMPS = st.sampled_from([-HOUR_US, -1_000_000, -1500, -1, 1, 1500, 1_000_000, HOUR_US])


@given(st.lists(JUMPS, max_size=30))
def test_clock_after_any_jumps_never_goes_back(jumps: list[int]) -> None:
    """
    It goes on from a later time that was seen, not from an earlier one.

    Each record has a later time than any other, and none before the time it is stored.
    """
    clock = _native.Clock()
    latest = clock.now_us()
    assert abs(latest // 1000 - time.time_ns() // 10**6) < HOUR_US
    for jump in jumps:
        seen = latest + jump
        clock.advance_to(seen)
        now = clock.now_us()
        assert max(latest, seen) <= now <= clock.now_ms() * 1000 + 999
        times = [clock.next_us() for _ in range(50)]
        assert times[0] >= now
        assert times[0] > max(latest, seen)
        assert sorted(set(times)) == times
        latest = times[-1]


def test_from_machine_ms_keeps_the_distance() -> None:
    """A time in a minute by the machine is in a minute by this clock."""
    clock = _native.Clock()
    began = time.monotonic_ns()
    clock.advance_to(clock.now_us() + HOUR_US)
    ahead_ms = clock.from_machine_ms(0)
    took_ms = (time.monotonic_ns() - began) // 10**6

    assert -took_ms - 2 <= ahead_ms - HOUR_US // 1000 <= 1
    assert abs(clock.from_machine_ms(60_000) - 60_000 - ahead_ms) <= 1


# --- Over a start ------------------------------------------------------------------


@pytest.mark.parametrize("is_stopped", [True, False])
def test_get_value_seen_expired_after_a_restart_is_a_miss(
    tmp_path: Path, *, is_stopped: bool
) -> None:
    """After a stop or a kill, if the clock is then set back."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.put(b"key", b"value", expires_ms=clock.now_ms + 5000)
    clock.advance(5)
    assert store.get(b"key") is None
    if is_stopped:
        store.close()
    else:
        kill(store)
    clock.advance(-3600)
    store = open_store(tmp_path, clock=clock)

    assert store.get(b"key") is None
    store.close()


@pytest.mark.parametrize(
    ("steps", "lost"),
    [
        ("close", ["LOCK"]),
        ("put kill", ["LOCK"]),
        ("put sync kill", ["LOCK"]),
        ("put touch sync kill", ["LOCK"]),
        ("put sync kill damage", ["LOCK"]),
        ("flush close", ["META.txt", "LOCK"]),
    ],
)
def test_start_without_lock_continues_from_the_latest_time(
    tmp_path: Path, steps: str, lost: list[str]
) -> None:
    """
    Of a stop, it is in META.txt; of a killed process, it is that of the last record
    that is no copy: a touch keeps the time.

    Whether the record is found by a scan or in the index file. Without META.txt, it is
    that of the volume that was started last.
    """
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    first = store.put(b"first", b"value")
    clock.advance(60)
    damaged = os.open(tmp_path / "data/0", os.O_WRONLY)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(b"last", b"value"),
        "touch": lambda: store.touch(b"first", first, 0),
        "sync": store.sync,
        "flush": store.flush,
        "close": store.close,
        "kill": lambda: kill(store),
        "damage": lambda: os.pwrite(damaged, b"?", 64),  # The first record.
    }
    for step in steps.split():
        calls[step]()
    for name in lost:
        (tmp_path / name).unlink()
    os.close(damaged)
    latest_ms = clock.now_ms
    clock.advance(-3600)
    again = open_store(tmp_path, clock=clock)

    assert again.clock.now_ms() == latest_ms
    assert again.put(b"next", b"value").stored_us > latest_ms * 1000
    again.close()
