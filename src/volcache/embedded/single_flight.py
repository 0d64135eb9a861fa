"""
Single flight: of all threads that need the same result, one makes it, and all get it.

Contains nothing about keys or values.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")


class _PendingResult(Generic[R]):
    """A result that one thread is making; `gate` is locked until it has ended."""

    __slots__ = ("error", "gate", "owner", "result")

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.gate = threading.Lock()
        self.gate.acquire()
        self.result: R | None = None
        self.error: Exception | None = None


class SingleFlight(Generic[R]):
    """The results that are being made, by key. Results are never None."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held to remove a flight
        self._flights: dict[bytes, _PendingResult[R]] = {}

    def run(self, key: bytes, make: Callable[[], R]) -> R:
        """
        Return the result of `make`, or that of the thread that runs it for this key.

        If `make` raises an `Exception`, all threads that wait get it, and the next call
        begins again. If it is ended otherwise, as by Ctrl-C, another thread takes over.

        Raises:
            RuntimeError: `make` calls this for its own key.
        """
        while True:
            mine = _PendingResult[R]()
            try:
                # One step: Ctrl-C comes before it or after it.
                flight = self._flights.setdefault(key, mine)
                if flight is mine:
                    return _lead(mine, make)
                if not flight.gate.locked():
                    # It has ended, and Ctrl-C has kept its thread from removing it.
                    self._remove(key, flight)
                    continue
                if flight.owner == threading.get_ident():
                    raise RuntimeError(
                        f"make of the key {key!r} asks for the same key, and would wait"
                        " for itself"
                    )
                with flight.gate:
                    pass
            finally:
                mine.gate.release()
                self._remove(key, mine)
            if flight.error is not None:
                raise flight.error
            if flight.result is not None:
                return flight.result

    def _remove(self, key: bytes, flight: _PendingResult[R]) -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]


def _lead(flight: _PendingResult[R], make: Callable[[], R]) -> R:
    try:
        flight.result = made = make()
    except Exception as error:
        flight.error = error
        raise
    return made
