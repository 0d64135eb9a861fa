"""Single flights, many calls at once, and renewals in the background."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from volcache_client.errors import ClientUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

V = TypeVar("V")

# How many values a client renews at once, and how many failures it remembers.
RENEWALS_MAX: Final = 8
_FAILED_MAX: Final = 1000

_log: Final = logging.getLogger("volcache_client")


class _Flight(Generic[V]):
    """
    A value that one thread makes.

    Attributes:
        owner: The thread.
        gate: Locked until it has ended.
        made: Holds the value, when it was made.
        error: What the making has raised.
    """

    __slots__ = ("error", "gate", "made", "owner")

    def __init__(self) -> None:
        self.owner: Final = threading.get_ident()
        self.gate: Final = threading.Lock()
        self.gate.acquire()
        self.made: list[V] = []
        self.error: Exception | None = None


class Flights(Generic[V]):
    """At most one call at a time for a key; the others wait for its result."""

    def __init__(self) -> None:
        """Begin with no flight."""
        self._lock: Final = threading.Lock()  # Held to remove a flight.
        self._flights: Final[dict[bytes, _Flight[V]]] = {}

    def run(
        self,
        key: bytes,
        make: Callable[[], V],
        *,
        copied: Callable[[V], V] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> V:
        """
        Return the result of `make`, of this or of another thread.

        Args:
            key: What is made.
            make: Makes it; what it raises is raised for all that wait, except what is not
                an `Exception`, such as KeyboardInterrupt: then another one makes it.
            copied: Returns a value for a caller that did not make it; None: the same.
            on_wait: Called if another one makes it.

        Raises:
            ClientUsageError: This thread is making the same: it would wait for itself.
        """
        while True:
            mine = _Flight[V]()
            try:
                # One step: Ctrl-C comes before it or after it.
                flight = self._flights.setdefault(key, mine)
                if flight is mine:
                    return _lead(mine, make)
                if not flight.gate.locked():
                    # It has ended, and Ctrl-C has kept its thread from removing it.
                    self._remove(key, flight)
                    continue
                _wait(key, flight, on_wait)
            finally:
                mine.gate.release()
                self._remove(key, mine)
            if flight.error is not None:
                raise flight.error
            if flight.made:
                return copied(flight.made[0]) if copied else flight.made[0]

    def _remove(self, key: bytes, flight: _Flight[V]) -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]


def _lead(flight: _Flight[V], make: Callable[[], V]) -> V:
    try:
        made = make()
    except Exception as error:
        flight.error = error
        raise
    flight.made.append(made)
    return made


def _wait(key: bytes, flight: _Flight[V], on_wait: Callable[[], None] | None) -> None:
    if flight.owner == threading.get_ident():
        raise ClientUsageError(
            f"get_or_set of {key!r} within its own make would wait for itself"
        )
    if on_wait:
        on_wait()
    with flight.gate:
        pass


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

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make all calls; this thread makes the first, and what no other has begun."""
        futures = [self.submit(call) for call in calls[1:]]
        try:
            for call, future in zip(calls, (None, *futures), strict=False):
                if future is None or future.cancel():
                    call()
                else:
                    future.result()
        finally:
            for one in futures:  # After a KeyboardInterrupt.
                one.cancel()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Make a call in another thread."""
        # Not imported by a program that needs no threads of ours.
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

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


class Renewals:
    """
    The values that a client renews in the background; used by all threads.

    Invariants:
        - One renewal at a time for a key, and `RENEWALS_MAX` in all. What is stale and is
          not renewed for that reason is renewed by a later call.
        - After a failure, the key is not renewed for some time.
    """

    def __init__(self, clock: Callable[[], float], pause: float) -> None:
        """Begin with none; a failure ends renewals of its key for `pause` seconds."""
        self._clock: Final = clock
        self._pause: Final = pause
        self._lock: Final = threading.Lock()
        self._running: Final[set[bytes]] = set()
        self._failed: Final[dict[bytes, float]] = {}

    def begin(self, stored: bytes) -> bool:
        """Return whether the caller is to renew a key; then `ended` must follow."""
        with self._lock:
            if stored in self._running or len(self._running) >= RENEWALS_MAX:
                return False
            if self._failed.get(stored, 0.0) > self._clock():
                return False
            self._running.add(stored)
            return True

    def ended(self, stored: bytes, error: BaseException | None) -> None:
        """End a renewal; log its error."""
        with self._lock:
            self._running.discard(stored)
            self._failed.pop(stored, None)
            if isinstance(error, Exception):
                if len(self._failed) >= _FAILED_MAX:
                    self._failed.clear()
                self._failed[stored] = self._clock() + self._pause
        if isinstance(error, Exception):
            _log.warning("%r was not renewed", stored, exc_info=error)
