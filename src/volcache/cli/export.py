"""`volcache export`: the live values of a mount point as files of a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.cli.progress import above, in_words, progress
from volcache.errors import MountPointError
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.index_format import encode_key
from volcache.store.offline import OfflineStore
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.index import Index

_NO_NAMES: Final = {b"", b".", b".."}


def export(
    directory: str, target: str, now_ms: int, say: Callable[[str], None]
) -> bool:
    """
    Write each live value to the file its key names below `target`.

    Args:
        directory: That nobody serves; nothing in it is changed.
        target: A folder that is empty or not there yet, so that nothing in it can lead
            outside or be written over.
        now_ms: The time, which tells what has expired.
        say: Takes one line for each key without a file, and a last one.

    Returns:
        Whether every live value has its file.

    Raises:
        StoreError: The directory cannot be looked at, or `target` cannot be used.
    """
    store = OfflineStore.inspect(ReadOnlyFileSystem(), directory)
    files = size = left_out = 0
    try:
        _make_target(target)
        index = store.replay()
        with progress(index.count, "export", "files") as bar:
            for key, value in _values(store, index, now_ms):
                bar.update()
                why = value if isinstance(value, str) else _write(target, key, value)
                if why:
                    left_out += 1
                    above(bar, say)(f"left out {encode_key(key)}: {why}")
                else:
                    files += 1
                    size += len(value)
    finally:
        store.close()
    say(f"{target}: {counted(files, 'file')}, {in_words(size)}; left out: {left_out}")
    return not left_out


def _make_target(target: str) -> None:
    try:
        Path(target).mkdir(parents=True, exist_ok=True)
        is_empty = not any(Path(target).iterdir())
    except OSError as error:
        message = f"{target!r} cannot be used: {error.strerror}"
        raise MountPointError(message) from error
    if not is_empty:
        raise MountPointError(f"{target!r} is not empty; give a new or an empty folder")


def _values(
    store: OfflineStore, index: Index, now_ms: int
) -> Iterator[tuple[bytes, bytes | str]]:
    """Yield key and value in the order of the disk, or why there is no value."""
    for volume, reader, found in store.records():
        header = found.header
        if index.find(header.key) != (volume.seq, header.offset, header.size):
            continue
        if not found.intact:
            yield header.key, f"value checksum mismatch at {volume.id}/{header.offset}"
        elif not 0 < header.expires_ms <= now_ms:
            start = header.offset + header.value_start
            yield header.key, reader.read(start, header.length)


def _write(target: str, key: bytes, value: bytes) -> str:
    """Write a file; return why it cannot be, or nothing."""
    if b"\0" in key or _NO_NAMES & set(key.split(b"/")):
        return "is no path of a file"
    path = Path(target, os.fsdecode(key))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(value)
    except OSError as error:
        return f"{error.strerror}"
    return ""
