"""
What the native core returns, and what its parts share with Python.

The core is described in `_core/_native.pyi`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.store.format import VOLUME_HEADER_BYTES

if TYPE_CHECKING:
    from volcache.errors import DamagedRecordError
    from volcache.store.format import RecordHeader

# Parts of the index that a reclaim searches one by one.
SHARES: Final = 64

Position = tuple[int, int, int]  # sequence number, offset, size


class Loaded(NamedTuple):
    """What `Index.load` found in an index file; that of whole valid blocks."""

    file_end: int = 0  # the valid part ends here
    volume_end: int = VOLUME_HEADER_BYTES  # the volume is indexed up to here
    is_sealed: bool = False
    checksum: int | None = None  # of the last valid checkpoint
    named: int = 0  # how many of the segments are named
    is_of_clone: bool = False  # a block of a copy of the volume follows
    entries: int = 0
    last_offset: int = 0  # of the last entry that is not a deletion; 0 = none


class Run(NamedTuple):
    """Intact records that `Records` has passed together."""

    end: int  # of the last one
    records: int
    latest_us: int  # the latest time stored, microseconds since the epoch


class Found(NamedTuple):
    """A record whose header is intact; `intact` is about its value."""

    header: RecordHeader
    intact: bool


class Gap(NamedTuple):
    """Bytes without a record, although there are records after them."""

    start: int
    end: int


class Torn(NamedTuple):
    """A record that was not completely written; nothing follows."""

    start: int


class Unreadable(NamedTuple):
    """Bytes that cannot be read where a record may be."""

    start: int
    end: int


class PolicyStats(NamedTuple):
    """What the index counts for the eviction policy."""

    tokens: float = 0.0
    ghost_hits: int = 0  # keys that were put after they were dropped from ring P
    older_hits: int = 0  # see `count_older`


class Disposition(NamedTuple):
    """
    What happened to the live records of volumes that were reclaimed.

    Numbers of records, except the second.
    """

    copied: int = 0
    copied_bytes: int = 0
    unused: int = 0  # too few hits
    unpaid: int = 0  # too few tokens
    expired: int = 0
    damaged: int = 0
    unreadable: int = 0
    left: int = 0  # not copied because copying was over
    purged: int = 0

    def plus(self, other: Disposition) -> Disposition:
        """Return the sum of both."""
        return Disposition(*(one + two for one, two in zip(self, other, strict=True)))


class Step(NamedTuple):
    """
    The result of one step.

    `why` it ended: "more" = as far as it was to go, "done" = all records found were looked
    at, "full" = the volume that gets the copies has no room for the next one; or the disk
    has refused to read or to write a record, or a record has failed a check: then `error`
    says why, and the record was passed.
    """

    why: Literal["more", "done", "full", "unreadable", "refused", "damaged"]
    disposition: Disposition
    error: OSError | DamagedRecordError | None = None
