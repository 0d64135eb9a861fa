"""`volcache export`: write the live values of a mount point to files of a folder."""

from __future__ import annotations

import os
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.cli.command import COMPLETES, FOLDERS, Line, completing, offline_command
from volcache.cli.progress import above, progress
from volcache.cli.sidecar import FOLDER, NAME, LeftOutError, SidecarWriter
from volcache.errors import DamagedRecordError, MountPointError
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.format import decode_record
from volcache.store.index_format import encode_key
from volcache.store.offline import OfflineStore
from volcache.store.walk import Missing
from volcache.text import counted, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from volcache.store.files import FileSystem
    from volcache.store.format import Record, RecordHeader
    from volcache.store.volume import Volume

# Parts of a path that are not a file name: they would lead outside of the folder.
_RESERVED: Final = {b"", b".", b".."}


def export(
    directory: str, target: str, now_ms: int, report: Callable[[str], None]
) -> bool:
    """
    Write each live value to the file below `target` that its key names, and the list.

    Args:
        directory: The mount point; nothing in it is changed.
        target: A folder that is empty or does not exist, so that no link in it leads
            outside and no file is overwritten.
        now_ms: The time at which records count as expired, milliseconds since 1970.
        report: Called with one line for each key without a file, and with a summary.

    Returns:
        Whether every live value has its file.

    Raises:
        StoreError: The directory cannot be read, or `target` cannot be used.
    """
    files = total = left_out = 0
    with OfflineStore.inspect(ReadOnlyFileSystem(), directory) as store:
        _make_target(target)
        index, purges = store.replay(), store.inventory.purges.purges
        with (
            _list(target, store.inventory.manifest.store_id, now_ms) as sidecar,
            progress(index.count, "export", "files") as bar,
        ):
            for volume, found, is_current in store.records(index):
                if not is_current:
                    continue
                place = found if isinstance(found, Missing) else found.header
                bar.update()
                try:
                    record = _read(store.directory.fs, volume, place)
                    if 0 < record.expires_ms <= now_ms or purges.covers(
                        place.key, record.stored_us
                    ):
                        continue
                    _write(target, place.key, record.value)
                except LeftOutError as error:
                    left_out += 1
                    above(bar, report)(_left_out(place.key, error))
                else:
                    sidecar.add(place.key, record)
                    files += 1
                    total += len(record.value)
    text = f"{target}: {counted(files, 'file')}, {size(total)}; left out: {left_out}"
    summary = {
        "directory": directory,
        "target": target,
        "files": files,
        "bytes": total,
        "left_out": left_out,
    }
    report(Line(text, summary=summary))
    return not left_out


def _left_out(key: bytes, error: Exception) -> Line:
    name = encode_key(key)
    return Line(f"left out {name}: {error}", key=name, left_out=str(error))


@contextmanager
def _list(target: str, store_id: int, now_ms: int) -> Iterator[SidecarWriter]:
    """Yield the list, and complete it at the end unless there was an error."""
    try:
        with closing(SidecarWriter(target, store_id, now_ms)) as sidecar:
            yield sidecar
            sidecar.finish()
    except OSError as error:
        message = f"'{target}/{NAME}' cannot be written: {error.strerror or error}"
        raise MountPointError(message) from error


def _make_target(target: str) -> None:
    try:
        Path(target).mkdir(parents=True, exist_ok=True)
        is_empty = not any(Path(target).iterdir())
    except OSError as error:
        message = f"{target!r} cannot be used: {error.strerror}"
        raise MountPointError(message) from error
    if not is_empty:
        raise MountPointError(f"{target!r} is not empty; give a new or an empty folder")


def _read(fs: FileSystem, volume: Volume, place: Missing | RecordHeader) -> Record:
    offset = place.offset
    try:
        data = fs.pread(volume.fd, place.size, offset)
        record = decode_record(data, volume.identity_at(offset), offset, place.key)
    except DamagedRecordError as error:
        raise LeftOutError(str(error)) from error
    except OSError as error:
        raise LeftOutError(f"cannot be read: {error.strerror}") from error
    if record is None:
        raise LeftOutError("the index entry names the record of another key")
    return record


def _write(target: str, key: bytes, value: bytes) -> None:
    parts = key.split(b"/")
    if b"\0" in key or _RESERVED & set(parts):
        raise LeftOutError("is not the path of a file")
    if parts[0] == FOLDER.encode():
        raise LeftOutError(f"the name {FOLDER!r} is that of the folder of the list")
    path = Path(target, os.fsdecode(key))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(value)
    except OSError as error:
        raise LeftOutError(f"cannot be written: {error.strerror}") from error


def _add_target(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument(
        "target", metavar="TARGET", help="an empty folder; created if it does not exist"
    )
    completing(target, FOLDERS)


def _run(arguments: argparse.Namespace, report: Callable[[str], None]) -> bool:
    now_ms = time.time_ns() // 1_000_000
    return export(arguments.directory, arguments.target, now_ms, report)


_EPILOG: Final = f"""\
The file of a key is the key as a path below TARGET. A key that is not a valid path (".."
or an empty part, too long, a file that is also a folder) and a damaged value are left out
and listed. The last line is a summary.
TARGET/{NAME} has content types, encodings, cache directives, flags, lifetimes and
checksums of the values, for "volcache import". Keep it with the files. It is written last:
an export that was interrupted has none, and is not imported.
{COMPLETES}

With --json, a line has "key" (percent-encoded) and "left_out" (why). The summary has
"directory", "target", "files", "bytes" (of their values) and "left_out" (how many).

exit code: 0 every value has its file; 1 some were left out, or DIR or TARGET cannot be used
example: volcache export /srv/volcache/1234 /tmp/values
"""

COMMAND: Final = offline_command(
    "export",
    "Write the live values of a mount point to files.",
    _EPILOG,
    _run,
    _add_target,
)
