"""
The second and third line of LOCK: how far the active volumes were written, and the time.

META.txt is replaced only when a volume is started or the store is stopped. In between,
these lines let a start notice that a killed process had written more than the files now
contain, because they were replaced by earlier ones. Pure functions over bytes; the layout
is in docs/FORMAT.md.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from volcache.checksum import crc32c
from volcache.geometry import VOLUME_BYTES_MAX
from volcache.store.format import SEQ_MAX, TIME_END, VERSION

# Numbers have a fixed width: the line is overwritten in place, within one page.
_LINE: Final = re.compile(
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
        for found in _LINE.finditer(data)
        if crc32c(data[found.start() : found.start(7)]) == int(found[7], 16)
    }
    return sorted(filter(_is_in_bounds, lines), key=lambda one: one.seq, reverse=True)


def _is_in_bounds(line: Progress) -> bool:
    is_place = line.seq <= SEQ_MAX and line.end <= VOLUME_BYTES_MAX
    return is_place and line.time_us < TIME_END
