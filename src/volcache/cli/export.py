"""`volcache export`: write the live values of a mount point to a tar archive."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from volcache.cli.archive import LeftOutError, write_end, write_value
from volcache.cli.command import Line, offline_command
from volcache.cli.progress import above, progress
from volcache.cli.streams import STANDARD, exit_on_sigterm, writing
from volcache.errors import ConfigError, DamagedRecordError
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.index_format import encode_key
from volcache.store.native import decode_record
from volcache.store.offline import OfflineStore
from volcache.store.volume_check import Missing
from volcache.text import counted, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import IO

    from volcache.store.files import FileSystem
    from volcache.store.format import Record, RecordHeader
    from volcache.store.volume import Volume


def export(
    store: OfflineStore, file: IO[bytes], now_ms: int, report: Callable[[str], None]
) -> dict[str, int]:
    """
    Write each live value and the end of the archive.

    Args:
        store: Nothing in it is changed.
        file: Gets the archive.
        now_ms: The time at which records count as expired, milliseconds since 1970.
        report: Called with one line for each value that is left out.

    Returns:
        How many values and bytes were written, and how many values were left out.

    Raises:
        StoreError: The mount point cannot be read.
        OSError: The file cannot be written.
    """
    counts = {"files": 0, "bytes": 0, "left_out": 0}
    index = store.replay()
    with progress(index.count, "export", "files") as bar:
        for volume, found, is_current in store.records(index):
            if not is_current:
                continue
            place = found if isinstance(found, Missing) else found.header
            bar.update()
            try:
                record = _read(store.directory.fs, volume, place)
            except LeftOutError as error:
                counts["left_out"] += 1
                name = encode_key(place.key)
                text = f"left out {name}: {error}"
                above(bar, report)(Line(text, key=name, left_out=str(error)))
                continue
            is_expired = 0 < record.expires_ms <= now_ms
            if not is_expired and not index.is_purged(place.key, record.stored_us):
                write_value(file, place.key, record)
                counts["files"] += 1
                counts["bytes"] += len(record.value)
    write_end(file)
    return counts


def _read(fs: FileSystem, volume: Volume, place: Missing | RecordHeader) -> Record:
    offset = place.offset
    try:
        data = fs.pread(volume.fd, place.size, offset)
        record = decode_record(data, volume.place_at(offset), place.key)
    except DamagedRecordError as error:
        raise LeftOutError(str(error)) from error
    except OSError as error:
        raise LeftOutError(f"cannot be read: {error.strerror}") from error
    if record is None:
        raise LeftOutError("the index entry names the record of another key")
    return record


def _run(arguments: argparse.Namespace, report: Callable[[str], None]) -> bool:
    directory, archive = arguments.directory, arguments.archive
    if archive == STANDARD and sys.stdout.isatty():
        raise ConfigError(
            "an archive is not written to a terminal; give FILE or a pipe"
        )
    with (
        exit_on_sigterm(),
        OfflineStore.inspect(ReadOnlyFileSystem(), directory) as store,
        writing(archive) as file,
    ):
        counts = export(store, file, time.time_ns() // 1_000_000, report)
    files, total, left_out = counts.values()
    text = f"{archive}: {counted(files, 'file')}, {size(total)}; left out: {left_out}"
    summary = {"directory": directory, "archive": archive, **counts}
    report(Line(text, summary=summary))
    return not left_out


COMMAND: Final = offline_command(
    "export", _run, lambda arguments: arguments.archive == STANDARD
)
