"""The thread of the sync mode "periodic"."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from volcache.background import Background

if TYPE_CHECKING:
    from volcache.store.store import Store


class PeriodicSync:
    """
    A thread that calls `Store.sync` at an interval, for the sync mode "periodic".

    The system calls that it waits in release the interpreter, so that requests continue.
    """

    def __init__(self, store: Store, interval: float) -> None:
        """Start at once; `interval` in seconds."""
        self._store = store
        self._interval = interval
        self._stopped = threading.Event()
        self._began: float | None = None  # the sync that is running
        self._thread = Background("sync", self._sync, self._stopped.is_set)
        self._thread.start()

    def _sync(self) -> None:
        """Wait, then sync unless the thread is to stop."""
        self._store.wait_to_sync(self._interval)
        if self._stopped.is_set():
            return
        self._began = time.monotonic()
        try:
            self._store.sync()
        finally:
            self._began = None

    @property
    def is_failing(self) -> bool:
        """Whether the last sync raised, because of a bug."""
        return self._thread.failing_since > 0

    def stalled_seconds(self) -> float:
        """Return for how long a sync has been running, or all have raised; else 0."""
        began = self._began or self._thread.failing_since
        return time.monotonic() - began if began else 0.0

    def stop(self) -> None:
        """Return when the thread has ended and will not use the store again."""
        self._stopped.set()
        self._store.want_sync()
        self._thread.join()
