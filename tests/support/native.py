"""The native core and its twin in Python, side by side, with equal salts and clocks."""

from __future__ import annotations

import os
import random
import secrets
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

from support.stores import ProcessFileSystem, UnsyncedFileSystem, kill, open_store
from volcache.store import native
from volcache.store.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from volcache.store import Store

needs_native = pytest.mark.skipif(
    not native.IS_NATIVE, reason=f"there is no native core: {native.WHY_NOT}"
)


class BareProcess(ProcessFileSystem):
    """
    A process whose reads and writes are the bare functions of `os`.

    The native core then makes these calls by itself, as in a server.
    """

    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)


class Side:
    """One of two stores in the same state: the native one, or that in Python."""

    def __init__(
        self,
        directory: Path,
        *,
        is_native: bool,
        machine_us: Callable[[], int],
        disk: Callable[[], Any] | None = None,
        seed: int = 1,
        **options: Any,
    ) -> None:
        """Open an empty store; `options` as for `Store.open`."""
        self.directory = directory
        self.is_native = is_native
        self.options = options
        self._disk = disk or (lambda: BareProcess(UnsyncedFileSystem()))
        self._machine_us = machine_us
        # The same salts and store ids on both sides.
        self._dice = random.Random(seed)  # noqa: S311 - To be repeated.
        self.store = self.start()

    @contextmanager
    def selected(self) -> Iterator[None]:
        """Let what is created meanwhile be native, or not."""
        with (
            mock.patch.object(native, "IS_NATIVE", new=self.is_native),
            mock.patch.object(secrets, "randbits", self._dice.getrandbits),
        ):
            yield

    def start(self) -> Store:
        """Open the store in a new process, with a clock that only the test advances."""
        with self.selected():
            self.store = open_store(
                self.directory,
                clock=Clock(self._machine_us, lambda: 0),
                fs=self._disk(),
                **self.options,
            )
        assert (self.store.core_parts() is not None) == self.is_native
        return self.store

    def try_to_start(self) -> Any:
        """Start; return the error if that is refused."""
        answer = self.do(lambda _: self.start())
        return None if answer is self.store else answer

    def do(self, what: Callable[[Store], Any]) -> Any:
        """Return what an operation returns, or the error that it raises."""
        with self.selected():
            try:
                return what(self.store)
            except Exception as error:  # noqa: BLE001 - Compared with that of the other.
                text = str(error).replace(str(self.directory), "DIRECTORY")
                return type(error), text

    def close(self) -> None:
        """Stop the process cleanly."""
        with self.selected():
            self.store.close()

    def kill(self) -> None:
        """Leave the store as a killed process leaves it."""
        kill(self.store)

    def files(self) -> dict[str, bytes]:
        """Return all files of the store, by their names in it."""
        return {
            str(path.relative_to(self.directory)): path.read_bytes()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file()
        }


# Sums of sizes are those of size classes; and the native index knows no stale entry.
_NOT_EQUAL: Final = {"evicted_bytes", "evicted_reads", "absent_reads"}


def counted(store: Store) -> dict[str, Any]:
    """Return what a store has counted, as far as it is the same on both sides."""
    stats = store.stats
    counts: dict[str, Any] = {}
    for name in type(stats).__slots__:
        value = getattr(stats, name)
        if hasattr(value, "observe"):
            value = value.count
        if isinstance(value, int | bool) and name not in _NOT_EQUAL:
            counts[name] = value
    counts["misses"] = stats.evicted_reads + stats.absent_reads
    counts["recovery"] = asdict(store.recovery)
    counts["keys"] = store.count
    usage = store.usage()
    counts["usage"] = [volume._replace(live=0) for volume in usage.volumes]
    counts["active"] = (usage.active_id, usage.active_seq, usage.active_end)
    return counts
