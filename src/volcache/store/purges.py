"""
Purges: prefixes of keys of which everything stored so far is a miss, and PURGE.txt.

A purge is an entry in a short list: a prefix, a time, and the newest volume that existed
then. A record is purged if its key begins with the prefix and it was stored at that time or
before; reads compare the two. Nothing purged is copied to a newer volume, so an entry can
be dropped when all volumes that existed at its time were reclaimed.

PURGE.txt holds the list, and META.txt names the checksum of the file while there are
entries, so that a file that is missing, damaged, an earlier one, or one from a copy is
noticed. The order of a purge, and what a crash after each step leaves:
    1. PURGE.txt is replaced. It names the checksum that META.txt has now: a start accepts
       it as the next version, and the purge takes effect.
    2. META.txt is replaced; it names the new PURGE.txt.
    3. Reads compare records with the new list.
When the last entry is dropped, META.txt no longer names the file, which is then removed. A
start removes one that was left; it knows it by its volumes, which are all gone.

Pure functions and values: this module reads and writes no files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from google_crc32c import value as crc32c

from volcache.store.format import VERSION
from volcache.store.index_format import decode_key, encode_key
from volcache.store.manifest import ListedPurges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from volcache.store.manifest import Manifest

# A read of an older record looks at all of them.
PURGES_MAX: Final = 256

PURGE: Final = "PURGE.txt"
_FIRST: Final = re.compile(
    rb"# volcache purges %d store ([0-9a-f]{16}) serial ([0-9]{1,20})"
    rb" after (-|[0-9a-f]{8})\n" % VERSION
)
_ENTRY: Final = re.compile(rb"([0-9]{1,20}) ([0-9]{1,20}) ([!-~]+)\n")


class Purge(NamedTuple):
    """What was stored under a prefix up to a time is a miss."""

    time_us: int  # by the clock of the store; different from that of every record
    seq: int  # the highest sequence number of a volume at that time
    prefix: bytes


class PurgeStay(NamedTuple):
    """How long a purge that is made now stays in the list."""

    volumes: int  # that must be reclaimed before it can be dropped
    needed_bytes: int  # that must be stored for this, about
    seconds: float | None  # at the rate since the store was opened; None: not known
    entries: int  # in the list now
    limit: int


class PurgeList(tuple[Purge, ...]):  # noqa: SLOT001 - It has attributes.
    """
    The purges that count, oldest first. Threads may read it at any time.

    Attributes:
        newest_us: The time of the newest; -1 if there is none.
    """

    newest_us: int
    _times: tuple[tuple[int, dict[bytes, int]], ...]

    def __new__(cls, entries: Iterable[Purge] = ()) -> Self:
        """Keep these."""
        self = super().__new__(cls, sorted(entries))
        self.newest_us = self[-1].time_us if self else -1
        # By the length of the prefixes: there are few of these.
        times: dict[int, dict[bytes, int]] = {}
        for purge in self:
            times.setdefault(len(purge.prefix), {})[purge.prefix] = purge.time_us
        self._times = tuple(times.items())
        return self

    def covers(self, key: bytes, stored_us: int) -> bool:
        """Return whether a record is purged."""
        if stored_us > self.newest_us:
            return False
        return any(
            times.get(key[:length], -1) >= stored_us for length, times in self._times
        )

    def plus(self, purge: Purge) -> Self:
        """Return the list with a newer purge, without those that it covers."""
        kept = (one for one in self if not one.prefix.startswith(purge.prefix))
        return type(self)([*kept, purge])

    def since(self, seq: int) -> Self:
        """Return those that are needed if no volume is older than `seq`."""
        if all(purge.seq >= seq for purge in self):
            return self
        return type(self)(purge for purge in self if purge.seq >= seq)


class PurgeFile(NamedTuple):
    """The contents of PURGE.txt."""

    store_id: int
    serial: int  # grows with each version of the file
    after: int | None  # the checksum of the version before; None: META.txt named none
    purges: PurgeList

    @property
    def listed(self) -> ListedPurges:
        """What META.txt says of this file."""
        seq = max((purge.seq for purge in self.purges), default=0)
        return ListedPurges(self.serial, seq, crc32c(_text_of(self)))


def next_file(
    store_id: int, before: ListedPurges | None, purges: PurgeList
) -> PurgeFile:
    """Return the version of PURGE.txt after the one that META.txt names."""
    if before is None:
        return PurgeFile(store_id, 1, None, purges)
    return PurgeFile(store_id, before.serial + 1, before.checksum, purges)


def encode_purges(file: PurgeFile) -> bytes:
    """Return the contents of PURGE.txt."""
    text = _text_of(file)
    return text + b"checksum %08x\n" % crc32c(text)


def _text_of(file: PurgeFile) -> bytes:
    after = "-" if file.after is None else f"{file.after:08x}"
    first = (
        f"# volcache purges {VERSION} store {file.store_id:016x} serial {file.serial}"
        f" after {after}\n"
    )
    lines = (
        f"{time} {seq} {encode_key(prefix)}\n" for time, seq, prefix in file.purges
    )
    return (first + "".join(lines)).encode()


def decode_purges(data: bytes) -> PurgeFile | None:
    """Return what PURGE.txt says; None if it is damaged."""
    text, _, checksum = data.rpartition(b"checksum ")
    first = _FIRST.match(text)
    if first is None or checksum != b"%08x\n" % crc32c(text):
        return None
    entries, at = [], first.end()
    while line := _ENTRY.match(text, at):
        entries.append(Purge(int(line[1]), int(line[2]), decode_key(line[3])))
        at = line.end()
    if at != len(text):
        return None
    after = None if first[3] == b"-" else int(first[3], 16)
    return PurgeFile(int(first[1], 16), int(first[2]), after, PurgeList(entries))


# --- At a start --------------------------------------------------------------------


class FoundPurges(NamedTuple):
    """
    What a start found in PURGE.txt.

    Attributes:
        file: The file, if it is to be used.
        purges: All in the file, also those that are not needed.
        exists: There is a file of this name.
        refusal: Why the start must not use the mount point; empty: it may.
        doubtful_seq: With a refusal: volumes up to this one may have purged records.
    """

    file: PurgeFile | None = None
    exists: bool = False
    refusal: str = ""
    doubtful_seq: int = 0
    purges: PurgeList = PurgeList()


def compare_purges(
    data: bytes | None, manifest: Manifest, *, is_manifest_lost: bool
) -> FoundPurges:
    """
    Compare PURGE.txt with META.txt.

    Args:
        data: The file; None if there is none.
        manifest: META.txt.
        is_manifest_lost: It was rebuilt, and cannot name the file.
    """
    listed = manifest.purges
    if not manifest.mount_count:  # A new store: nothing can have been purged.
        return FoundPurges(exists=data is not None)
    file = None if data is None else decode_purges(data)
    lost_seq = manifest.active.seq if is_manifest_lost else 0
    doubtful_seq = lost_seq if listed is None else listed.seq
    if data is None and listed is None:
        return FoundPurges()
    if file is not None and file.store_id == manifest.store_id:
        if is_manifest_lost or _is_next(file, listed):
            return FoundPurges(file, exists=True, purges=file.purges)
        if listed is None and not file.purges.since(manifest.volumes[0].use.seq):
            return FoundPurges(exists=True)  # It was left when the list became empty.
        doubtful_seq = max(doubtful_seq, file.listed.seq)
    return FoundPurges(
        None,
        data is not None,
        f"{_what_is_wrong(data, file, manifest)}, so that it is unknown which"
        f" values were purged; put back the right {PURGE}",
        doubtful_seq,
    )


def _is_next(file: PurgeFile, listed: ListedPurges | None) -> bool:
    """Return whether META.txt names this file, or a crash explains that it does not."""
    if listed is None:
        return file.after is None
    return file.listed == listed or (
        file.serial == listed.serial + 1 and file.after == listed.checksum
    )


def _what_is_wrong(
    data: bytes | None, file: PurgeFile | None, manifest: Manifest
) -> str:
    listed, store_id = manifest.purges, manifest.store_id
    if file is None:
        expected = f" although META.txt names it ({_name(listed)})" if listed else ""
        return f"{PURGE} is {'missing' if data is None else 'damaged'}{expected}"
    if file.store_id != store_id:
        return f"{PURGE}: expected store {store_id:016x}, found {file.store_id:016x}"
    return (
        f"{PURGE} and META.txt do not belong together: it is {_name(file.listed)}, and"
        f" META.txt names {_name(listed)}"
    )


def _name(listed: ListedPurges | None) -> str:
    if listed is None:
        return "none"
    return f"serial {listed.serial} checksum {listed.checksum:08x}"
