"""
Scrub: verify the volumes of a running store in the background, at a limited rate.

A disk reports a bad sector only when it is read, and a record that is not asked for may
stay damaged for months. The scrub reads all volumes, one after the other, again and again,
and makes the checks of `volcache check`. It changes nothing: a damaged record is a miss as
before. Volumes that are being written are verified when they are sealed.

It reads past the page cache where the system can: what the disk has is verified, and what
requests read stays in the cache. The thread sleeps most of the time; between two pieces it
holds no lock. A volume can be reclaimed while it is read. Then its bytes are those of
another use, and what was found is dropped: a reclaim holds the lock of the store until
the volume is no longer in `volumes`.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final

from volcache.background import Background
from volcache.store.files import ReadOnlyFileSystem, UncachedReader
from volcache.store.volume import NO_FILE
from volcache.store.volume_check import Anomaly, VolumeCheck

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.files import FileSystem
    from volcache.store.rings import Rings
    from volcache.store.volume import Volume

_logger = logging.getLogger("volcache.store")

# Read at a time. A disk of 100 MB/s serves no other request for 3 ms.
_PIECE_BYTES: Final = 256 << 10
_EMPTY_WAIT_SECONDS: Final = 1.0  # before it looks again for volumes to verify
_LINES_MAX: Final = 20  # in the log, per pass


class _EndedError(Exception):
    """The thread is to stop, or the volume was reclaimed."""


class Scrub:
    """The thread that verifies the volumes of a store."""

    def __init__(self, rings: Rings, rate: int, period: float) -> None:
        """
        Start at once, with any one of the volumes: a start may come often.

        Args:
            rings: Has the volumes, and counts what is read and found.
            rate: Bytes per second, above 0.
            period: Seconds from the beginning of a pass to that of the next, at least.
        """
        self._rings, self._directory = rings, rings.directory
        self._stats, self._clock = rings.stats.scrub, rings.clock
        self._lock = rings.index.lock
        self._period = period
        self._stats.rate = rate
        self._lines = 0
        self._stopped = threading.Event()
        self._pace = Pace(rate, self._stopped.wait)
        self._is_first = True
        self._thread = Background("scrub", self._pass, self._stopped.is_set)
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended and will not use the store again."""
        self._stopped.set()
        self._thread.join()

    def _pass(self) -> None:
        """Verify all volumes once, and wait for the time of the next pass."""
        volumes = self._volumes()
        if not volumes:
            self._stopped.wait(_EMPTY_WAIT_SECONDS)
            return
        if self._is_first:
            at = secrets.randbelow(len(volumes))
            volumes = volumes[at:] + volumes[:at]
        self._is_first = (
            True  # Unless this pass is completed, the next starts elsewhere.
        )
        began = time.monotonic()
        try:
            self._verify(volumes)
            self._is_first = False
        finally:
            self._stopped.wait(max(0.0, began + self._period - time.monotonic()))

    def _volumes(self) -> list[Volume]:
        """Return the volumes that are not being written, oldest first."""
        with self._lock:
            return [
                volume
                for _, volume in sorted(self._rings.volumes.items())
                if volume not in self._rings.actives and volume.fd != NO_FILE
            ]

    def _verify(self, volumes: list[Volume]) -> None:
        """Verify each volume once."""
        started, self._lines = time.monotonic(), 0
        found, total = self._stats.found, sum(volume.end for volume in volumes)
        self._stats.begin_pass(total)
        _logger.info("scrub.started volumes=%d bytes=%d", len(volumes), total)
        left = total
        for volume in volumes:
            self._stats.volume_id = volume.id
            try:
                self._verify_volume(volume)
            except _EndedError:
                if self._stopped.is_set():
                    return
            except OSError as error:
                what = f"its index file cannot be read: {error.strerror or error}"
                self._report(Anomaly("file", f"data/{volume.id}", 0, what))
            left -= volume.end
            self._stats.left_bytes = left
        self._stats.end_pass(self._clock.now_ms())
        _logger.info(
            "scrub.completed volumes=%d bytes=%d findings=%d seconds=%.0f",
            len(volumes),
            total,
            self._stats.found - found,
            time.monotonic() - started,
        )

    def _verify_volume(self, volume: Volume) -> None:
        """
        Verify one volume.

        Raises:
            _EndedError: It was reclaimed, or the thread is to stop.
            OSError: Its index file cannot be read.
        """
        uses = {listed.use: listed for listed in self._rings.manifest.volumes}
        if volume.use not in uses:
            return
        check = VolumeCheck(
            self._directory,
            volume,
            uses[volume.use],
            is_active=False,
            fs=_PacedReads(self._directory.fs, lambda size: self._wait(volume, size)),
        )
        for found in check.run():
            if isinstance(found, Anomaly) and found.kind in {"record", "file"}:
                with self._lock:
                    if not self._rings.has(volume):
                        raise _EndedError
                self._report(found)

    def _wait(self, volume: Volume, size: int) -> None:
        """
        Wait after a piece was read.

        Raises:
            _EndedError: There is nothing more to read.
        """
        self._stats.bytes += size
        self._stats.left_bytes = max(0, self._stats.left_bytes - size)
        if self._pace.wait(size) or not self._rings.has(volume):
            raise _EndedError

    def _report(self, found: Anomaly) -> None:
        """Count damage and log it."""
        self._stats.count(found.kind, self._clock.now_ms())
        self._lines += 1
        if self._lines <= _LINES_MAX:
            _, file, offset, what = found
            _logger.error("scrub.damaged file=%s offset=%d what=%r", file, offset, what)


class Pace:
    """Limits a rate; what was not used is not caught up."""

    def __init__(
        self,
        rate: float,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Begin now.

        Args:
            rate: Bytes per second.
            wait: Waits for a number of seconds; returns whether to stop.
            clock: Seconds.
        """
        self._rate = rate
        self._wait = wait
        self._clock = clock
        self._due = clock()

    def wait(self, size: int) -> bool:
        """Wait until a number of bytes may have been read; return whether to stop."""
        now = self._clock()
        self._due = max(self._due, now - size / self._rate) + size / self._rate
        return self._wait(max(0.0, self._due - now))


class _PacedReads(ReadOnlyFileSystem):
    """The files of a store, read at a limited rate and past the page cache."""

    def __init__(self, fs: FileSystem, wait: Callable[[int], None]) -> None:
        self._fs = fs
        self._wait = wait
        # A file system of a test has its own.
        is_real = fs.pread is os.pread
        self._read = UncachedReader(_PIECE_BYTES).pread if is_real else fs.pread
        self.stat = fs.stat  # type: ignore[assignment]

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read in pieces, each followed by a pause."""
        pieces = []
        end = offset + length
        while offset < end:
            piece = self._read(fd, min(_PIECE_BYTES, end - offset), offset)
            self._wait(len(piece))
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
