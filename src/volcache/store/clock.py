"""
The clock of a store: it never goes back, not even when the machine's clock does.

If it went back, an expired record would be valid again, and a date that a client has as a
validator could name another value. When the machine's clock is set back, this clock
continues from the latest time it has seen, at the rate of a clock that cannot be set. The
latest time is kept in META.txt, in LOCK and in every record.

The core has the clock of the machine, `_core/clock.h`. Tests give a store another one.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """
    A clock that never goes back.

    Any thread may call `now_us` and `now_ms`; the others need the lock of the store.
    """

    def now_us(self) -> int:
        """Return the time, microseconds since the epoch."""

    def now_ms(self) -> int:
        """Return the time, milliseconds since the epoch."""

    def from_machine_ms(self, ms: int) -> int:
        """Return a time of the machine's clock as a time of this clock."""

    def next_us(self) -> int:
        """Return a time for a record: later than that of every record before."""

    def advance_to(self, us: int) -> None:
        """Continue from a time that was seen before this process started."""
