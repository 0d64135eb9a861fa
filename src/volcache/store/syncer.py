"""
Sync mode "periodic": a thread that makes what was written survive a power loss.

The system calls it waits in release the interpreter, so that requests go on meanwhile.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from volcache.store.engine import Store


class PeriodicSync:
    """Calls `Store.sync` every so many seconds until it is stopped."""

    def __init__(self, store: Store, interval: float) -> None:
        """Start at once; `interval` in seconds."""
        self._store = store
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            self._store.sync()

    def stop(self) -> None:
        """Return when the thread has ended and will not touch the store again."""
        self._stopped.set()
        self._thread.join()
