"""
`volcache import`: store the files of a tar archive in a mount point.

The keys are the names in the archive, or those that an `export` has written beside them,
with content types and lifetimes. Values are stored as by a PUT, with the same limits.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from volcache.cli.archive import ArchiveReader
from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    Line,
    command,
    output,
    silence_log,
)
from volcache.cli.sources import EntryReader, Outcome, Source, of_archive
from volcache.cli.streams import STANDARD, Interrupt, reading, source_name
from volcache.config import Sources, value_size_max, volume_size_least
from volcache.errors import (
    ConfigError,
    ForeignDirectoryError,
    MountPointError,
    ValueTooLargeError,
)
from volcache.http.upload import read_expiry, read_stored_headers
from volcache.keys import parse_key
from volcache.store import PeriodicSync, Store
from volcache.store.files import OsFileSystem, ReadOnlyFileSystem
from volcache.store.format import TIME_END, VOLUME_HEADER_BYTES
from volcache.store.offline import OfflineStore
from volcache.store.volume import NO_FILE
from volcache.text import counted, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from volcache.cli.archive import ArchivedValue
    from volcache.cli.sources import Entry
    from volcache.settings import Config

_SYNC_SECONDS: Final = 1.0
_VOLUMES_MIN: Final = 2


@dataclass(slots=True)
class Imported(Outcome):
    """The result of an import."""

    overflows: bool = False  # The volumes cannot hold all files.


def import_archive(
    directory: str,
    archive: ArchiveReader,
    *,
    config: Config,
    total: int | None,
    report: Callable[[str], None],
) -> Imported:
    """
    Store each file of an archive under its name.

    SIGINT ends it between two files, a second SIGINT at once; main thread only.

    Args:
        directory: The mount point; created if it does not exist.
        archive: Is read to its end.
        config: The volumes, and the limits of a PUT.
        total: The size of the archive, bytes; None: unknown.
        report: Called with one line for each of the first `LISTED_MAX` files that are
            left out, with warnings, and with a summary at the end.

    Raises:
        FileError: The archive cannot be read, is damaged or cut off.
        StoreError: The mount point cannot be used, is in use, or its disk is full.
            Files imported before stay stored, as after a `FileError`.
    """
    started = time.monotonic()
    entries = of_archive(archive)
    first = [*islice(entries, 1)]  # What is no archive creates no mount point.
    source = Source(chain(first, entries), total, lambda: archive.position)
    interrupt = Interrupt()
    with interrupt.handled():
        store = Store.open(
            directory,
            volume_size=config.volume_size,
            volume_num=config.volume_num or None,
            volume_size_least=volume_size_least(config),
            eviction=config.eviction,
            fs=OsFileSystem(),
        )
        work = _Import(store, config, report)
        try:
            with ExitStack() as parts:
                parts.callback(store.close)
                parts.callback(PeriodicSync(store, _SYNC_SECONDS).stop)
                work.run(source, interrupt)
        finally:
            seconds, evicted = time.monotonic() - started, store.stats.evicted_records
            more = f" overwritten: {counted(evicted, 'record')};" if evicted else ""
            done, fields = work.outcome, {"overwritten": evicted}
            report(summary_line(directory, done, more, seconds, **fields))
    return work.outcome


def summary_line(
    place: str, done: Outcome, more: str, seconds: float, **fields: object
) -> Line:
    """Return the last line: what was done with a source or a directory."""
    expired = f" expired: {done.expired};" if done.expired else ""
    text = (
        f"{place}: {counted(done.files, 'file', ',')}, {size(done.bytes)};"
        f" left out: {done.left_out};{expired}{more} {seconds:.1f} s"
        f"{'; interrupted' if done.interrupted else ''}"
    )
    what = "directory" if isinstance(done, Imported) else "source"
    numbers = {**asdict(done), **fields, "seconds": round(seconds, 3)}
    return Line(text, summary={what: place, **numbers})


class _Import(EntryReader):
    """The import of one archive into an open store."""

    def __init__(
        self, store: Store, config: Config, report: Callable[[str], None]
    ) -> None:
        self.outcome = Imported()
        super().__init__(self.outcome, report)
        self._store, self._config = store, config
        self._value_size = value_size_max(config)
        self._now_ms = time.time_ns() // 1_000_000
        # How far the clock of the store is ahead of that of the machine.
        self._lead_ms = max(0, store.clock.from_machine_ms(0))
        expires_ms = read_expiry(
            {}, self._now_ms, default_ttl=config.default_ttl, max_ttl=config.max_ttl
        )
        # Of values that no export has written; 0: never.
        self._expires_ms = expires_ms and store.clock.from_machine_ms(expires_ms)
        self._room = _Room(store)

    def run(self, source: Source, interrupt: Interrupt) -> None:
        """Store all files, or those before an interrupt."""
        self.read(source, "import", interrupt)
        self.report_hidden()
        if self.outcome.interrupted:
            self.report("interrupted: the files before are imported, the rest is not")

    def take(self, entry: Entry) -> None:
        """Store it."""
        if entry.size > self._value_size:
            raise ValueTooLargeError(size=entry.size, limit=self._value_size)
        value = entry.read()
        one = entry.known(value)
        name = entry.name if one is None else one.key
        key = parse_key(f"/{name.decode('latin-1')}", self._config.max_key_size)
        options: dict[str, Any] = {"expires_ms": self._expires_ms}
        if one is not None:
            if 0 < one.expires_ms <= self._now_ms:
                self.outcome.expired += 1
                return
            options = self._options(one)
        record = self._store.put(key, value, **options)
        self.outcome.files += 1
        self.outcome.bytes += len(value)
        if self._room.is_exceeded_by(record.size) and not self.outcome.overflows:
            self.outcome.overflows = True
            self.report(
                f"does not fit into {self._room}: the first files are overwritten"
            )

    def _options(self, one: ArchivedValue) -> dict[str, Any]:
        """Return what a value is stored with."""
        content_type, content_encoding, cache_control = read_stored_headers(
            {
                "CONTENT_TYPE": one.content_type.decode("latin-1"),
                "HTTP_CONTENT_ENCODING": one.content_encoding.decode("latin-1"),
                "HTTP_CACHE_CONTROL": one.cache_control.decode("latin-1"),
            }
        )
        expires_ms = one.expires_ms
        if self._config.max_ttl:
            latest_ms = self._now_ms + self._config.max_ttl * 1000
            expires_ms = min(expires_ms or latest_ms, latest_ms)
        return {
            "content_type": content_type,
            "content_encoding": content_encoding,
            "cache_control": cache_control,
            "expires_ms": expires_ms and min(expires_ms + self._lead_ms, TIME_END - 1),
            "flags": one.flags,
        }


class _Room:
    """Counts whether the volumes hold all that was stored since the beginning."""

    def __init__(self, store: Store) -> None:
        usage = store.usage()
        # With "frequency", one is always free for copies.
        self._volumes = usage.disk.volumes - (usage.eviction.policy == "frequency")
        self._size, self._end = usage.volume_size, usage.active_end
        self._rotations = 0

    def is_exceeded_by(self, length: int) -> bool:
        """Add a record; whether the first ones are overwritten."""
        if self._end + length > self._size:
            self._end = VOLUME_HEADER_BYTES
            self._rotations += 1
        self._end += length
        return self._rotations >= self._volumes

    def __str__(self) -> str:
        """Return what there is."""
        return f"{self._volumes} volumes of {size(self._size)}"


def existing_volumes(directory: str) -> dict[str, int]:
    """
    Return `volume_size` and `volume_num` of a mount point as its volumes have them.

    A value is missing if it cannot be determined, as for a directory that does not exist;
    opening the store reports the error. The size is that of the active volume.

    Raises:
        StoreError: The directory is in use, or was written by a newer volcache.
    """
    try:
        store = OfflineStore.inspect(ReadOnlyFileSystem(), directory)
    except (ForeignDirectoryError, MountPointError):
        return {}
    found = {}
    with store, suppress(OSError):  # There may be no folder `data`.
        active = store.volumes[-1]  # of ring main
        stat = store.directory.fs.stat
        size = 0 if active.fd == NO_FILE else stat(active.fd).st_size
        if size > VOLUME_HEADER_BYTES:
            found["volume_size"] = size
        number = max(store.directory.volume_ids(), default=0) + 1
        if number >= _VOLUMES_MIN:
            found["volume_num"] = number
    return found


def _run(arguments: argparse.Namespace) -> int:
    silence_log()
    name = arguments.archive
    if name == STANDARD and sys.stdin is not None and sys.stdin.isatty():
        raise ConfigError("an archive is not read from a terminal; give FILE or a pipe")
    with reading(name) as file, output(as_json=arguments.json) as report:
        existing = existing_volumes(arguments.directory)
        outcome = import_archive(
            arguments.directory,
            ArchiveReader(file, source_name(name)),
            config=Sources(arguments.config, os.environ).load(existing),
            total=None if name == STANDARD else os.fstat(file.fileno()).st_size,
            report=report,
        )
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if outcome.left_out or outcome.overflows else EXIT_OK


COMMAND: Final = command("import", _run)
