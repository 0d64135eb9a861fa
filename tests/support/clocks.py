"""The clock of a store on a machine whose clocks a test sets."""

from __future__ import annotations

from collections.abc import Callable


class ManualClock:
    """A `Clock` with the rules of the core's."""

    def __init__(
        self, machine_us: Callable[[], int], elapsed_ns: Callable[[], int]
    ) -> None:
        """
        Begin with the time of the machine.

        Args:
            machine_us: Microseconds since the epoch; may jump.
            elapsed_ns: Nanoseconds; never jumps.
        """
        self._machine_us = machine_us
        self._elapsed_ns = elapsed_ns
        self._stored_us = 0
        # The time is this plus what has elapsed; it only grows.
        self._offset_us = machine_us() - elapsed_ns() // 1000

    def now_us(self) -> int:
        """Return the time, microseconds since the epoch."""
        now, elapsed = self._machine_us(), self._elapsed_ns() // 1000
        if now - elapsed > self._offset_us:
            self._offset_us = max(self._offset_us, now - elapsed)
            return now
        return elapsed + self._offset_us

    def now_ms(self) -> int:
        """Return the time, milliseconds since the epoch."""
        return self.now_us() // 1000

    def from_machine_ms(self, ms: int) -> int:
        """Return a time of the machine's clock as a time of this clock."""
        return ms + (self.now_us() - self._machine_us()) // 1000

    def next_us(self) -> int:
        """Return a time for a record: later than that of every record before."""
        now = self.now_us()
        if now <= self._stored_us:
            now = self._stored_us + 1
        self.advance_to(now)  # What META.txt has must not be earlier.
        return now

    def advance_to(self, us: int) -> None:
        """Continue from a time that was seen before this process started."""
        self._stored_us = max(self._stored_us, us)
        offset = us - self._elapsed_ns() // 1000
        self._offset_us = max(self._offset_us, offset)
