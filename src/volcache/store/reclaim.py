"""
The reclaim of one volume, step by step: what of it is used, and copies of that.

`Reclaim` is the interface, `PythonReclaim` the implementation in Python; the native one is
`_core/reclaim.c`. First the index is searched for records of the volume with enough hits.
Then these are looked at in the order of the volume: what the policy keeps is copied, one
read and one write for each, to the active volume of ring main. A copy has the same value,
type, flags, expiry and time stored; it is not a new version.

What is not copied stays in the index, and can be read and replaced, until the log drops the
volume as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from google_crc32c import value as crc32c

from volcache.errors import DamagedRecordError
from volcache.store.format import (
    RECORD_BYTES_MIN,
    VOLUME_HEADER_BYTES,
    decode_header,
    record_size,
)
from volcache.store.index import SHARES, PythonIndex, Step
from volcache.store.native import make_native_reclaim
from volcache.store.stats import Fate

if TYPE_CHECKING:
    from volcache.store.eviction import Terms
    from volcache.store.files import FileSystem
    from volcache.store.format import RecordHeader
    from volcache.store.index import Index
    from volcache.store.volume import Volume


class Reclaim(Protocol):
    """One reclaim under way."""

    def collect(self, shares: int, terms: Terms) -> Fate:
        """
        Search some of `SHARES` parts of the index, those that were not searched yet.

        Returns:
            How many records have not enough hits, and are dropped.
        """

    def step(
        self,
        end: int,
        copy_bytes: int,
        terms: Terms,
        target: Volume | None,
        now_ms: int,
    ) -> Step:
        """
        Look at the records found, as far as it goes without an error.

        Args:
            end: Stop at a record that begins here or later.
            copy_bytes: Stop after so many bytes were copied.
            terms: What is kept.
            target: Gets the copies; None: nothing more is copied.
            now_ms: A record that has expired by then is not copied.
        """


class PythonReclaim:
    """Implements `Reclaim` for an index in Python."""

    def __init__(self, index: PythonIndex, fs: FileSystem, volume: Volume) -> None:
        """Begin; nothing is read."""
        self._index = index
        self._fs = fs
        self._volume = volume
        self._share = 0
        self._found: list[tuple[int, bytes]] = []
        self._at = -1  # -1: not sorted

    def collect(self, shares: int, terms: Terms) -> Fate:
        """See `Reclaim`."""
        until = min(SHARES, self._share + shares)
        unused = 0
        for share in range(self._share, until):
            found = self._index.records_of(self._volume.seq, share, SHARES)
            for offset, size, key in found:
                if self._index.hits(key) >= terms.need(size):
                    self._found.append((offset, key))
                    continue
                unused += 1
                if terms.is_probation:
                    self._index.add_ghost(key)
        self._share = until
        return Fate(unused=unused)

    def step(
        self,
        end: int,
        copy_bytes: int,
        terms: Terms,
        target: Volume | None,
        now_ms: int,
    ) -> Step:
        """See `Reclaim`."""
        if self._at < 0:
            self._found.sort()
            self._at = 0
        total = Fate()
        while total.copied_bytes < copy_bytes:
            if self._at == len(self._found):
                return Step("done", total)
            offset, key = self._found[self._at]
            if offset >= end:
                return Step("more", total)
            step = self._look_at(key, offset, terms, target, now_ms)
            total = total.plus(step.fate)
            if step.why == "full":
                return step._replace(fate=total)
            self._at += 1
            if step.why != "more":
                return step._replace(fate=total)
        return Step("more", total)

    def _look_at(
        self,
        key: bytes,
        offset: int,
        terms: Terms,
        target: Volume | None,
        now_ms: int,
    ) -> Step:
        """Decide on one record, and copy it if it is kept."""
        index, volume = self._index, self._volume
        position = index.find(key)
        if position is None or position[:2] != (volume.seq, offset):
            return Step("more", Fate())
        size = position[2]
        if index.hits(key) < terms.need(size):
            fate = Fate(unused=1)
        elif target is None:
            fate = Fate(left=1)
        elif index.heat().tokens < size:
            fate = Fate(unpaid=1)
        else:
            return self._copy(key, offset, size, terms, target, now_ms)
        if terms.is_probation:
            index.add_ghost(key)
        return Step("more", fate)

    def _copy(
        self,
        key: bytes,
        offset: int,
        size: int,
        terms: Terms,
        target: Volume,
        now_ms: int,
    ) -> Step:
        try:
            data = self._fs.pread(self._volume.fd, size, offset)
        except OSError as error:
            return Step("unreadable", Fate(unreadable=1), error)
        header = self._check(data, offset, key)
        if header is None:
            self._index.forget(key, self._volume.seq, offset)
            damage = DamagedRecordError(
                "a check failed before it was copied", self._volume.id, offset
            )
            return Step("damaged", Fate(damaged=1), damage)
        is_expired = 0 < header.expires_ms <= now_ms
        # In a newer volume it would outlive the purge.
        if is_expired or self._index.purges.covers(key, header.stored_us):
            return Step("more", Fate(expired=is_expired, purged=not is_expired))
        writer = target.writer
        if writer.end + header.size > writer.capacity:
            # Too large if volumes were larger before.
            is_too_large = 0 < writer.capacity < VOLUME_HEADER_BYTES + header.size
            return Step("more", Fate(left=1)) if is_too_large else Step("full", Fate())
        try:
            at, _, _ = writer.append(
                key,
                data[header.value_start : header.size],
                header.content_type,
                header.content_encoding,
                header.cache_control,
                header.stored_us,
                header.expires_ms,
                header.flags,
                False,  # Not a tombstone.
                False,  # Not synced.
            )
        except OSError as error:
            return Step("refused", Fate(), error)
        hits = max(0, self._index.hits(key) - terms.hits_taken)
        self._index.move(key, target.seq, at, header.size, hits)
        return Step("more", Fate(1, header.size))

    def _check(self, data: bytes, offset: int, key: bytes) -> RecordHeader | None:
        """Return the header of an intact record; None if it is not one of this key."""
        if len(data) < RECORD_BYTES_MIN or record_size(data) > len(data):
            return None
        header = decode_header(data, self._volume.identity_at(offset), offset)
        if header is None or header.tombstone or header.key != key:
            return None
        value = data[header.value_start : header.size]
        return header if crc32c(value) == header.checksum else None


def make_reclaim(index: Index, fs: FileSystem, volume: Volume) -> Reclaim:
    """Begin to reclaim a sealed volume; nothing is read."""
    if isinstance(index, PythonIndex):
        return PythonReclaim(index, fs, volume)
    return make_native_reclaim(index, volume.seq, volume.id, volume.end)
