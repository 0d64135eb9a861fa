"""The contracts of the native core."""

from collections.abc import Iterable
from typing import Final, Self

from volcache.histogram import Histogram
from volcache.store import clock
from volcache.store.eviction import Rates, Thresholds
from volcache.store.files import FileSystem
from volcache.store.format import (
    NewRecord,
    RecordFields,
    RecordHeader,
    Ring,
    VolumeUse,
)
from volcache.store.index import (
    Disposition,
    Found,
    Gap,
    Loaded,
    PolicyStats,
    Position,
    Run,
    Step,
    Torn,
    Unreadable,
)
from volcache.store.volume import Volume

class Clock:
    """A `volcache.store.clock.Clock` of the machine; see there."""

    def now_us(self) -> int: ...
    def now_ms(self) -> int: ...
    def from_machine_ms(self, ms: int) -> int: ...
    def next_us(self) -> int: ...
    def advance_to(self, us: int) -> None: ...

class Index:
    """
    The in-memory index: key to position.

    A position is (sequence number of the volume, offset, size in bytes). The caller adds a
    volume, sets positions in it, and one day reclaims it. Reclaiming is constant work: the
    entries of that volume become stale. Each put removes some of them, so that no
    request has to remove a million.

    It keeps fingerprints instead of keys. Two keys with one fingerprint, which is one pair
    in 2^50, share an entry: the key set last has it. There is no list of the keys: read the
    volumes and look each key up.

    Invariants:
        - `find` returns the position set last, unless the key was deleted since.
        - `live(seq)` counts the entries in that volume; their sum over all volumes that
          are not reclaimed is `count`.

    Locking: any thread may call `find`, `is_stale`, `is_deleted`, `read`, `hit` and `miss`
    at any time; the thread that holds the lock of the store all others.
    """

    def __init__(
        self,
        fs: FileSystem,
        hash_key: bytes,
        *,
        volume_bytes: int,
        volumes: int,
        expected: int = 0,
    ) -> None:
        """
        Allocate an empty index.

        Args:
            fs: Reads the data files.
            hash_key: 16 bytes, secret.
            volume_bytes: No offset is higher; 2^24 to 2^40.
            volumes: That are live at a time; 1 to 65,536. The product of the two, each
                rounded up to a power of two, is at most 2^47.
            expected: The number of keys; 0 if not known.

        Raises:
            MemoryError: There is no memory, or the product is too large.
        """

    @property
    def lock(self) -> WriteLock:
        """The write lock."""

    @property
    def count(self) -> int:
        """The number of keys with a live position."""

    def live(self, seq: int) -> tuple[int, int]:
        """
        Return the number of live records of a volume and their size in bytes.

        Sizes are known to an eighth only; the sum is that of the middles.
        """

    def add_volume(self, seq: int) -> None:
        """Accept positions in a volume from now on."""

    def set_age(self, seq: int, ring: Ring, born: int, end: int) -> None:
        """
        Say in which ring a volume is, and how old its records are.

        Args:
            seq: Of the volume.
            ring: Its ring.
            born: The bytes that had been appended to the ring when it was started.
            end: Its end.
        """

    def bind_volume(
        self, seq: int, fd: int, volume: int, salts: Iterable[tuple[int, int]]
    ) -> None:
        """
        Say where the records of a volume are, for `read`.

        Args:
            seq: Of the volume.
            fd: Descriptor of its data file, open until `close`.
            volume: Its id.
            salts: From which offset on records have which salt; the first is 0.
        """

    def find(self, key: bytes) -> Position | None:
        """
        Return the position of a key, or None.

        It may be that of a record of another key, and a key may be missing because another
        one has its fingerprint. The size is a hint for the first read, at least that of the
        record; the header of the record is authoritative.
        """

    def is_stale(self, key: bytes) -> bool:
        """Return whether a key that has no position had one in a reclaimed volume."""

    def set(
        self, key: bytes, seq: int, offset: int, size: int, *, tombstone: bool = False
    ) -> None:
        """
        Set the position of a key; `add_volume(seq)` must have been called.

        That of a tombstone is not found: the entry stays until the volume is reclaimed,
        for `ring_for`.
        """

    def forget(self, key: bytes, seq: int, offset: int) -> bool:
        """
        Let a key have no position if this is its position; return whether it was.

        As that of a tombstone, the entry stays.
        """

    def is_deleted(self, key: bytes) -> bool:
        """Return whether a key has no position because of a tombstone."""

    # --- For the eviction policy, see eviction.py ---

    def set_policy(self, rates: Rates) -> None:
        """Count hits, misses and tokens from now on; before `set_age`."""

    def ring_for(self, key: bytes) -> Ring | None:
        """
        Return into which ring a value of this key has to be put; nothing is changed.

        None: the index has lost an entry, perhaps this one, see `accept_displaced`.
        """

    def accept_displaced(self) -> None:
        """Let `ring_for` answer again; a key without an entry belongs to ring M then."""

    def hit(self, key: bytes, stored_us: int) -> bool:
        """
        Count a read of a key whose value, of this time, came from elsewhere.

        Returns:
            Whether it had fewer than 3 hits.
        """

    def miss(self, key: bytes) -> None:
        """Remember that a key without an entry was asked for."""

    def policy_stats(self) -> PolicyStats:
        """Return what was counted."""

    def count_older(self, stored_us: int) -> None:
        """
        Count hits of records that were stored before a time, unless they had 3.

        Once they are copied they have fewer, so the hits of a record that is read all the
        time are counted about once per turn of the ring: as often a single ring would
        have missed it.
        """

    # --- What is purged is left out in `read` and in copies. All but `is_purged` and
    # `purge_count` need the lock. ---

    @property
    def purge_count(self) -> int:
        """How many there are."""

    def purges(self) -> list[tuple[int, int, bytes]]:
        """Return time, sequence number and prefix of each, as they were added."""

    def has_room_for_purge(self, prefix: bytes, count: int, size: int) -> bool:
        """
        Return whether at most `count` prefixes of `size` bytes are there with another one.

        Those that it covers are not counted: `sweep_purges` removes them.
        """

    def load_purges(self, purges: Iterable[tuple[int, int, bytes]]) -> None:
        """Add purges, as `purges` returns them, whatever their number."""

    def reserve_purge(self, prefix: bytes) -> None:
        """
        Have the memory for a prefix of 1 to 65,535 bytes; nothing is purged yet.

        Raises:
            MemoryError: There is none.
        """

    def add_purge(self, time_us: int, seq: int) -> None:
        """Purge the prefix that was reserved last, up to a time. Cannot fail."""

    def last_purge_below(self, seq: int) -> int:
        """Return the time of the last purge that `drop_purges` would drop; 0: none."""

    def drop_purges(self, seq: int) -> None:
        """Drop the first purges as long as their sequence number is lower."""

    def sweep_purges(self) -> None:
        """Drop the purges that a later one covers: linear in their number."""

    def is_purged(self, key: bytes, stored_us: int) -> bool:
        """Return whether a record is purged; for any thread."""

    def size_ghost(self, keys: int) -> None:
        """Have room in the ghost for about `keys` keys."""

    def reclaim(self, seq: int) -> tuple[int, int]:
        """
        Make all entries of a volume stale, in constant time.

        Returns:
            The number of live records lost by it, and their size in bytes.
        """

    def read(self, key: bytes) -> RecordFields | None:
        """
        Return the fields of the record of a key, read from the disk and checked.

        Returns:
            None if there is no intact record of the key, or if it is not known: then the
            caller reads it. It may have expired.
        """

    def set_putting(
        self, clock: clock.Clock, deferred_bytes: int, syncs: bool, writes: Histogram
    ) -> None:
        """
        Say how records are put.

        Args:
            clock: Has the times of records.
            deferred_bytes: Appended bytes after which a step of a reclaim is due.
            syncs: Return only when a record is on the disk.
            writes: Counts the time that the disk takes.
        """

    def set_volume(self, volume: Volume) -> int:
        """Let the records of the ring of a volume be put there; return the ring."""

    def put(
        self,
        key: bytes,
        value: bytes,
        content_type: bytes,
        content_encoding: bytes,
        cache_control: bytes,
        stored_us: int,
        expires_ms: int,
        flags: int,
        volume: Volume | None = None,
    ) -> RecordFields | None:
        """
        Append a record and set the position of its key; see `vc_core_put`.

        Args:
            key: And the others: as in `format.encode_record`.
            value: Of any length.
            content_type: At most 255 bytes.
            content_encoding: Likewise.
            cache_control: Likewise.
            stored_us: Microseconds since the epoch; 0: the next time of the clock.
            expires_ms: Milliseconds since the epoch; 0 = never.
            flags: 32 bits.
            volume: As for `set_volume`; it gets the record. None: the one of its ring.

        Returns:
            The fields of the record. None: nothing was written. With a volume, it has no
            room; otherwise it may be that, or something is due or has to be decided.

        Raises:
            SyncFailedError: The end of the volume has not moved; it must be retired.
            OSError: The end has not moved; the next record overwrites this one.
                Both are reported by `take_deferred`, too.
        """

    def group_commit(self, records: list[NewRecord]) -> list[bool]:
        """
        Put values with one sync or one write, as the front does.

        See `vc_core_group_commit` and `vc_core_put_many`.

        For tests. Content types and times stored are ignored.

        Args:
            records: At most 16.

        Returns:
            Which ones were put; `put` has to try the others.
        """

    def delete(
        self, key: bytes, now_ms: int, volume: Volume | None = None
    ) -> bool | None:
        """
        Delete a key; see `vc_core_delete`.

        Args:
            key: Of any length.
            now_ms: A value that has expired by then did not exist.
            volume: As for `put`; it gets the tombstone.

        Returns:
            Whether there was a value. None: nothing was done; with a volume, it has no
            room.

        Raises:
            OSError: As by `put`.
        """

    def change(
        self,
        key: bytes,
        value: bytes | None,
        content_type: bytes,
        content_encoding: bytes,
        cache_control: bytes,
        stored_us: int,
        expires_ms: int,
        flags: int,
        condition: tuple[int, int, int],
        now_ms: int,
    ) -> RecordFields | bool | None:
        """
        Put a value, or delete a key if that is None, on a condition; see `vc_core_change`.

        Args:
            key: And the others: as in `put`.
            value: Likewise.
            content_type: Likewise.
            content_encoding: Likewise.
            cache_control: Likewise.
            stored_us: Likewise.
            expires_ms: Likewise.
            flags: Likewise.
            condition: A number of `vc_if`, and the time stored and expiry that it means.
            now_ms: A value that has expired by then is none.

        Returns:
            The fields of the record, or whether there was a value to delete. False: the
            condition does not hold. None: nothing was done, as of `put`; or it is not
            known whether the condition holds.

        Raises:
            OSError: As by `put`; and the others.
        """

    def holds(
        self, key: bytes, condition: tuple[int, int, int], now_ms: int
    ) -> bool | None:
        """Return whether a condition holds, as in `change`; None: that is not known."""

    def value(self, key: str | bytes) -> bytes | bool | None:
        """
        Return the value of a key that is plainly allowed; None: it has none.

        False: it has to be read otherwise, to know or to count what there is. The read is
        counted for the eviction policy, but not in `StoreStats`; as in `put_value`.
        """

    def put_value(
        self, key: str | bytes, value: bytes, content_type: bytes
    ) -> str | None:
        """
        Put a value that does not expire, of a key that is plainly allowed.

        Returns:
            Its ETag; None: nothing was done, and it has to be put otherwise.
        """

    def block_writes(self, *, is_blocked: bool) -> None:
        """Let nothing be put or deleted without a volume as long as it is held."""

    @property
    def has_deferred(self) -> bool:
        """Whether no record is put without a volume before `take_deferred`."""

    def take_deferred(
        self,
    ) -> tuple[int, list[Volume], list[Volume], list[tuple[Volume, OSError]]]:
        """
        Return what is due after the last records.

        Returns:
            How many bytes were put, if a step of a reclaim is due; the volumes whose index
            file is; those that the disk has refused a record of; and of these, those that
            failed a sync of several, with its error: they must be retired.
        """

    def load(self, seq: int, fd: int, segments: Iterable[tuple[int, int]]) -> Loaded:
        """
        Set the positions that an index file has.

        Args:
            seq: Of the volume.
            fd: Of the index file, whose first line is right.
            segments: Of the volume, see `IndexContents`.

        Raises:
            OSError: The file cannot be read; some positions may have been set.
        """

    def end_load(self) -> None:
        """Free the memory that only loading needs."""

    def close(self) -> None:
        """Return when no thread reads; `read` finds nothing from now on."""

class WriteLock:
    """
    The write lock of the core, see `core.h`; a thread that has it may acquire it again.

    A thread that waits calls signal handlers once a second; what they raise ends it.
    """

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    @property
    def is_mine(self) -> bool:
        """Whether this thread has it."""

    def lend(self, to: int = 0) -> int:
        """Let this thread have it, or the one that had it before; see `vc_core_lend`."""

class SharedReader:
    """
    What the owner of a store shares with this process, see shared.h.

    Attributes:
        is_full: Whether the list of reads is full: `take` is to be called before the next.
    """

    is_full: bool

    def __init__(self, clock: Clock, fd: int, folder: str) -> None:
        """
        Map it.

        Args:
            clock: That of the owner, or not behind it.
            fd: What the owner has sent.
            folder: Of the data files.

        Raises:
            OSError: The folder cannot be used.
            MemoryError: It cannot be mapped.
        """

    def read(
        self, key: bytes, is_head: bool, counts: bool
    ) -> RecordFields | bool | None:
        """
        Read a record; for one thread at a time until it waits for the disk.

        Args:
            key: Of it.
            is_head: Leave its value empty.
            counts: Note it as a read, for the eviction policy.

        Returns:
            Its fields; None: there is none. False: the owner is to be asked. True: the
            owner has the store no more.
        """

    def value(self, key: str | bytes) -> bytes | bool | None:
        """Return the value of a key, as `Index.value`; False also if `is_full`."""

    def take(self) -> bytes:
        """Return the list of reads, which is empty then; see `vc_core_count_reads`."""

class Writer:
    """
    The end of a volume and the entries of records that its index file does not have.

    Attributes:
        fd: Descriptor of the data file, `NO_FILE` if it cannot be opened.
        end: Offset of the next record.
        synced_end: The records before it are on the disk.
        salt: Of the records that are appended.
        pending_max: So many entries are due to be written to the index file.
        index_checksum: Of the last block of the index file.
        is_indexed: Nothing but the entries kept belongs into its next block.
    """

    fd: int
    end: int
    synced_end: int
    salt: int
    pending_max: int
    index_checksum: int
    is_indexed: bool

    def __new__(cls, fs: FileSystem, fd: int, *, use: VolumeUse, **_: object) -> Self:
        """Write after the header of a volume; `capacity` is 0."""

    @property
    def capacity(self) -> int:
        """Records may be written up to this offset; 0 if none may."""

    @property
    def length(self) -> int:
        """The highest `capacity` it may get."""

    def set_room(self, length: int, capacity: int) -> None:
        """Set both."""

    @property
    def pending(self) -> int:
        """The number of entries that are kept."""

    @property
    def index_end(self) -> int:
        """Where the next block begins in the index file."""

    def set_index_file(self, fd: int, end: int) -> None:
        """Write blocks to an index file from now on; `end` is its length."""

    def append_block(self, lines: bytes, end: int, is_sealed: bool) -> None:
        """
        Append one block to the index file; see `index_format.close_block`.

        It survives a process crash when this returns, a power loss after a sync.

        Raises:
            OSError: The block is not valid; the next one overwrites it. Or the disk has
                refused what the core has written last.
        """

    @property
    def lines(self) -> bytes:
        """The entries that are kept, as lines of an index file."""

    def clear(self) -> None:
        """Keep no entries."""

    def add_entry(self, key: bytes, offset: int, size: int) -> None:
        """Keep an entry; offset and size are 0 for a deletion."""

class Reclaim:
    """
    The reclaim of one volume, step by step: what of it is used, and copies of that.

    First the index is searched for records of the volume with enough hits. Then these are
    looked at in the order of the volume: what the policy keeps is copied, one read and one
    write for each, to the active volume of ring main. A copy has the same value, type,
    flags, expiry and time stored; it is not a new version.

    What is not copied stays in the index, and can be read and replaced, until the log drops
    the volume as a whole.
    """

    def __init__(self, index: Index, seq: int, volume: int) -> None:
        """
        Begin; nothing is read.

        Args:
            index: Has the positions.
            seq: Of the volume, which is sealed.
            volume: Its id.
        """

    def collect(self, shares: int, thresholds: Thresholds) -> Disposition:
        """
        Search some of `SHARES` parts of the index, those that were not searched yet.

        Returns:
            How many records have not enough hits, and are dropped.
        """

    def step(
        self,
        end: int,
        copy_bytes: int,
        thresholds: Thresholds,
        target: Volume | None,
        now_ms: int,
    ) -> Step:
        """
        Look at the records found, as far as it goes without an error.

        Args:
            end: Stop at a record that begins here or later.
            copy_bytes: Stop after so many bytes were copied.
            thresholds: What is kept.
            target: Gets the copies; None: nothing more is copied.
            now_ms: A record that has expired by then is not copied.
        """

def decode_header(
    data: bytes, salt: int, volume: int, offset: int
) -> RecordHeader | None:
    """
    Check the part of a record before its value.

    Args:
        data: The bytes from its offset on, at least the part before the value.
        salt: Of its place.
        volume: The id; likewise.
        offset: Each record contains its offset, so a copy of one inside a value is not
            mistaken for a record.

    Returns:
        None if no intact one of that place is here.
    """

def read_lines(data: bytes, segments: Iterable[tuple[int, int]]) -> tuple[Loaded, bool]:
    """
    Find the valid part of an index file.

    Args:
        data: The file; its first line is right.
        segments: Of the volume.

    Returns:
        What it says, and whether the offsets of its entries grow.
    """

class Records:
    """
    The records of a volume in order, and what lies between them: an iterator.

    See scan.h. What a file system raises that is no `OSError` ends it: so reads can be
    paced, or cancelled.

    Attributes:
        at: The offset of what comes next; may be set.
        length: Nothing behind is read.
        unreadable: How many sectors cannot be read, and where the first one begins.
    """

    at: int
    @property
    def length(self) -> int: ...
    @property
    def unreadable(self) -> tuple[int, int]: ...
    def __init__(
        self,
        fs: FileSystem,
        volume: Volume,
        start: int,
        end: int = ...,
        window: int = ...,
        has_lost: bool = False,
        *,
        step: int = 0,
        index: Index | None = None,
        adds_entries: bool = False,
        has_values: bool = True,
        piece: int = ...,
    ) -> None:
        """
        Let another thread begin to read.

        Args:
            fs: Reads the data file.
            volume: Has the file, and its segments.
            start: Where a record may begin.
            end: Nothing is read from here on.
            window: So far behind what is no record another one is looked for.
            step: Intact records are passed together up to so many bytes, as a `Run`. 0:
                each comes by itself.
            index: Gets the positions of records that are passed together.
            adds_entries: The volume gets their entries.
            has_lost: A power loss may have taken what was not synced.
            has_values: Values are checked.
            piece: Bytes that are read at a time, at most 2**18.
        """

    def expect(self, lines: bytes, length: int) -> None:
        """
        Without `adds_entries`: pass only records together that have the next lines.

        Args:
            lines: The valid part of the index file.
            length: Nothing behind is read.
        """

    def skip_line(self) -> None:
        """Pass the next entry of these lines."""
    def has_more(self, offset: int) -> bool:
        """Return whether a record begins at most `window` bytes behind an offset."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Run | Found | Gap | Torn | Unreadable: ...

# For `volcache.front`: a capsule with the functions of the core.
functions: Final[object]
