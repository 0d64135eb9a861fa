"""
Compare everything in a mount point with what FORMAT.md says, without changing any of it.

Records are found by the scan that also a start uses. What the index file says of a volume
is held against them, so that each damaged record is named even where several lie side by
side. What a killed process leaves is no damage: it is told as a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache.store.cross_check import CrossCheck, Line, Whole, cross_check
from volcache.store.directory import DATA, INDEX, META
from volcache.store.format import VOLUME_HEADER_BYTES, encode_volume_header
from volcache.store.index_format import encode_key
from volcache.store.inventory import read_beginning, read_whole
from volcache.store.recovery import open_contents, tail_window
from volcache.store.scan import (
    NO_FILE,
    Found,
    Gap,
    Torn,
    VolumeReader,
    scan_records,
)
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.format import RecordHeader
    from volcache.store.index_file import IndexContents
    from volcache.store.offline import OfflineStore
    from volcache.store.volume import Volume

# A stored record is lost; what is said about records is wrong; a record was cut off that
# nobody was told is stored; and what else a kill leaves.
Kind = Literal["record", "file", "torn", "note"]
_STEP_BYTES: Final = 8 * 2**20  # between two reports of progress


class Finding(NamedTuple):
    """One thing that is not as it should be, or that is worth a word."""

    kind: Kind
    file: str
    offset: int
    what: str

    @property
    def is_damage(self) -> bool:
        """Whether something is lost or wrong."""
        return self.kind in {"record", "file"}


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    volumes: int = 0
    records: int = 0  # whole ones, tombstones included
    keys: int = 0  # that can be read, expired ones included
    bytes: int = 0


class Check:
    """One look at everything."""

    def __init__(
        self, store: OfflineStore, advance: Callable[[int], object] = lambda _: None
    ) -> None:
        """Prepare; `advance` is told how many bytes more were read."""
        self._store = store
        self._mount = store.mount
        self._advance = advance
        self._keys: set[bytes] = set()  # that can be read
        self.counts = Counts()

    def run(self) -> Iterator[Finding]:
        """Yield what is found; `counts` is right when it has come to its end."""
        store = self._store
        for problem in store.problems:
            yield Finding("file", *problem)
        yield from self._check_meta()
        for number, generation in store.stale_volumes:
            what = f"generation {generation} was reclaimed before a power loss"
            yield Finding("note", f"{DATA}/{number}", 0, what)
        for header in store.headers:
            yield from self._check_header(header)
        for volume in store.volumes:
            yield from _Volume(
                self, volume, is_active=volume is store.volumes[-1]
            ).run()
        self.counts.keys = len(self._keys)

    def _check_meta(self) -> Iterator[Finding]:
        store = self._store
        if store.meta_lost:
            yield Finding("file", META, 0, "is missing or does not check out")
            return
        newest = store.volumes[-1]
        if newest.seq != store.meta.active_seq:
            what = (
                f"names volume {store.meta.active} of generation"
                f" {store.meta.generation}, but there is volume {newest.id} of"
                f" generation {newest.generation}"
            )
            yield Finding("file", META, 0, what)

    def _check_header(self, number: int) -> Iterator[Finding]:
        header = self._store.headers[number]
        file = f"{DATA}/{number}"
        if header.store_id != self._store.meta.store_id:
            what = f"is of store {header.store_id:016x}, another one"
            yield Finding("file", file, 8, what)
            return
        fd = self._store.descriptor(number)
        if read_beginning(self._mount, fd, VOLUME_HEADER_BYTES) != (
            encode_volume_header(header)
        ):
            yield Finding("file", file, 52, "the end of the header is not zero")

    # --- What a life tells ---------------------------------------------------------

    def count_bytes(self, count: int) -> None:
        """Count bytes that were looked at."""
        self.counts.bytes += count
        self._advance(count)

    def count_whole(self, keys: list[bytes]) -> None:
        """Count whole records of values, and take them for the last of their keys."""
        self.counts.records += len(keys)
        self._keys.update(keys)

    def count_found(self, header: RecordHeader) -> None:
        """Count a whole record, and take it for the last of its key."""
        self.counts.records += 1
        if header.tombstone:
            self._keys.discard(header.key)
        else:
            self._keys.add(header.key)

    def count_lost(self, key: bytes) -> None:
        """Take it that a key is a miss: its last record is damaged."""
        self._keys.discard(key)


class _Volume:
    """One life, its volume held against its index file."""

    def __init__(self, check: Check, volume: Volume, *, is_active: bool) -> None:
        mount = check._mount  # noqa: SLF001 - Two halves of one thing.
        self._check = check
        self._mount = mount
        self._volume = volume
        self._is_head = is_active
        self._problems = check._store.problems  # noqa: SLF001
        self._data_file = f"{DATA}/{volume.id}"
        self._index_file = f"{INDEX}/{volume.id}"
        data = read_whole(mount, mount.index_path(volume.id))
        self._contents = open_contents(mount, volume, data)
        self._walk = CrossCheck(self._contents)
        self._without_line = 0
        self._reported = VOLUME_HEADER_BYTES

    def run(self) -> Iterator[Finding]:
        """Yield what is wrong with the volume, then with its index file."""
        volume, contents = self._volume, self._contents
        self._check.counts.volumes += volume.fd != NO_FILE
        header = self._check._store.headers.get(volume.id)  # noqa: SLF001
        if header is not None and header.generation < volume.generation:
            yield self._data("note", 0, "was to begin anew when the process died")
        yield from self._indexed()
        if not contents.sealed and volume.fd != NO_FILE:
            yield from self._tail()
        yield from self._file(contents)

    def _data(self, kind: Kind, offset: int, what: str) -> Finding:
        return Finding(kind, self._data_file, offset, what)

    def _progress(self, offset: int, *, force: bool = False) -> None:
        step = offset - self._reported
        if step >= _STEP_BYTES or (force and step > 0):
            self._check.count_bytes(step)
            self._reported = offset

    # --- The part that has lines ---------------------------------------------------

    def _indexed(self) -> Iterator[Finding]:
        """Look at the records up to where the volume is indexed."""
        reader = VolumeReader(self._mount.fs, self._volume, self._walk.end)
        for event in cross_check(self._walk, reader):
            if isinstance(event, Whole):
                self._check.count_whole([key for key, _, _ in event.lines])
                self._progress(event.end)
            elif isinstance(event, Found):
                yield from self._record(event)
            elif isinstance(event, Line):
                self._check.count_lost(event.key)
                yield self._lost(
                    event.offset, event.size, event.key, "is not there whole"
                )
            elif isinstance(event, Gap):
                yield self._gap(event.start, event.end)
            else:
                yield self._index("file", 0, event.what)
        self._progress(reader.length, force=True)
        yield from self._unreadable(reader)

    def _record(self, found: Found) -> Iterator[Finding]:
        header = found.header
        if found.intact:
            self._check.count_found(header)
            return
        self._check.count_lost(header.key)
        yield self._lost(
            header.offset, header.size, header.key, "its value does not check out"
        )

    def _lost(self, offset: int, size: int, key: bytes, why: str) -> Finding:
        what = f"{encode_key(key)}, {size} bytes: {why}"
        return self._data("record", offset, what)

    def _gap(self, start: int, end: int) -> Finding:
        what = f"{end - start} bytes up to {end} are no record"
        return self._data("record", start, what)

    def _unreadable(self, reader: VolumeReader) -> Iterator[Finding]:
        if reader.unreadable_sectors:
            what = f"{counted(reader.unreadable_sectors, 'sector')} cannot be read"
            yield self._data("file", 0, what)

    # --- The part behind it --------------------------------------------------------

    def _tail(self) -> Iterator[Finding]:
        """Look at what lies behind the last line, as a start does."""
        reader = VolumeReader(self._mount.fs, self._volume)
        window = tail_window(self._contents, is_active=self._is_head)
        for event in scan_records(reader, self._contents.volume_end, window):
            if isinstance(event, Found):
                self._without_line += 1
                yield from self._record(event)
                self._progress(event.header.offset)
            elif isinstance(event, Gap):
                yield self._gap(event.start, event.end)
            elif isinstance(event, Torn):
                yield self._data("torn", event.start, "a record was being written")
        self._progress(reader.length, force=True)
        yield from self._unreadable(reader)

    # --- The index file itself -----------------------------------------------------

    def _file(self, contents: IndexContents) -> Iterator[Finding]:
        if any(problem.file == self._index_file for problem in self._problems):
            return  # It is no file, as was said.
        if not contents.length:
            lost = self._without_line or not self._is_head
            yield self._index("file" if lost else "note", 0, "is missing")
        elif not contents.is_ours:
            what = "its first block is not one of this life, or does not check out"
            yield self._index("file", 0, what)
        elif not contents.is_whole or (
            contents.sealed and contents.length > contents.file_end
        ):
            what = "what follows does not check out"
            yield self._index("file", contents.file_end, what)
        elif not contents.sealed and not self._is_head:
            what = f"is not sealed; {_have_no_line(self._without_line)}"
            yield self._index("file", contents.file_end, what)
        elif self._without_line or contents.length > contents.file_end:
            what = f"{_have_no_line(self._without_line)} yet, as after a kill"
            yield self._index("note", contents.file_end, what)

    def _index(self, kind: Kind, offset: int, what: str) -> Finding:
        return Finding(kind, self._index_file, offset, what)


def _have_no_line(records: int) -> str:
    return f"{counted(records, 'record')} {'has' if records == 1 else 'have'} no line"
