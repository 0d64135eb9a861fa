"""
META.txt, the manifest of a mount point, and LOCK, as specified in docs/FORMAT.md.

META.txt links the files: one line for each valid volume names its sequence number, ring and
salt and, once nothing is appended any more, its end and the checksum of its index file. It
is replaced only when a volume is started or the store is stopped. In between, the second
and third line of LOCK say how far the active volumes were written, and the time. So a start
notices that a killed process had written more than the files contain: they were replaced by
earlier ones. Pure functions over bytes: this module reads and writes no files.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.checksum import crc32c
from volcache.geometry import VOLUME_BYTES_MAX
from volcache.store.format import (
    MOUNT_COUNT_MAX,
    SEQ_MAX,
    TIME_END,
    VERSION,
    VOLUME_ID_MAX,
    Ring,
    Segment,
    VolumeUse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

PURGE: Final = "PURGE.txt"
# open: records are appended. sealed: complete, but a power loss may still lose the end.
# synced: complete on the disk.
VolumeState = Literal["open", "sealed", "synced"]

_FIELDS: Final = re.compile(
    rb"([0-9]{1,5})\nformat [0-9]+\nstore ([0-9a-f]{16})\nmount ([0-9]{1,10})\n"
    rb"time ([0-9]{1,20})\nboot ([0-9a-f]{8})\n(?:hot ([0-9]{1,20} [0-9]{1,20})\n)?"
    rb"(?:probation-first ([0-9]{1,20})\n)?"
    rb"(?:purges ([0-9]{1,20}) seq ([0-9]{1,20}) checksum ([0-9a-f]{8})\n)?"
)
_VOLUME: Final = re.compile(
    rb"volume ([0-9]{1,5}) seq ([0-9]{1,20}) ring (main|probation)"
    rb" salt ([0-9a-f]{16}(?:,[0-9]{1,13}:[0-9a-f]{16})*)"
    rb" (?:open|(sealed|synced) end ([0-9]{1,13})"
    rb" index (-|[0-9a-f]{8}))\n"
)
# `Ring.name` takes longer than the rest of a line.
_RINGS: Final = tuple(ring.name.lower() for ring in Ring)


class Mismatch(NamedTuple):
    """A file that does not belong with the others."""

    file: str
    expected: str
    found: str

    def __str__(self) -> str:
        """Return what `volcache check` says of it."""
        return f"expected {self.expected}, found {self.found}"


class ListedVolume(NamedTuple):
    """The line of one volume."""

    use: VolumeUse
    state: VolumeState = "open"
    end: int = 0  # of the last record; 0 while it is open
    # Of the last checkpoint in the index file; None: open, or the file is incomplete.
    index_checksum: int | None = None
    segments: tuple[Segment, ...] = ()  # in order; the first mount's is not included

    @property
    def is_open(self) -> bool:
        """Whether records may follow the last one that is known."""
        return self.state == "open"

    @property
    def salts(self) -> list[int]:
        """All its salts; the last one is that of what was appended last."""
        return [self.use.salt, *(segment.salt for segment in self.segments)]

    def may_have_lost(self, *, is_same_boot: bool) -> bool:
        """Return whether a power loss may have taken what was not synced."""
        return self.state != "synced" and not is_same_boot


class ListedPurges(NamedTuple):
    """The line of PURGE.txt."""

    serial: int
    seq: int  # nothing in a newer volume is purged
    checksum: int


class Manifest(NamedTuple):
    """The fields of META.txt."""

    store_id: int
    mount_count: int  # how often the mount point has been opened for writing
    time_us: int  # the latest time the store has seen, microseconds since the epoch
    boot: int  # CRC-32C of the boot id of the machine
    volumes: tuple[ListedVolume, ...]  # oldest first
    hot: str = ""  # after a clean stop: inode and time of the last change of HOT.txt
    # Volumes of ring probation up to this sequence number are reclaimed before any of ring
    # main, because ring main may have newer records of their keys: their reclaim had begun,
    # or it is not known; 0: there are none.
    probation_first: int = 0
    purges: ListedPurges | None = None  # which PURGE.txt is valid; None: none is needed

    @property
    def next_mount_count(self) -> int:
        """The mount count of the next mount."""
        return min(self.mount_count + 1, MOUNT_COUNT_MAX)

    @property
    def active(self) -> VolumeUse:
        """The volume that was started last; it is written."""
        return self.volumes[-1].use

    @property
    def actives(self) -> tuple[VolumeUse, ...]:
        """The newest volume of each ring: no other one is written."""
        newest = {listed.use.ring: listed.use for listed in self.volumes}
        return tuple(newest.values())

    def outdated_bounds(self, unknown: Iterable[VolumeUse]) -> dict[Ring, int]:
        """
        Return for each ring below which sequence number records may be outdated.

        Args:
            unknown: Volumes of which not all keys are known.
        """
        bounds = dict.fromkeys(Ring, 0)
        for use in unknown:
            bounds[use.ring] = max(bounds[use.ring], use.seq + 1)
        if bounds[Ring.MAIN]:
            # Their records may have been copied to ring main, and replaced there.
            first = self.probation_first + 1
            bounds[Ring.PROBATION] = max(bounds[Ring.PROBATION], first)
        return bounds


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the contents of META.txt."""
    first = (
        f"{manifest.active.volume}\n"
        f"format {VERSION}\n"
        f"store {manifest.store_id:016x}\n"
        f"mount {manifest.mount_count}\n"
        f"time {manifest.time_us}\n"
        f"boot {manifest.boot:08x}\n"
    )
    if manifest.hot:
        first += f"hot {manifest.hot}\n"
    if manifest.probation_first:
        first += f"probation-first {manifest.probation_first}\n"
    if manifest.purges is not None:
        serial, seq, checksum = manifest.purges
        first += f"purges {serial} seq {seq} checksum {checksum:08x}\n"
    text = (first + "".join(map(_encode_volume, manifest.volumes))).encode()
    return text + b"checksum %08x\n" % crc32c(text)


def _encode_volume(listed: ListedVolume) -> str:
    (volume, seq, ring, salt), state, end, checksum, segments = listed
    line = f"volume {volume} seq {seq} ring {_RINGS[ring]} salt {salt:016x}"
    for start, added in segments:
        line += f",{start}:{added:016x}"
    line += f" {state}"
    if state == "open":
        return f"{line}\n"
    index = "-" if checksum is None else f"{checksum:08x}"
    return f"{line} end {end} index {index}\n"


def manifest_version(data: bytes) -> int | None:
    """
    Return the format version in META.txt; None if its checksum is wrong or missing.

    The checksum line is the same in every version: a flipped bit in the version number
    must not look like another version, which would refuse the start.
    """
    if _checked_text(data) is None:
        return None
    found = re.match(rb"[0-9]{1,5}\nformat ([0-9]{1,9})\n", data)
    return int(found[1]) if found else None


def decode_manifest(data: bytes) -> Manifest | None:
    """Return the fields of META.txt, or None if it is damaged."""
    text = _checked_text(data)
    found = _FIELDS.match(text or b"")
    if text is None or found is None:
        return None
    volumes, at = [], found.end()
    while line := _VOLUME.match(text, at):
        volumes.append(_decode_volume(line))
        at = line.end()
    if at != len(text) or not volumes or volumes[-1].use.volume != int(found[1]):
        return None
    manifest = Manifest(
        store_id=int(found[2], 16),
        mount_count=int(found[3]),
        time_us=int(found[4]),
        boot=int(found[5], 16),
        volumes=tuple(volumes),
        hot=(found[6] or b"").decode(),
        probation_first=int(found[7] or 0),
        purges=ListedPurges(int(found[8]), int(found[9]), int(found[10], 16))
        if found[8]
        else None,
    )
    return manifest if _is_in_bounds(manifest) else None


def _is_in_bounds(manifest: Manifest) -> bool:
    """Return whether numbers are in their bounds, and volumes and segments in order."""
    volumes, purges = manifest.volumes, manifest.purges or ListedPurges(0, 0, 0)
    seqs = [listed.use.seq for listed in volumes]
    ids = {listed.use.volume for listed in volumes}
    # A power loss may take what a segment has: then it begins behind the end.
    starts = [[segment.start for segment in volume.segments] for volume in volumes]
    ends = [volume.end for volume in volumes]
    return (
        seqs == sorted(set(seqs))
        and max(seqs[-1], manifest.probation_first, purges.seq) <= SEQ_MAX
        and len(ids) == len(volumes)
        and max(ids) <= VOLUME_ID_MAX
        and all(some == sorted(some) for some in starts)
        and max(*ends, *chain(*starts), 0) <= VOLUME_BYTES_MAX
        and manifest.mount_count <= MOUNT_COUNT_MAX
        and manifest.time_us < TIME_END
        and purges.serial < 2**63
    )


def _decode_volume(line: re.Match[bytes]) -> ListedVolume:
    volume, seq, ring, salt, state, end, checksum = line.groups()
    first, *later = salt.split(b",")
    use = VolumeUse(int(volume), int(seq), Ring[ring.decode().upper()], int(first, 16))
    pairs = (part.split(b":") for part in later)
    segments = tuple(Segment(int(start), int(added, 16)) for start, added in pairs)
    if state is None:
        return ListedVolume(use, segments=segments)
    return ListedVolume(
        use,
        "synced" if state == b"synced" else "sealed",
        int(end),
        None if checksum == b"-" else int(checksum, 16),
        segments,
    )


def _checked_text(data: bytes) -> bytes | None:
    """Return all lines before the checksum line, None if the checksum is wrong."""
    text, _, checksum = data.rpartition(b"checksum ")
    return text if checksum == b"%08x\n" % crc32c(text) else None


# --- LOCK --------------------------------------------------------------------------

# Numbers have a fixed width: the line is overwritten in place, within one page.
_PROGRESS: Final = re.compile(
    rb"volcache lock %d store ([0-9a-f]{16}) seq ([0-9]{15}) salt ([0-9a-f]{16})"
    rb" end ([0-9]{13})"
    rb" time ([0-9]{20}) boot ([0-9a-f]{8}) ([0-9a-f]{8})\n" % VERSION
)
_BASES: Final = (16, 10, 16, 10, 10, 16)  # of its fields


class Progress(NamedTuple):
    """How far a process has come."""

    store_id: int
    seq: int  # of the active volume
    salt: int  # likewise
    end: int  # of its last record
    time_us: int  # microseconds since the epoch
    boot: int  # CRC-32C of the boot id of the machine: the line is not synced

    def __str__(self) -> str:
        """Return what `volcache check` says of it."""
        return f"seq {self.seq} salt {self.salt:016x} end {self.end}"


def encode_progress(*all_progress: Progress) -> bytes:
    """Return a line for each."""
    lines = b""
    for store_id, seq, salt, end, time_us, boot in all_progress:
        line = (
            f"volcache lock {VERSION} store {store_id:016x} seq {seq:015d}"
            f" salt {salt:016x} end {end:013d} time {time_us:020d} boot {boot:08x} "
        ).encode()
        lines += line + b"%08x\n" % crc32c(line)
    return lines


def decode_progress(data: bytes) -> list[Progress]:
    """Return what the intact lines in LOCK say, the newest volume first."""
    lines = {
        Progress(*map(int, found.groups(), _BASES))
        for found in _PROGRESS.finditer(data)
        if crc32c(data[found.start() : found.start(7)]) == int(found[7], 16)
    }
    return sorted(filter(_is_place, lines), key=lambda one: one.seq, reverse=True)


def _is_place(line: Progress) -> bool:
    is_place = line.seq <= SEQ_MAX and line.end <= VOLUME_BYTES_MAX
    return is_place and line.time_us < TIME_END
