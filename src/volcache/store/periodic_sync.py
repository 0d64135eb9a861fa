"""The thread of the sync mode "periodic"."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

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
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._store.wait_to_sync(self._interval)
        while not self._stopped.is_set():
            self._began = time.monotonic()
            self._store.sync()
            self._began = None
            self._store.wait_to_sync(self._interval)

    def stalled_seconds(self) -> float:
        """Return for how long a sync has been running; 0 if none is; from any thread."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def stop(self) -> None:
        """Return when the thread has ended and will not use the store again."""
        self._stopped.set()
        self._store.want_sync()
        self._thread.join()
