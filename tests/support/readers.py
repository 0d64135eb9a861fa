"""
Read volumes and index files without the core, as format.py and scan.py define their bytes.

A start or a check that reads so is the oracle of one with the core.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from support.index_files import read
from volcache.store.files import FileSystem, read_range
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.index_file import IndexContents
from volcache.store.native import Index, Records
from volcache.store.replay import Replay
from volcache.store.scan import VolumeReader
from volcache.store.volume import Volume


def _load(self: IndexContents, index: Index, fs: FileSystem, fd: int) -> None:
    """Do what `IndexContents.replay` does."""
    self._data = read_range(fs, fd, 0, fs.stat(fd).st_size)
    seq = self._name.use.seq
    for entries in read(self):
        for key, offset, size in entries:
            if size:
                index.set(key, seq, offset, size)
            else:
                index.set(key, seq, VOLUME_HEADER_BYTES, 1, tombstone=True)


def _read_lines(self: IndexContents) -> tuple[bytes, bool]:
    """Do what `IndexContents.read_lines` does; the walk decodes what is in no order."""
    for _ in read(self):
        pass
    return self._data[: self.found.file_end], False


def _replay_nothing(
    _: Replay, _volume: Volume, _reader: VolumeReader, _records: Records, at: int
) -> int:
    """Leave all records to the scan."""
    return at


@contextmanager
def without_the_core() -> Iterator[None]:
    """Let files be read so meanwhile."""
    with (
        mock.patch.object(IndexContents, "replay", _load),
        mock.patch.object(IndexContents, "read_lines", _read_lines),
        mock.patch.object(Replay, "_replay_intact", _replay_nothing),
    ):
        yield
