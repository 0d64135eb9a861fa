"""One line about an instance, for `systemctl status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.monitoring.snapshot import Monitor


class StatusLine:
    """Makes the line; rates are those since the line before."""

    def __init__(
        self, monitor: Monitor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin; the clock has seconds and is monotonic."""
        self._monitor = monitor
        self._clock = clock
        self._time = clock()
        self._gets = self._found = self._missed = self._commands = 0

    def text(self) -> str:
        """Return the line; only in the thread that answers requests."""
        requests, commands = self._monitor.requests, self._monitor.commands
        now, gets = self._clock(), requests.gets
        found, missed = sum(requests.hits().values()), requests.misses
        seconds = max(now - self._time, 0.001)
        rates = f"{(gets - self._gets) / seconds:,.0f} GET/s"
        if commands is not None:
            commands.flush()
            total = commands.total
            rates += f", {(total - self._commands) / seconds:,.0f} memcache/s"
            self._commands = total
            found, missed = found + commands.hits, missed + commands.misses
        hits, reads = found - self._found, found + missed - self._found - self._missed
        self._time, self._gets, self._found, self._missed = now, gets, found, missed
        ratio = f"{100 * hits / reads:.1f} % hits" if reads else "no reads"
        problem = self._monitor.problem()
        state = f"not ready: {problem}; " if problem else ""
        keys = self._monitor.cache.store.count
        return f"{state}{keys:,} keys, {rates}, {ratio}"
