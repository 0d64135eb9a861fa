"""What the client for threads does with threads: single flights, and many calls at once."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from volcache_client.errors import ClientUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
V = TypeVar("V")


class _Abandoned:
    """The result of a flight that ended without a value or an error for others."""


class _Flight(Generic[V]):
    def __init__(self) -> None:
        self.leader: Final = threading.get_ident()
        self.future: Final[Future[V | _Abandoned]] = Future()


class Flights(Generic[V]):
    """At most one call at a time for a key; the others wait for its result."""

    def __init__(self) -> None:
        """Begin with no flight."""
        self._lock: Final = threading.Lock()
        self._flights: Final[dict[bytes, _Flight[V]]] = {}

    def run(
        self,
        key: bytes,
        make: Callable[[], V],
        *,
        copied: Callable[[V], V],
        on_wait: Callable[[], None],
    ) -> V:
        """
        Return the result of `make`, of this or of another thread.

        Args:
            key: What is made.
            make: Makes it; what it raises is raised for all that wait, except what is not
                an `Exception`, such as KeyboardInterrupt: then another one makes it.
            copied: Returns a value for a caller that did not make it.
            on_wait: Called if another one makes it.

        Raises:
            ClientUsageError: This thread is making the same: it would wait for itself.
        """
        while True:
            flight, is_ours = self._join(key)
            if is_ours:
                return self._lead(key, flight, make)
            if flight.leader == threading.get_ident():
                raise ClientUsageError(
                    f"get_or_set of {key!r} within its own make would wait for itself"
                )
            on_wait()
            result = flight.future.result()
            if not isinstance(result, _Abandoned):
                return copied(result)

    def _join(self, key: bytes) -> tuple[_Flight[V], bool]:
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            self._flights[key] = flight = _Flight()
            return flight, True

    def _lead(self, key: bytes, flight: _Flight[V], make: Callable[[], V]) -> V:
        error: Exception | None = None
        result: V | _Abandoned = _Abandoned()
        try:
            result = made = make()
        except Exception as caught:
            error = caught
            raise
        finally:
            with self._lock:
                del self._flights[key]
            if error is None:
                flight.future.set_result(result)
            else:
                flight.future.set_exception(error)
        return made


class Workers:
    """
    Threads for calls at once, started when they are needed.

    The thread that calls `run` is one of them, so that it goes on if all others are busy.
    """

    def __init__(self, count: int) -> None:
        """Start nothing yet."""
        self._count: Final = count
        self._lock: Final = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Make all calls; return what each has returned or raised, in their order."""
        results: list[Any] = [None] * len(calls)
        left = deque(enumerate(calls))

        def work() -> None:
            while left:
                try:
                    index, call = left.popleft()
                except IndexError:  # Another thread has taken the last one.
                    return
                try:
                    results[index] = call()
                except Exception as error:  # noqa: BLE001 - Given to the caller.
                    results[index] = error

        others = min(len(calls), self._count) - 1
        futures = [self._submit(work) for _ in range(others)]
        try:
            work()
        finally:
            left.clear()  # After a KeyboardInterrupt.
        for future in futures:
            if not future.cancel():
                future.result()
        return results

    def _submit(self, work: Callable[[], None]) -> Future[None]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self._count, thread_name_prefix="volcache_client"
                )
            return self._executor.submit(work)

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


def first_error(results: Sequence[object]) -> Exception | None:
    """Return the first of the errors, with a note of how many others there are."""
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return None
    if len(errors) > 1:
        errors[0].add_note(f"and {len(errors) - 1} more of {len(results)} keys")
    return errors[0]
