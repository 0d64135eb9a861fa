"""
`volcache import`: store the files of a folder in a mount point.

The keys are the paths below the folder, so that the files of an `export` get their keys
back, and from its list their content types and lifetimes. Files are stored as by a PUT,
with the same limits.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from google_crc32c import value as crc32c

from volcache.cli.command import (
    COMPLETES,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    FILES,
    FOLDERS,
    Command,
    Line,
    add_json,
    completing,
    output,
    silence_log,
)
from volcache.cli.progress import above, progress
from volcache.cli.sidecar import NAME, LeftOutError, Sidecar
from volcache.cli.tree import cannot_be_read, read_regular_file, walk
from volcache.config import ENVIRONMENT_PREFIX, Sources
from volcache.errors import (
    ClientError,
    ForeignDirectoryError,
    MountPointError,
    ValueTooLargeError,
)
from volcache.http.upload import (
    read_expiry,
    read_stored_headers,
)
from volcache.keys import parse_key
from volcache.store import PeriodicSync, Store
from volcache.store.files import OsFileSystem, ReadOnlyFileSystem
from volcache.store.format import RECORD_OVERHEAD_BYTES, VOLUME_HEADER_BYTES
from volcache.store.index_format import encode_key
from volcache.store.offline import OfflineStore
from volcache.store.volume import NO_FILE
from volcache.text import counted, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from volcache.cli.sidecar import Exported
    from volcache.cli.tree import SourceFile
    from volcache.store.eviction import Eviction
    from volcache.store.files import FileSystem

LISTED_MAX: Final = 100  # Lines for files that are left out; the others are counted.
_SYNC_SECONDS: Final = 1.0
_VOLUMES_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    """The settings of the same names; sizes in bytes, times in seconds."""

    volume_size: int
    volume_num: int  # 0: as many as the disk holds
    max_value_size: int
    max_key_size: int
    max_ttl: int = 0
    eviction: Eviction = "frequency"


@dataclass(slots=True)
class Outcome:
    """The result of an import."""

    files: int = 0  # Imported.
    bytes: int = 0  # Of their values.
    left_out: int = 0
    expired: int = 0  # Their lifetimes have ended since the export.
    overflows: bool = False  # The volumes cannot hold all files.
    interrupted: bool = False


def import_folder(  # noqa: PLR0913 - One argument for each condition.
    directory: str,
    source: str,
    *,
    limits: ImportLimits,
    expires_ms: int,
    report: Callable[[str], None],
    now_ms: int = 0,
    fs: FileSystem | None = None,
) -> Outcome:
    """
    Store each file of a folder under its path relative to the folder.

    SIGINT ends it between two files, a second SIGINT at once; main thread only.

    Args:
        directory: The mount point; created if it does not exist.
        source: The folder. Neither contains the other.
        limits: The volumes, and the limits of a PUT.
        expires_ms: When values that no export has listed expire, milliseconds since
            1970; 0: never.
        report: Called with one line for each of the first `LISTED_MAX` files that are
            left out, with warnings, and with a summary at the end.
        now_ms: The time at which values count as expired, milliseconds since 1970.
        fs: The disk of the mount point; None: the real one.

    Raises:
        StoreError: The folder or its list of an export cannot be read; the mount point
            cannot be used, is in use, or its disk is full. Files imported before stay
            stored.
    """
    folder = _check_folder(directory, source)
    started = time.monotonic()
    with interrupt_flag() as is_interrupted, closing(Sidecar(source)) as sidecar:
        store = Store.open(
            directory,
            volume_size=limits.volume_size,
            volume_num=limits.volume_num or None,
            eviction=limits.eviction,
            fs=fs or OsFileSystem(),
        )
        times = _Times(
            expires_ms and store.clock.from_machine_ms(expires_ms),
            now_ms,
            max(0, store.clock.from_machine_ms(0)),
        )
        work = _Import(store, folder, sidecar, limits, times)
        try:
            with ExitStack() as parts:
                parts.callback(store.close)
                parts.callback(PeriodicSync(store, _SYNC_SECONDS).stop)
                work.run(report, is_interrupted)
        finally:
            seconds = time.monotonic() - started
            report(_summary(directory, work.outcome, store, seconds))
    return work.outcome


def _summary(directory: str, outcome: Outcome, store: Store, seconds: float) -> Line:
    evicted = store.stats.evicted_records
    overwritten = f" overwritten: {counted(evicted, 'record')};" if evicted else ""
    expired = f" expired: {outcome.expired};" if outcome.expired else ""
    text = (
        f"{directory}: {counted(outcome.files, 'file')}, {size(outcome.bytes)};"
        f" left out: {outcome.left_out};{expired}{overwritten}"
        f" {seconds:.1f} s{'; interrupted' if outcome.interrupted else ''}"
    )
    summary = {
        "directory": directory,
        **asdict(outcome),
        "overwritten": evicted,
        "seconds": round(seconds, 3),
    }
    return Line(text, summary=summary)


def _check_folder(directory: str, source: str) -> bytes:
    """Return the path of the folder; refuse it before a mount point is created."""
    try:
        os.scandir(source).close()
    except OSError as error:
        message = f"{source!r} cannot be used: {error.strerror}"
        raise MountPointError(message) from error
    # Otherwise volumes would be imported into themselves.
    inner, outer = os.path.realpath(directory), os.path.realpath(source)
    if os.path.commonpath([inner, outer]) in {inner, outer}:
        message = f"one of {directory!r} and {source!r} contains the other"
        raise MountPointError(message)
    return os.fsencode(source)


class _Times(NamedTuple):
    """When values expire; milliseconds since 1970."""

    default_ms: int  # Of values that no export has listed; 0: never.
    now_ms: int
    lead_ms: int  # How far the clock of the store is ahead of that of the machine.


class _Import:
    """The import of one folder into an open store."""

    def __init__(
        self,
        store: Store,
        folder: bytes,
        sidecar: Sidecar,
        limits: ImportLimits,
        times: _Times,
    ) -> None:
        self._store = store
        self._folder = folder
        self._sidecar = sidecar
        self._limits = limits
        self._times = times
        self.outcome = Outcome()

    def run(
        self, report: Callable[[str], None], is_interrupted: Callable[[], bool]
    ) -> None:
        """Store all files, or those before an interrupt."""
        total = self._measure(report, is_interrupted)
        with progress(total, "import", "files") as bar:
            report_above = above(bar, report)
            for file in self._files():
                if is_interrupted():
                    self.outcome.interrupted = True
                    break
                try:
                    self._store_file(file)
                except (LeftOutError, ClientError) as error:
                    self._leave_out(file.path, error, report_above)
                bar.update()
            else:
                for one in self._sidecar.rest():
                    missing = LeftOutError("its file is missing")
                    self._leave_out(one.key, missing, report_above)
        hidden = self.outcome.left_out - LISTED_MAX
        if hidden > 0:
            report(f"left out {hidden} more")
        if self.outcome.interrupted:
            report("interrupted: the files before are imported, the rest is not")

    def _files(self) -> Iterator[SourceFile]:
        """Yield all files but the list of an export that was read."""
        name = NAME.encode() if self._sidecar.exists else None
        return (file for file in walk(self._folder) if file.path != name)

    def _measure(
        self, report: Callable[[str], None], is_interrupted: Callable[[], bool]
    ) -> int:
        """Count the files, and warn if the volumes cannot hold all of them."""
        usage = self._store.usage()
        # With "frequency", one is always free for copies.
        volumes = usage.disk.volumes - (usage.eviction.policy == "frequency")
        total, end, rotations, needed = 0, usage.active_end, 0, 0
        with progress(None, "count", "files") as bar:
            for file in self._files():
                if is_interrupted():
                    break
                bar.update()
                total += 1
                record_size = self._record_size(file)
                needed += record_size
                if end + record_size > usage.volume_size:
                    end = VOLUME_HEADER_BYTES
                    rotations += 1
                end += record_size
        if rotations >= volumes:
            self.outcome.overflows = True
            report(
                f"does not fit: {size(needed)} into {volumes} volumes of"
                f" {size(usage.volume_size)}; the first files will be overwritten"
            )
        return total

    def _record_size(self, file: SourceFile) -> int:
        """Return the size of a file's record in a volume; 0: it is left out."""
        try:
            key = self._key(file)
        except (LeftOutError, ClientError):
            return 0
        length = RECORD_OVERHEAD_BYTES + len(key) + file.size
        if (one := self._sidecar.find(key)) is not None:
            length += len(one.content_type + one.content_encoding + one.cache_control)
        return length

    def _key(self, file: SourceFile) -> bytes:
        """
        Return the key of a file.

        Raises:
            ClientError: Its path is not a key, or it is too large.
            LeftOutError: It is not a regular file.
        """
        if file.why:
            raise LeftOutError(file.why)
        size, limit = file.size, self._limits.max_value_size
        if size > limit:
            raise ValueTooLargeError(size=size, limit=limit)
        return parse_key(f"/{file.path.decode('latin-1')}", self._limits.max_key_size)

    def _store_file(self, file: SourceFile) -> None:
        one = self._sidecar.take(file.path)  # First: it is not missing.
        key = self._key(file)
        try:
            value = read_regular_file(file.file, self._limits.max_value_size)
        except OSError as error:
            raise LeftOutError(cannot_be_read(error)) from error
        if one is None:
            self._store.put(key, value, expires_ms=self._times.default_ms)
        elif 0 < one.expires_ms <= self._times.now_ms:
            self.outcome.expired += 1
            return
        else:
            self._put_exported(key, value, one)
        self.outcome.files += 1
        self.outcome.bytes += len(value)

    def _put_exported(self, key: bytes, value: bytes, one: Exported) -> None:
        if (len(value), crc32c(value)) != (one.size, one.checksum):
            raise LeftOutError(f"is not what was exported: see {NAME}")
        content_type, content_encoding, cache_control = read_stored_headers(
            {
                "CONTENT_TYPE": one.content_type.decode("latin-1"),
                "HTTP_CONTENT_ENCODING": one.content_encoding.decode("latin-1"),
                "HTTP_CACHE_CONTROL": one.cache_control.decode("latin-1"),
            }
        )
        expires_ms = one.expires_ms
        if self._limits.max_ttl:
            latest_ms = self._times.now_ms + self._limits.max_ttl * 1000
            expires_ms = min(expires_ms or latest_ms, latest_ms)
        self._store.put(
            key,
            value,
            content_type=content_type,
            content_encoding=content_encoding,
            cache_control=cache_control,
            expires_ms=expires_ms and expires_ms + self._times.lead_ms,
            flags=one.flags,
        )

    def _leave_out(
        self, path: bytes, error: Exception, report: Callable[[str], None]
    ) -> None:
        self.outcome.left_out += 1
        if self.outcome.left_out <= LISTED_MAX:
            name = encode_key(path)
            text = f"left out {name}: {error}"
            report(Line(text, key=name, left_out=str(error)))


@contextmanager
def interrupt_flag() -> Iterator[Callable[[], bool]]:
    """
    Let SIGINT set a flag; yield a function that returns it. Main thread only.

    A second SIGINT ends the process at once, in case the disk hangs.
    """
    received: list[int] = []

    def on_interrupt(number: int, _: object) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = signal.getsignal(signal.SIGINT)
    # A background job of a script ignores SIGINT, and must continue to.
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, before)


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


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    directory = parser.add_argument(
        "directory",
        metavar="DIR",
        help="a mount point that no server is using; created if it does not exist",
    )
    source = parser.add_argument("source", metavar="SOURCE", help="a folder of files")
    config = parser.add_argument(
        "--config",
        type=Path,
        metavar="CONFIG",
        help="the server's TOML file of settings (default: none)",
    )
    completing(directory, FOLDERS)
    completing(source, FOLDERS)
    completing(config, FILES)
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    silence_log()
    existing = existing_volumes(arguments.directory)
    config = Sources(arguments.config, os.environ).load(existing)
    now_ms = time.time_ns() // 1_000_000
    with output(as_json=arguments.json) as report:
        outcome = import_folder(
            arguments.directory,
            arguments.source,
            limits=ImportLimits(
                volume_size=config.volume_size,
                volume_num=config.volume_num,
                eviction=config.eviction,
                max_value_size=config.max_value_size,
                max_key_size=config.max_key_size,
                max_ttl=config.max_ttl,
            ),
            expires_ms=read_expiry(
                {}, now_ms, default_ttl=config.default_ttl, max_ttl=config.max_ttl
            ),
            report=report,
            now_ms=now_ms,
        )
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if outcome.left_out or outcome.overflows else EXIT_OK


_EPILOG: Final = f"""\
Each file is stored under its path relative to SOURCE, as by a PUT; the value of a key that
exists is replaced. Files that a PUT would refuse, links and special files are left out and
listed. The limits are settings: give the command those of the server, in CONFIG or in the
environment. An existing mount point keeps its volumes unless volume_size or volume_num is
set. Ctrl-C ends the command between two files.
If "volcache export" wrote SOURCE, content types, encodings, cache directives, flags and
lifetimes are those in SOURCE/{NAME}, but no lifetime is longer than max_ttl. A
file that is not what was exported is left out; one that has expired is not stored. Other
files have no content type (it is guessed from the name), and expire after default_ttl.
{COMPLETES}

With --json, a line has "key" (percent-encoded) and "left_out" (why), or "note". The
summary has "directory", "files", "bytes" (of their values), "left_out" (how many),
"expired", "overflows", "interrupted", "overwritten" (records) and "seconds".

exit code: 0 every file is stored; 1 some were left out or overwritten, or DIR or SOURCE
  cannot be used; 2 a wrong argument or setting; 130 interrupted
examples:
  volcache import /srv/volcache/1234 /tmp/values
  {ENVIRONMENT_PREFIX}VOLUME_NUM=40 volcache import --config my.toml data /tmp/values
"""

COMMAND: Final = Command(
    name="import",
    text="Store the files of a folder in a mount point.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
