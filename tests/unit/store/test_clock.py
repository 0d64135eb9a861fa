"""The clock of a store, while that of the machine is set to any time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.extent import examples
from support.stores import FakeClock, kill, open_store
from volcache.store.clock import Clock

NINE_US = 1_795_251_600_000_000  # 2026-11-21 09:00:00 UTC
HOUR_US = 3_600_000_000
# Negative: the clock of the machine is set back.
JUMPS = st.sampled_from([-HOUR_US, -1_000_000, -1500, -1, 1, 1500, 1_000_000, HOUR_US])
WAITS = st.sampled_from([0, 1, 999, 1000, 1_000_000])


class Machine:
    """A machine with a clock that is set, and one that cannot be set."""

    def __init__(self) -> None:
        """Begin at 09:00:00."""
        self.us = NINE_US
        self.elapsed_us = 0

    def wait(self, us: int) -> None:
        """Let time pass."""
        self.us += us
        self.elapsed_us += us

    def clock(self) -> Clock:
        """Return the clock of a process that starts now."""
        return Clock(lambda: self.us, lambda: self.elapsed_us * 1000)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), WAITS),
        st.tuples(st.just("set"), JUMPS),
        st.tuples(st.just("advance"), JUMPS),
    ),
    max_size=30,
)


@pytest.mark.slow
@pytest.mark.property
@settings(max_examples=examples(600), deadline=None)
@given(STEPS)
def test_clock_never_goes_back(steps: list[tuple[str, int]]) -> None:
    """
    It goes on at the rate of time, or jumps ahead with the clock of the machine.

    Each record has a later time than any other, and none before the time it is stored.
    """
    machine = Machine()
    clock, expected, latest = machine.clock(), NINE_US, 0
    for what, us in steps:
        if what == "wait":
            machine.wait(us)
            expected += us
        elif what == "set":
            machine.us += us
        else:
            seen = expected + us
            clock.advance_to(seen)
            expected, latest = max(expected, seen), max(latest, seen)
        expected = max(expected, machine.us)
        assert clock.now_us() == expected
        assert clock.now_ms() == expected // 1000
        stored = clock.next_us()
        assert stored == max(expected, latest + 1)
        latest = expected = stored


@pytest.mark.property
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(JUMPS, max_size=5), st.integers(-(10**9), 10**9))
def test_time_of_the_machine_keeps_its_distance(jumps: list[int], ms: int) -> None:
    """A time in a minute by the machine is in a minute by this clock, within 1 ms."""
    machine = Machine()
    clock = machine.clock()
    for jump in jumps:
        machine.us += jump
        clock.now_us()
    found = clock.from_machine_ms(machine.us // 1000 + ms)

    assert abs(found - clock.now_ms() - ms) <= 1


def test_clock_of_a_process_is_that_of_its_machine() -> None:
    """Without arguments: two readings in order, in this century."""
    clock = Clock()
    first, second = clock.now_us(), clock.now_us()

    assert 1_700_000_000_000_000 < first <= second < 4_100_000_000_000_000


# --- Over a start ------------------------------------------------------------------


@pytest.mark.parametrize("is_stopped", [True, False])
def test_value_that_was_seen_expired_does_not_return(
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


def test_time_of_a_stop_is_in_meta(tmp_path: Path) -> None:
    """Also if LOCK is lost and nothing was stored."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    clock.advance(60)
    store.close()
    (tmp_path / "LOCK").unlink()
    clock.advance(-3600)
    store = open_store(tmp_path, clock=clock)

    assert store.clock.now_ms() == clock.now_ms + 3_600_000
    store.close()


@pytest.mark.parametrize("is_indexed", [True, False])
def test_time_of_the_last_record_is_seen_without_lock(
    tmp_path: Path, *, is_indexed: bool
) -> None:
    """Whether it is found by a scan or in the index file."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.put(b"first", b"value")
    clock.advance(60)
    last = store.put(b"last", b"value")
    if is_indexed:
        store.sync()
    kill(store)
    (tmp_path / "LOCK").unlink()
    clock.advance(-3600)
    store = open_store(tmp_path, clock=clock)

    assert store.clock.now_us() == last.stored_us
    assert store.put(b"next", b"value").stored_us > last.stored_us
    store.close()


def test_time_is_taken_from_the_headers_without_meta_and_lock(tmp_path: Path) -> None:
    """That of the last volume that was started."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    clock.advance(60)
    store.flush()
    store.close()
    for name in ("META.txt", "LOCK"):
        (tmp_path / name).unlink()
    clock.advance(-3600)
    store = open_store(tmp_path, clock=clock)

    assert store.clock.now_ms() == clock.now_ms + 3_600_000
    store.close()
