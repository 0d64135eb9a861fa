"""Single flights, and many calls at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from support.waiting import wait_until
from volcache_client import ClientUsageError
from volcache_client.threads import Flights, Workers, first_error


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


def test_one_makes_a_value_and_each_has_its_own() -> None:
    """A value that one changes is not changed for the others."""
    flights: Flights[list[int]] = Flights()
    maker, waits = Maker([1]), list[int]()
    futures = [run(flights, maker, waits) for _ in range(64)]
    wait_until(lambda: len(waits) == 63, "63 that wait")
    maker.may_end.set()
    values = [future.result(30) for future in futures]
    assert values == [[1]] * 64
    assert len({id(value) for value in values}) == 64
    assert maker.calls == 1


def test_an_error_is_raised_for_all_and_the_next_call_makes_it_again() -> None:
    """It is not kept."""
    flights: Flights[list[int]] = Flights()
    maker, waits = Maker(KeyError("x")), list[int]()
    futures = [run(flights, maker, waits) for _ in range(4)]
    wait_until(lambda: len(waits) == 3, "3 that wait")
    maker.may_end.set()
    for future in futures:
        with pytest.raises(KeyError):
            future.result(30)
    again = Maker([2])
    again.may_end.set()
    assert run(flights, again, waits).result(30) == [2]


def test_an_interrupt_of_one_does_not_reach_the_others() -> None:
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


def test_making_a_value_while_making_it_is_an_error() -> None:
    """It would wait for itself."""
    flights: Flights[list[int]] = Flights()

    def again() -> list[int]:
        return flights.run(b"k", list, copied=list, on_wait=lambda: None)

    with pytest.raises(ClientUsageError, match="wait for itself"):
        flights.run(b"k", again, copied=list, on_wait=lambda: None)


def test_calls_return_in_their_order_and_errors_are_results() -> None:
    """By a few threads."""
    workers = Workers(3)
    used = set()

    def call(number: int) -> int:
        used.add(threading.get_ident())
        if number % 10 == 0:
            raise KeyError(number)
        return number

    results = workers.run([lambda n=n: call(n) for n in range(100)])  # type: ignore[misc]
    values = [one for one in results if not isinstance(one, Exception)]
    assert values == [n for n in range(100) if n % 10]
    error = first_error(results)
    assert isinstance(error, KeyError)
    assert error.args == (0,)
    assert error.__notes__ == ["and 9 more of 100 keys"]
    assert len(used) <= 3
    workers.close()


def test_calls_within_calls_do_not_wait_for_a_thread() -> None:
    """The thread that waits works itself."""
    workers = Workers(2)

    def inner() -> list[int]:
        return [one for one in workers.run([int] * 4) if isinstance(one, int)]

    assert workers.run([inner] * 8) == [[0] * 4] * 8
    workers.close()
