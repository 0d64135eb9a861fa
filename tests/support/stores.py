"""Small stores for tests, and processes that die with a store open."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from google_crc32c import value as crc32c

from support.clocks import ManualClock
from volcache.store import Store
from volcache.store._core import _native
from volcache.store.files import FileSystem, OsFileSystem
from volcache.store.format import Record
from volcache.store.manifest import Manifest, decode_manifest
from volcache.store.stats import STATES, StoreUsage

VOLUME_SIZE = 16 * 1024
VOLUME_NUM = 4


class FakeClock:
    """A clock in milliseconds that a test advances."""

    def __init__(self) -> None:
        """Begin in September 2026."""
        self.now_ms = 1_790_000_000_000

    def __call__(self) -> int:
        """Return the time."""
        return self.now_ms

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now_ms += round(seconds * 1000)


def fixed_clock(clock: Callable[[], int]) -> ManualClock:
    """Return a clock of a store that only a test advances, from one in milliseconds."""
    return ManualClock(lambda: clock() * 1000, lambda: 0)


class UnsyncedFileSystem(OsFileSystem):
    """The real disk without syncs, its slowest calls: no test cuts the power."""

    sync = staticmethod(lambda fd: None)  # noqa: ARG005 - The signature of the real one.

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


class WatchedFileSystem(UnsyncedFileSystem):
    """A disk with functions that see each read and write before; they may refuse it."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.before_read: Callable[[int, int, int], object] = lambda *_: None
        self.before_write: Callable[[int, bytes, int], object] = lambda *_: None

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read."""
        self.before_read(fd, length, offset)
        return os.pread(fd, length, offset)

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:  # type: ignore[override]
        """Write."""
        self.before_write(fd, b"".join(buffers), offset)
        return os.pwritev(fd, buffers, offset)


def fail(*_: object) -> NoReturn:
    """Be a disk that does not work."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class BootedFileSystem(UnsyncedFileSystem):
    """A disk of a machine that a test boots again."""

    boots = 1

    def boot_id(self) -> str:
        """Return another id after each boot."""
        return f"boot {self.boots}"


class UnreadableFileSystem(UnsyncedFileSystem):
    """A disk on which one sector of the volumes cannot be read."""

    def __init__(self, bad_sector: int) -> None:
        """Fail reads of 4,096 bytes from this offset on."""
        self.bad_sector = bad_sector

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read, unless the range includes the sector of a volume."""
        is_volume = os.fstat(fd).st_size >= VOLUME_SIZE
        if is_volume and offset < self.bad_sector + 4096 <= offset + length + 4095:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, length, offset)


class Crash(BaseException):
    """The process has died. No code of the store may catch it."""


class ProcessFileSystem:
    """
    A `FileSystem` as one process sees it, so that a test can kill that process.

    Passes every call on to the disk and records the open descriptors. Has the methods of
    the disk; mypy does not see them, so declare it as `Any` where it is passed on.
    """

    def __init__(self, disk: FileSystem) -> None:
        """Open no file yet."""
        self._disk = disk
        self._descriptors: set[int] = set()
        self._is_dead = False

    def die(self) -> None:
        """
        Kill the process: what it had not written is lost.

        Closes all descriptors, as the kernel does, which releases the lock. Every later
        call raises `Crash`.
        """
        self._is_dead = True
        while self._descriptors:
            self._disk.close(self._descriptors.pop())

    def __getattr__(self, name: str) -> Any:
        """Return a method of the disk, which works until the process dies."""
        method = getattr(self._disk, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if self._is_dead:
                raise Crash
            if name == "close":
                self._descriptors.discard(*arguments)
            result = method(*arguments, **options)
            if name in {"open", "open_directory"}:
                self._descriptors.add(result)
            return result

        return call


class BareProcess(ProcessFileSystem):
    """
    A process whose reads and writes are the bare functions of `os`.

    The native core then makes these calls by itself, as in a server.
    """

    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)


# The process that has each store open.
_processes: WeakKeyDictionary[Store, ProcessFileSystem] = WeakKeyDictionary()


def open_store(directory: Path | str, **options: Any) -> Store:
    """Open a small store that `kill` can kill; options as for `Store.open`."""
    options.setdefault("volume_size", VOLUME_SIZE)
    options.setdefault("volume_num", VOLUME_NUM)
    options.setdefault("sync_mode", "none")
    if isinstance(options.get("clock"), FakeClock):
        options["clock"] = fixed_clock(options["clock"])
    process: Any = options.pop("fs", None) or UnsyncedFileSystem()
    if not isinstance(process, ProcessFileSystem):
        process = ProcessFileSystem(process)
    store = Store.open(str(directory), fs=process, **options)
    _processes[store] = process
    return store


def open_fifo(directory: Path | str, **options: Any) -> Store:
    """Do the same with one ring: the oldest volume is evicted, and nothing is copied."""
    return open_store(directory, eviction="fifo", **options)


def kill(store: Store) -> None:
    """Leave a store as a killed process leaves it: nothing buffered is written."""
    _processes[store].die()


def reopen(store: Store, directory: Path | str, **options: Any) -> Store:
    """Kill the process that has the store open, and start another."""
    kill(store)
    return open_store(directory, **options)


def value_of(record: Record | None) -> bytes | None:
    """Return the value, None for a miss."""
    return None if record is None else record.value


@cache
def counted_size(size: int) -> int:
    """Return the bytes that the index counts for a live record of a size."""
    index = _native.Index(OsFileSystem(), bytes(16), volume_bytes=1 << 24, volumes=1)
    index.add_volume(1)
    index.set(b"key", 1, 64, size)
    return index.live(1)[1]


def fill_volume(store: Store, prefix: bytes = b"fill") -> list[bytes]:
    """Put 1,000-byte values until the store has rotated once; return their keys."""
    rotations = store.stats.rotations
    keys: list[bytes] = []
    while store.stats.rotations == rotations:
        keys.append(b"%s/%d" % (prefix, len(keys)))
        store.put(keys[-1], keys[-1].ljust(1000, b"."))
    return keys


def scan_keys(store: Store) -> Iterator[list[bytes]]:
    """Yield the keys of one scan, some at a time."""
    scan = store.key_scan()
    while scan.cursor:
        yield scan.read()


def reclaim_some(store: Store) -> None:
    """Read some keys often and others never until records of both kinds were reclaimed."""
    put = 0
    while not (
        store.stats.disposition.copied
        and store.stats.disposition.unused
        and store.usage().eviction.reclaimed
    ):
        for number in range(5):
            key = b"used/%d" % number
            if store.get(key) is None:
                store.put(key, bytes(500))
        key = b"unused/%d" % put
        if store.get(key) is None:
            store.put(key, bytes(500))
        put += 1


def ring_of(store: Store, key: bytes) -> str:
    """Return the ring that has the record of a key."""
    record = store.peek(key)
    assert record is not None
    return store.usage().volumes[record.volume].ring


def manifest_of(directory: Path) -> Manifest:
    """Return what META.txt says."""
    manifest = decode_manifest((directory / "META.txt").read_bytes())
    assert manifest is not None
    return manifest


def assert_sums(usage: StoreUsage) -> None:
    """Compare what is computed without the list of volumes with that list."""
    volumes = usage.volumes
    assert usage.states == dict.fromkeys(STATES, 0) | Counter(
        volume.state for volume in volumes
    )
    for name, ring in zip(("main", "probation"), usage.rings, strict=True):
        found = [volume for volume in volumes if volume.ring == name]
        assert ring == (
            len(found),
            sum(volume.used for volume in found),
            sum(volume.live for volume in found),
            sum(volume.live_records for volume in found),
            min((v.started_ms for v in found if v.started_ms), default=0),
        )
    started = [v.started_ms for v in volumes if v.started_ms]
    assert usage.oldest_started_ms == min(started, default=0)
    # A volume whose id is not in use any more may be behind a gap.
    active = next(volume for volume in volumes if volume.id == usage.active_id)
    assert usage.active_started_ms == active.started_ms


def disk_bytes(directory: Path | str) -> int:
    """Return the size of all volumes together."""
    return sum(path.stat().st_size for path in Path(directory, "data").iterdir())


def signed(text: bytes) -> bytes:
    """Return the lines of a META.txt with their checksum."""
    return text + b"checksum %08x\n" % crc32c(text)
