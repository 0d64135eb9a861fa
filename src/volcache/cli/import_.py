"""
`volcache import`: the files of a folder as keys and values of a mount point.

What `export` has written comes back under the same keys. The store does the work, as it
does for a PUT, and with the same limits.

Ctrl-C for a tool that writes: noted, and acted upon where nothing is half done.

The volumes of a mount point as they are, for a tool that is to leave them so.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from volcache.cli.progress import above, in_words, progress
from volcache.cli.tree import read_value, unreadable, walk
from volcache.errors import (
    ClientError,
    ForeignDirectoryError,
    MountPointError,
    ValueTooLargeError,
)
from volcache.hot.versions import KeyVersions
from volcache.keys import parse_key
from volcache.store import PeriodicSync, Store
from volcache.store.directory import HOT
from volcache.store.files import OsFileSystem, ReadOnlyFileSystem
from volcache.store.format import RECORD_OVERHEAD_BYTES, VOLUME_HEADER_BYTES
from volcache.store.index_format import encode_key
from volcache.store.offline import OfflineStore
from volcache.store.volume import NO_FILE
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.cli.tree import Entry
    from volcache.store.files import FileSystem

# A line each for so many that are left out; the rest is counted.
LISTED_MAX: Final = 100
_SYNC_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the settings of those names say."""

    volume_size: int
    volume_num: int
    max_value_size: int
    max_key_size: int


@dataclass(slots=True)
class Outcome:
    """What has become of the files of a folder."""

    files: int = 0  # imported
    bytes: int = 0
    left_out: int = 0
    overflows: bool = False  # The cycle has come round to what was imported first.
    interrupted: bool = False


def import_folder(
    directory: str,
    source: str,
    *,
    limits: Limits,
    expires_ms: int,
    say: Callable[[str], None],
    fs: FileSystem | None = None,
) -> Outcome:
    """
    Store each file of a folder under its path below it.

    SIGINT ends it between two files, a second one at once; main thread only.

    Args:
        directory: The mount point, that nobody serves; made where there is none.
        source: The folder. Neither lies in the other.
        limits: Those of a PUT, and the volumes.
        expires_ms: When the values expire, in milliseconds since the epoch; 0 = never.
        say: Takes one line for each of the first `LISTED_MAX` files that are left out,
            for what else is to be known, and a last one with all figures.
        fs: The disk of the mount point.

    Raises:
        StoreError: The folder cannot be read; the mount point cannot be used, is in
            use, or has no more room. Files before that are in it.
    """
    folder = _folder(directory, source)
    started = time.monotonic()
    with interrupts_noted() as is_interrupted:
        store = Store.open(
            directory,
            volume_size=limits.volume_size,
            volume_num=limits.volume_num,
            fs=fs or OsFileSystem(),
        )
        work = _Import(store, folder, limits, say, is_interrupted)
        try:
            with ExitStack() as parts:
                parts.callback(store.close)
                parts.callback(PeriodicSync(store, _SYNC_SECONDS).stop)
                work.run(expires_ms)
        finally:
            seconds = time.monotonic() - started
            say(_summary(directory, work.outcome, store, seconds))
    return work.outcome


def _summary(directory: str, outcome: Outcome, store: Store, seconds: float) -> str:
    evicted = store.stats.evicted_records
    lost = counted(evicted, "record")
    return (
        f"{directory}: {counted(outcome.files, 'file')}, {in_words(outcome.bytes)};"
        f" left out: {outcome.left_out};"
        f"{f' overwritten by the cycle: {lost};' if evicted else ''}"
        f" {seconds:.1f} s{'; interrupted' if outcome.interrupted else ''}"
    )


def _folder(directory: str, source: str) -> bytes:
    """Return the path of the folder; look at it before a mount point is made."""
    try:
        os.scandir(source).close()
    except OSError as error:
        message = f"{source!r} cannot be used: {error.strerror}"
        raise MountPointError(message) from error
    # Or volumes would be imported into themselves.
    inner, outer = os.path.realpath(directory), os.path.realpath(source)
    if os.path.commonpath([inner, outer]) in {inner, outer}:
        message = f"one of {directory!r} and {source!r} lies in the other"
        raise MountPointError(message)
    return os.fsencode(source)


class _LeftOutError(Exception):
    """A file cannot be read, or is none; says why."""


class _Import:
    """One folder on its way into an open store."""

    def __init__(
        self,
        store: Store,
        folder: bytes,
        limits: Limits,
        say: Callable[[str], None],
        is_interrupted: Callable[[], bool],
    ) -> None:
        """Take what `import_folder` was given."""
        self._store = store
        self._folder = folder
        self._limits = limits
        self._say = say
        self._is_interrupted = is_interrupted
        self.outcome = Outcome()

    def run(self, expires_ms: int) -> None:
        """Store all files, or those before an interrupt."""
        total = self._measure()
        if not self._is_interrupted():
            self._give_up_copies()
        with progress(total, "import", "files") as bar:
            for entry in walk(self._folder):
                if self._is_interrupted():
                    self.outcome.interrupted = True
                    break
                try:
                    self._store_file(entry, expires_ms)
                except (_LeftOutError, ClientError) as error:
                    self._leave_out(entry, error, above(bar, self._say))
                bar.update()
        hidden = self.outcome.left_out - LISTED_MAX
        if hidden > 0:
            self._say(f"left out {hidden} more")
        if self.outcome.interrupted:
            self._say("interrupted: what was imported is kept, the rest is not in it")

    def _measure(self) -> int:
        """Count what is there, and say it if the cycle will overwrite the first of it."""
        usage = self._store.usage()
        total, end, rotations, needed = 0, usage.active_end, 0, 0
        with progress(None, "look", "files") as bar:
            for entry in walk(self._folder):
                if self._is_interrupted():
                    break
                bar.update()
                total += 1
                size = self._record_size(entry)
                needed += size
                if end + size > usage.volume_size:
                    end = VOLUME_HEADER_BYTES
                    rotations += 1
                end += size
        if rotations >= usage.volume_num:
            self.outcome.overflows = True
            self._say(
                f"does not fit: {in_words(needed)} into {usage.volume_num} volumes of"
                f" {in_words(usage.volume_size)}; the cycle overwrites the first files"
            )
        return total

    def _record_size(self, entry: Entry) -> int:
        """Return the bytes a file will take in a volume; 0: it is left out."""
        try:
            return RECORD_OVERHEAD_BYTES + len(self._key(entry)) + entry.size
        except (_LeftOutError, ClientError):
            return 0

    def _give_up_copies(self) -> None:
        """
        See to it that no copy in memcached is believed any more.

        One of a key that is imported would come back when the cycle has overwritten
        the value. So this comes before the first record is written.
        """
        journal = self._store.journal()
        try:
            if journal.read():
                names = KeyVersions(journal, store_id=self._store.store_id, boot_id="")
                names.begin()
        except OSError as error:
            message = f"{HOT} of the mount point cannot be used"
            raise MountPointError(f"{message}: {error.strerror or error}") from error
        finally:
            journal.close()

    def _key(self, entry: Entry) -> bytes:
        """
        Return the key a GET finds the file by.

        Raises:
            ClientError: There is none, or the file is too large.
            _LeftOutError: It is no file.
        """
        if entry.why:
            raise _LeftOutError(entry.why)
        size, limit = entry.size, self._limits.max_value_size
        if size > limit:
            raise ValueTooLargeError(size=size, limit=limit)
        return parse_key(f"/{entry.path.decode('latin-1')}", self._limits.max_key_size)

    def _store_file(self, entry: Entry, expires_ms: int) -> None:
        key = self._key(entry)
        try:
            value = read_value(entry.file, self._limits.max_value_size)
        except OSError as error:
            raise _LeftOutError(unreadable(error)) from error
        self._store.put(key, value, expires_ms=expires_ms)
        self.outcome.files += 1
        self.outcome.bytes += len(value)

    def _leave_out(
        self, entry: Entry, error: Exception, say: Callable[[str], None]
    ) -> None:
        self.outcome.left_out += 1
        if self.outcome.left_out <= LISTED_MAX:
            say(f"left out {encode_key(entry.path)}: {error}")


@contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """
    Let SIGINT only be noted, and give what tells whether it came; main thread only.

    A second one ends the process at once, as SIGKILL would: the disk may hang.
    """
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = signal.getsignal(signal.SIGINT)
    # Ignored, as for a background job of a script, it stays ignored.
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)


_VOLUMES_MIN: Final = 2


def present_volumes(directory: str) -> dict[str, int]:
    """
    Return `volume_size` and `volume_num` of a mount point as it is.

    Empty where there is none, and where they cannot be told: opening it says what is
    wrong. The size is that of the volume being written.

    Raises:
        StoreError: The directory is in use, or was written by a newer volcache.
    """
    try:
        store = OfflineStore.inspect(ReadOnlyFileSystem(), directory)
    except (ForeignDirectoryError, MountPointError):
        return {}
    found = {}
    try:
        active = store.volumes[-1]
        size = 0 if active.fd == NO_FILE else store.directory.fs.size(active.fd)
        if size > VOLUME_HEADER_BYTES:
            found["volume_size"] = size
        number = max(store.directory.volume_ids(), default=0) + 1
        if number >= _VOLUMES_MIN:
            found["volume_num"] = number
    except OSError:
        pass  # Without `data`, as after somebody has removed it.
    finally:
        store.close()
    return found
