"""Single flights, and many calls at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from support.waiting import wait_until
from volcache_client import ClientUsageError
from volcache_client.threads import Flights, Workers


def run(
    flights: Flights[list[int]], make: Maker, waits: list[int]
) -> Future[list[int]]:
    """Run a flight in a thread of its own."""
    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(
            flights.run, b"k", make, copied=list, on_wait=lambda: waits.append(1)
        )
    finally:
        threads.shutdown(wait=False)


class Maker:
    """Waits until the test allows it, then returns or raises."""

    def __init__(self, result: list[int] | BaseException) -> None:
        self.may_end = threading.Event()
        self.has_begun = threading.Event()
        self.calls = 0
        self._result = result

    def __call__(self) -> list[int]:
        """Make it."""
        self.calls += 1
        self.has_begun.set()
        assert self.may_end.wait(30)
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def test_flight_that_is_interrupted_is_made_by_another_thread() -> None:
    """One of them makes the value."""
    flights: Flights[list[int]] = Flights()
    first, second, waits = Maker(KeyboardInterrupt()), Maker([2]), list[int]()
    leader = run(flights, first, waits)
    assert first.has_begun.wait(30)
    others = [run(flights, second, waits) for _ in range(3)]
    wait_until(lambda: len(waits) == 3, "3 that wait")
    first.may_end.set()
    second.may_end.set()
    assert [other.result(30) for other in others] == [[2]] * 3
    with pytest.raises(KeyboardInterrupt):
        leader.result(30)


def test_flight_within_itself_is_an_error() -> None:
    """It would wait for itself."""
    flights: Flights[list[int]] = Flights()

    def again() -> list[int]:
        return flights.run(b"k", list, copied=list, on_wait=lambda: None)

    with pytest.raises(ClientUsageError, match="wait for itself"):
        flights.run(b"k", again, copied=list, on_wait=lambda: None)


def test_workers_within_workers_do_not_wait_for_a_thread() -> None:
    """The thread that waits works itself."""
    workers = Workers(2)
    made: list[int] = []
    workers.run([lambda: workers.run([lambda: made.append(1)] * 4)] * 8)
    assert len(made) == 32
    workers.close()
