"""The numbers of the last hour: the charts of the page begin with them."""

from __future__ import annotations

import time
import zlib
from collections import deque
from typing import TYPE_CHECKING, Final

from volcache.monitoring.stats_json import encode_stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.monitoring.snapshot import Monitor

STEP_SECONDS: Final = 30.0
KEPT: Final = 120  # An hour. Of 6 KB each, compressed to a fifth.


class History:
    """Keeps the numbers of an instance, one in `STEP_SECONDS`, in bounded memory."""

    def __init__(
        self, status: Monitor, timer: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Keep nothing yet.

        Args:
            status: Of the instance.
            timer: Seconds, monotonic.
        """
        self._status, self._timer = status, timer
        self._due = timer()
        self._kept: deque[bytes] = deque(maxlen=KEPT)

    def beat(self) -> None:
        """Keep the numbers if it is time; call it in the thread that answers requests."""
        now = self._timer()
        if now >= self._due:
            self._due = now + STEP_SECONDS
            stats = encode_stats(self._status.snapshot(volumes=False))
            self._kept.append(zlib.compress(stats, 1))

    def encoded(self) -> bytes:
        """Return them as a JSON list of what `/-/stats` has, the oldest first."""
        return b"[%b]" % b",".join(map(zlib.decompress, self._kept))
