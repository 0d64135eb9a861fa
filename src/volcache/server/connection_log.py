"""Lines about what becomes of connections: at most one of a kind in ten seconds."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_logger: Final = logging.getLogger("volcache.server")
_LOG_SECONDS: Final = 10.0


class ConnectionLog:
    """The `ServerLog`; for one thread at a time."""

    def __init__(self) -> None:
        """Log nothing yet."""
        self._logged: dict[str, tuple[int, ...]] = {}
        self._next: dict[str, float] = {}
        self._is_complete = True

    def figures(self, now: Mapping[str, Mapping[str, int]]) -> bool:
        """Log what is new; return whether all of it is logged now."""
        self._is_complete = True
        for protocol, found in now.items():
            names = "closed_room", "turned_away"
            if full := self._news(f"full {protocol}", found, *names):
                _logger.warning(
                    "connections.full protocol=%s open=%d closed_idle=%d turned_away=%d",
                    *(protocol, found["open"], *full),
                )
            if self._news(f"memory {protocol}", found, "closed_for_memory"):
                _logger.warning(
                    "connections.memory_full protocol=%s held=%d",
                    *(protocol, found["held"]),
                )
            if self._news("accepts", found, "failed_accepts"):  # Of all protocols.
                error = os.strerror(found["accept_error"])
                _logger.warning("connections.accept_failed error=%r", error)
        return self._is_complete

    def _news(
        self, kind: str, found: Mapping[str, int], *names: str
    ) -> tuple[int, ...]:
        """Return how much was added since the last line; empty: there is no line now."""
        values = tuple(found[name] for name in names)
        before = self._logged.get(kind, (0,) * len(names))
        now = time.monotonic()
        if values == before:
            return ()
        if now < self._next.get(kind, 0.0):
            self._is_complete = False
            return ()
        self._logged[kind], self._next[kind] = values, now + _LOG_SECONDS
        return tuple(new - old for new, old in zip(values, before, strict=True))
