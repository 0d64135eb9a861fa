"""
One life of one volume: where it lies, how far it is written, what is not yet indexed.

Holds the descriptor of the data file, which it does not own: the descriptor outlives the
life and serves the next one. Knows nothing of keys in other volumes, nor of rotation.

Invariants:
    - The bytes from `VOLUME_HEADER_BYTES` to `end` are records of this life, one behind
      the other, but for what recovery has found damaged.
    - `end` never decreases.
    - Every record before `end` is in the index file or in `pending`.
    - What lies between `end` and `filled` means nothing and may be overwritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    VolumeHeader,
    encode_volume_header,
    name_life,
)
from volcache.store.lines import IndexName
from volcache.store.position import LIFE_SHIFT, pack_life

if TYPE_CHECKING:
    from volcache.store.files import FileSystem
    from volcache.store.index_file import IndexFile
    from volcache.store.lines import Meta


class Volume:
    """A volume in one generation."""

    __slots__ = (
        "base",
        "began_ms",
        "capacity",
        "end",
        "fd",
        "filled",
        "generation",
        "id",
        "identity",
        "index_file",
        "life",
        "name",
        "pending",
        "retired",
        "sealed",
        "store_id",
        "synced_end",
    )

    def __init__(self, *, fd: int, volume: int, generation: int, store_id: int) -> None:
        """Describe a life; nothing is read or written."""
        self.fd = fd
        self.id = volume
        self.generation = generation
        self.store_id = store_id
        self.life = pack_life(generation, volume)
        self.base = self.life << LIFE_SHIFT  # of every position in this life
        self.name = name_life(generation=generation, store_id=store_id, volume=volume)
        self.identity = self.name.identity
        self.end = VOLUME_HEADER_BYTES
        # How far whole pages were written: the system has them in memory, and need not
        # read them from the disk to take a record that covers a part of one.
        self.filled = 0
        self.synced_end = 0
        self.began_ms = 0  # Epoch, as its header says; 0 when that is not known.
        # How far it may be written: 0 until its room is allocated, and when retired.
        self.capacity = 0
        self.retired = False  # Not to be written any more, full or failed.
        self.sealed = False  # Its index file says that it is complete.
        self.index_file: IndexFile | None = None
        # Key, offset, size of the records that have no line in the index file yet.
        self.pending: list[tuple[bytes, int, int]] = []

    @property
    def index_name(self) -> IndexName:
        """The first line of its index file."""
        return IndexName(self.id, self.generation, self.store_id)

    def write_header(self, fs: FileSystem, meta: Meta, began_ms: int) -> None:
        """
        Begin the life on the disk: from here on older records do not exist.

        Raises:
            OSError: The header may be torn, which a boot mends from META.txt.
        """
        header = VolumeHeader(
            self.generation,
            self.store_id,
            self.id,
            meta.session,
            began_ms,
            meta.oldest_life,
        )
        data = encode_volume_header(header)
        if fs.pwritev(self.fd, [data], 0) != len(data):
            message = f"header of volume {self.id} was written in part"
            raise OSError(message)
        self.began_ms = began_ms

    def index(self, *, sealed: bool = False) -> None:
        """
        Write what is pending to the index file, as one block.

        Raises:
            OSError: Nothing was taken from `pending`.
        """
        if self.index_file is None:
            # It could not be made. The next start finds these records by scanning.
            self.pending = []
            return
        if self.pending or sealed:
            self.index_file.append(self.pending, self.end, sealed=sealed)
            self.pending = []

    def sync(self, fs: FileSystem) -> None:
        """
        Return when all records up to now, and the lines about them, are on the disk.

        May be called by another thread than the one that writes.

        Raises:
            OSError: Nothing is known of what was written since the last sync. The
                system may have dropped it, so it must not be tried again.
        """
        end = self.end
        if end != self.synced_end:
            fs.sync(self.fd)
            self.synced_end = end
        if self.index_file is not None:
            self.index_file.sync()
