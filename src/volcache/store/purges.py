"""
Purges: prefixes of keys of which everything stored so far is a miss, and PURGE.txt.

A purge is a prefix, a time, and the newest volume that existed then. A record is purged if
its key begins with the prefix and it was stored at that time or before; reads compare the
two, in the core (`_core/purges.h`). Nothing purged is copied to a newer volume, so a purge
is dropped when all volumes that existed at its time were reclaimed.

PURGE.txt has all of them. Each purge appends a line, which makes the next *version* of the
file; when it has grown, it is replaced by one with the purges that are left. META.txt names
the serial number and the checksum of the version that is valid, so that a file that is
missing, damaged, an earlier one, or one from a copy is noticed. The order of a purge, and
what a crash after each step leaves:
    1. PURGE.txt gets a line, or is replaced. Either way, it shows that it follows the
       version that META.txt names: a start accepts it, and the purge takes effect.
    2. META.txt is replaced; it names the new version.
    3. Reads compare records with the purge.
When the last purge is dropped, META.txt no longer names the file, which is then removed. A
start removes one that was left; it knows it by its volumes, which are all gone.

Pure functions and values: this module reads and writes no files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.checksum import crc32c
from volcache.store.format import KEY_BYTES_MAX, SEQ_MAX, TIME_END, VERSION
from volcache.store.index_format import decode_key, encode_key
from volcache.store.manifest import PURGE, ListedPurges, Mismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from volcache.store.manifest import Manifest

# In memory: 72 bytes for each, and the prefixes.
PURGES_MAX: Final = 65_536
PURGE_BYTES_MAX: Final = 8 << 20

_FIRST: Final = re.compile(
    rb"# volcache purges %d store ([0-9a-f]{16}) serial ([0-9]{1,18})"
    rb" after (-|[0-9a-f]{8})\n" % VERSION
)
_PURGE: Final = rb"([0-9]{1,16}) ([0-9]{1,15}) ([!-~]{1,%d})" % (3 * KEY_BYTES_MAX)
_LINE: Final = re.compile(_PURGE + rb"\n")
_CHECKSUM: Final = re.compile(rb"checksum ([0-9a-f]{8})\n")
_APPENDED: Final = re.compile(_PURGE + rb" ([0-9a-f]{8})\n")


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


class PurgeFile(NamedTuple):
    """
    The contents of PURGE.txt: a version as a whole, and lines that were appended.

    Attributes:
        store_id: Of the store.
        serial: Of the first version; each line makes the next.
        after: The checksum of the version before the first; None: META.txt named none.
        purges: Of the last version, oldest first; a later one replaces the same prefix.
        checksums: Of each version.
        is_torn: The last version is followed by what is no whole line.
    """

    store_id: int
    serial: int
    after: int | None
    purges: tuple[Purge, ...]
    checksums: tuple[int, ...]
    is_torn: bool

    @property
    def appended(self) -> int:
        """How many lines were appended."""
        return len(self.checksums) - 1

    @property
    def listed(self) -> ListedPurges:
        """What META.txt says of the last version."""
        seq = max((purge.seq for purge in self.purges), default=0)
        return ListedPurges(self.serial + self.appended, seq, self.checksums[-1])

    def may_follow(self, listed: ListedPurges | None) -> bool:
        """Return whether META.txt names this file, or a crash explains that it does not."""
        if listed is None:
            return self.after is None and not self.appended and not self.is_torn
        serial, checksum = listed.serial, listed.checksum
        last = self.serial + self.appended
        if (serial, checksum) == (last, self.checksums[-1]):
            return True  # What follows is a line that a crash has interrupted.
        before = self.checksums[-2] if self.appended else self.after
        return not self.is_torn and (serial + 1, checksum) == (last, before)


def encode_purges(
    store_id: int, before: ListedPurges | None, purges: Sequence[Purge]
) -> tuple[bytes, ListedPurges]:
    """
    Return PURGE.txt as a whole, and what META.txt says of it.

    Args:
        store_id: Of the store.
        before: The version before, which META.txt names; None: it names none.
        purges: All, oldest first.
    """
    serial, after = 1, "-"
    if before is not None:
        serial, after = before.serial + 1, f"{before.checksum:08x}"
    text = (
        f"# volcache purges {VERSION} store {store_id:016x} serial {serial}"
        f" after {after}\n"
    )
    text += "".join(
        f"{time} {seq} {encode_key(prefix)}\n" for time, seq, prefix in purges
    )
    data = text.encode()
    checksum = crc32c(data)
    seq = max((purge.seq for purge in purges), default=0)
    listed = ListedPurges(serial, seq, checksum)
    return data + b"checksum %08x\n" % checksum, listed


def encode_purge(before: ListedPurges, purge: Purge) -> tuple[bytes, ListedPurges]:
    """
    Return a line that makes the next version, and what META.txt says of that.

    Args:
        before: The version before, which META.txt names.
        purge: Later than all of it.
    """
    line = f"{purge.time_us} {purge.seq} {encode_key(purge.prefix)} ".encode()
    checksum = crc32c(line, before.checksum)
    listed = ListedPurges(before.serial + 1, max(before.seq, purge.seq), checksum)
    return line + b"%08x\n" % checksum, listed


def decode_purges(data: bytes) -> PurgeFile | None:
    """Return what PURGE.txt says; None: its first version is damaged."""
    first = _FIRST.match(data)
    if first is None:
        return None
    purges: list[Purge] = []
    at = first.end()
    while (line := _LINE.match(data, at)) and _add_purge(purges, line):
        at = line.end()
    end = _CHECKSUM.match(data, at)
    if end is None or int(end[1], 16) != crc32c(data[:at]):
        return None
    checksums, at = [int(end[1], 16)], end.end()
    while line := _APPENDED.match(data, at):
        checksum = crc32c(data[at : line.start(4)], checksums[-1])
        if checksum != int(line[4], 16) or not _add_purge(purges, line):
            break
        checksums.append(checksum)
        at = line.end()
    after = None if first[3] == b"-" else int(first[3], 16)
    return PurgeFile(
        *(int(first[1], 16), int(first[2]), after),
        *(tuple(purges), tuple(checksums), at < len(data)),
    )


def _add_purge(purges: list[Purge], line: re.Match[bytes]) -> bool:
    """Add the purge of a line; return whether its numbers are allowed."""
    purge = Purge(int(line[1]), int(line[2]), decode_key(line[3]))
    last_us = purges[-1].time_us if purges else -1
    is_in_order = last_us < purge.time_us < TIME_END
    is_key = 0 < len(purge.prefix) <= KEY_BYTES_MAX
    if not (is_in_order and purge.seq <= SEQ_MAX and is_key):
        return False
    purges.append(purge)
    return True


def purges_since(purges: tuple[Purge, ...], seq: int) -> tuple[Purge, ...]:
    """Return those that are needed if no volume is older than `seq`."""
    return tuple(purge for purge in purges if purge.seq >= seq)


# --- At a start --------------------------------------------------------------------


class FoundPurges(NamedTuple):
    """
    What a start found in PURGE.txt.

    Attributes:
        file: The file, if it is to be used.
        exists: There is a file of this name.
        mismatch: Why a start must not use the mount point; None: it may.
        doubtful_seq: With a mismatch: volumes up to this one may have purged records.
    """

    file: PurgeFile | None = None
    exists: bool = False
    mismatch: Mismatch | None = None
    doubtful_seq: int = 0

    @property
    def purges(self) -> tuple[Purge, ...]:
        """The purges in the file that is used, oldest first; also what is not needed."""
        return self.file.purges if self.file else ()

    @property
    def newest_us(self) -> int:
        """The time of the newest of them; -1: there is none."""
        return self.purges[-1].time_us if self.purges else -1


def compare_purges(
    file: PurgeFile | None, manifest: Manifest, *, exists: bool, is_manifest_lost: bool
) -> FoundPurges:
    """
    Compare PURGE.txt with META.txt.

    Args:
        file: What it says; None if it is missing or damaged.
        manifest: META.txt.
        exists: It is not missing.
        is_manifest_lost: It was rebuilt, and cannot name the file.
    """
    listed = manifest.purges
    if not manifest.mount_count:  # A new store: nothing can have been purged.
        return FoundPurges(exists=exists)
    lost_seq = manifest.active.seq if is_manifest_lost else 0
    doubtful_seq = lost_seq if listed is None else listed.seq
    if not exists and listed is None:
        return FoundPurges()
    if file is not None and file.store_id == manifest.store_id:
        if not file.is_torn if is_manifest_lost else file.may_follow(listed):
            return FoundPurges(file, exists=True)
        needed = purges_since(file.purges, manifest.volumes[0].use.seq)
        if listed is None and not (needed or is_manifest_lost):
            return FoundPurges(exists=True)  # It was left when the list became empty.
        doubtful_seq = max(doubtful_seq, file.listed.seq)
    text = "a damaged file" if exists else "none"
    if file is not None and not (file.is_torn and file.store_id == manifest.store_id):
        text = f"{_name(file.listed)} of store {file.store_id:016x}"
    expected = f"{_name(listed)} of store {manifest.store_id:016x}"
    mismatch = Mismatch(PURGE, expected, text)
    return FoundPurges(None, exists, mismatch, doubtful_seq)


def _name(listed: ListedPurges | None) -> str:
    if listed is None:
        return "none"
    return f"serial {listed.serial} checksum {listed.checksum:08x}"
