"""Small stores for tests, and ways to lose them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google_crc32c import value as crc32c

from volcache.store import Store
from volcache.store.files import OsFileSystem

if TYPE_CHECKING:
    from volcache.store.files import FileSystem
    from volcache.store.format import Record
    from volcache.store.index import Index

VOLUME_SIZE = 16 * 1024
VOLUME_NUM = 4


class FakeClock:
    """Milliseconds that pass only when a test says so."""

    def __init__(self) -> None:
        """Begin somewhere in 2026."""
        self.now_ms = 1_790_000_000_000

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ms

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1000)


class UnsyncedFileSystem(OsFileSystem):
    """The real disk without its slowest call: no test cuts the power of the machine."""

    sync = staticmethod(lambda fd: None)  # noqa: ARG005 - The signature of the real one.

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


def open_store(directory: Path | str, **options: Any) -> Store:
    """Open a small store; options as for `Store.open`."""
    options.setdefault("volume_size", VOLUME_SIZE)
    options.setdefault("volume_num", VOLUME_NUM)
    options.setdefault("sync_mode", "none")
    options.setdefault("fs", UnsyncedFileSystem())
    return Store.open(str(directory), **options)


def abandon(store: Store) -> None:
    """
    Leave a store as a killed process leaves it: nothing buffered is written.

    The descriptors are given back, as the kernel does, and with them the lock.
    """
    store._closed = True
    cycle = store._log
    descriptors = list(cycle._descriptors.values())
    index_files = [volume.index_file for volume in (*cycle._sealed, cycle.active)]
    descriptors += [found._fd for found in index_files if found is not None]
    assert store._mount._lock_fd is not None
    descriptors.append(store._mount._lock_fd)
    for fd in descriptors:
        with suppress(OSError):
            os.close(fd)


def reopen(store: Store, directory: Path | str, **options: Any) -> Store:
    """Kill the store and start it again."""
    abandon(store)
    return open_store(directory, **options)


def value_of(record: Record | None) -> bytes | None:
    """Return the value, None for a miss."""
    return None if record is None else record.value


def fill_volume(store: Store, prefix: bytes = b"fill") -> list[bytes]:
    """Put 1,000-byte values until the store has rotated once; return their keys."""
    rotations = store.stats.rotations
    keys: list[bytes] = []
    while store.stats.rotations == rotations:
        keys.append(b"%s/%d" % (prefix, len(keys)))
        store.put(keys[-1], keys[-1].ljust(1000, b"."))
    return keys


def disk_bytes(directory: Path | str) -> int:
    """Return the length of all volumes together."""
    return sum(path.stat().st_size for path in Path(directory, "data").iterdir())


def unswept(index: Index) -> int:
    """Return how many keys of reclaimed lives an index has still to look at."""
    return sum(len(keys) for _, keys in index._to_sweep)


def signed(text: bytes) -> bytes:
    """Return the lines of a META.txt with the checksum behind them."""
    return text + b"checksum %08x\n" % crc32c(text)


class Crash(BaseException):
    """The process died here. No code of the store may catch it."""


class CrashingFileSystem:
    """
    A disk that works until its n-th changing call, and dies in the middle of that.

    Args:
        fs: The disk behind it.
        survive: How many changing calls succeed.
        torn: How many bytes of the write that crashes still reach the disk.
    """

    def __init__(self, fs: FileSystem, survive: int, torn: int = 0) -> None:
        """Count from now on."""
        self._fs = fs
        self._left = survive
        self._torn = torn
        self._open: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        """Pass a call on, or die."""
        found = getattr(self._fs, name)
        if name not in _CHANGING:
            return found

        def counted(*arguments: Any, **options: Any) -> Any:
            if self._left <= 0:
                if name == "pwritev" and self._torn:
                    fd, buffers, offset = arguments
                    self._fs.pwritev(fd, [b"".join(buffers)[: self._torn]], offset)
                raise Crash
            self._left -= 1
            return found(*arguments, **options)

        return counted

    def open(self, path: str, *, create: bool) -> int:
        """Open, and remember it, or die."""
        fd: int = self.__getattr__("open")(path, create=create)
        self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close, and forget it."""
        self._open.discard(fd)
        self._fs.close(fd)

    def die(self) -> None:
        """Give back all descriptors, as the kernel does for a dead process."""
        while self._open:
            self._fs.close(self._open.pop())


_CHANGING = frozenset(
    {
        "allocate",
        "open",
        "pwritev",
        "rename",
        "sync",
        "sync_directory",
        "truncate",
        "unlink",
    }
)
