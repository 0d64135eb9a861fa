"""Stores that are in the same state, with equal salts and clocks."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from unittest import mock

from support.clocks import ManualClock
from support.stores import ProcessFileSystem, UnsyncedFileSystem, kill, open_store
from volcache.store import Store


class BareProcess(ProcessFileSystem):
    """
    A process whose reads and writes are the bare functions of `os`.

    The native core then makes these calls by itself, as in a server.
    """

    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)


class Side:
    """One of two stores in the same state."""

    def __init__(
        self,
        directory: Path,
        *,
        machine_us: Callable[[], int],
        disk: Callable[[], Any] | None = None,
        seed: int = 1,
        **options: Any,
    ) -> None:
        """Open an empty store; `options` as for `Store.open`."""
        self.directory = directory
        self.options = options
        self._disk = disk or (lambda: BareProcess(UnsyncedFileSystem()))
        self._machine_us = machine_us
        # The same salts and store ids on both sides.
        self._dice = random.Random(seed)  # noqa: S311 - To be repeated.
        self.store = self.start()

    @contextmanager
    def selected(self) -> Iterator[None]:
        """Let the salts that are chosen meanwhile be those of this side."""
        with mock.patch.object(secrets, "randbits", self._dice.getrandbits):
            yield

    def start(self) -> Store:
        """Open the store in a new process, with a clock that only the test advances."""
        with self.selected():
            self.store = open_store(
                self.directory,
                clock=ManualClock(self._machine_us, lambda: 0),
                fs=self._disk(),
                **self.options,
            )
        return self.store

    def close(self) -> None:
        """Stop the process cleanly."""
        with self.selected():
            self.store.close()

    def kill(self) -> None:
        """Leave the store as a killed process leaves it."""
        kill(self.store)


def counted(store: Store) -> dict[str, Any]:
    """Return what a store has counted."""
    stats = store.stats
    counts: dict[str, Any] = {}
    for name in (field.name for field in fields(stats)):
        value = getattr(stats, name)
        if hasattr(value, "observe"):
            value = value.count
        if isinstance(value, int | bool):
            counts[name] = value
    counts["recovery"] = asdict(store.recovery)
    counts["keys"] = store.count
    usage = store.usage()
    counts["usage"] = usage.volumes
    counts["active"] = (usage.active_id, usage.active_seq, usage.active_end)
    return counts
