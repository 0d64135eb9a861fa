"""
All exceptions that volcache raises deliberately, in one tree, grouped by cause.

A miss is `None`, not an exception. An error has its coordinates as fields and its message
is complete, so that the edges (`http/responses.py`, `cli/main.py`) only map its class to
a status or an exit code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILES_MAX: Final = 8  # that the text of an error names


class VolcacheError(Exception):
    """Root of the tree; only subclasses are raised."""


class ConfigError(VolcacheError):
    """A setting is unknown, of the wrong type or out of range. Exit code 2."""


# --- Caused by a client ----------------------------------------------------------


class ClientError(VolcacheError):
    """The request is invalid; nothing was changed."""


class BadKeyError(ClientError):
    """The path is not a key: empty, control bytes, reserved, or above the root."""


class KeyTooLongError(ClientError):
    """The key is longer than `max_key_size`."""

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(f"key is {size} bytes long; allowed are 1 to {limit}")
        self.size = size
        self.limit = limit


class BadQueryError(ClientError):
    """A parameter is unknown, repeated or not clear, or is a prefix that no key has."""


class ValueTooLargeError(ClientError):
    """The value is longer than `max_value_size`, or than a volume."""

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(f"value is {size} bytes long; allowed are 0 to {limit}")
        self.size = size
        self.limit = limit


# --- Caused by the mount point or its disk ---------------------------------------


class StoreError(VolcacheError):
    """The mount point or its disk failed."""


class MountPointError(StoreError):
    """The mount point cannot be created, read or written. The start fails."""


class ForeignDirectoryError(StoreError):
    """The directory contains foreign files. Nothing was changed."""


class StoreLockedError(StoreError):
    """Another process has the mount point open. Nothing was changed."""


class MismatchedFilesError(StoreError):
    """Files of the mount point do not belong together. Nothing was changed."""

    def __init__(self, root: str, files: Iterable[str]) -> None:
        names = list(dict.fromkeys(files))
        more = len(names) - _FILES_MAX
        shown = ", ".join(names[:_FILES_MAX]) + (
            f" and {more} more" if more > 0 else ""
        )
        super().__init__(
            f"mount point {root!r}: files do not belong together: {shown}. Nothing was"
            f' changed. "volcache check {root}" says what is wrong with each. Put back the'
            f' right files, or run "volcache repair {root}" to go on without what does not'
            " match"
        )


class UnreadableVolumeError(StoreError):
    """
    The disk cannot be read where records without an index entry may be.

    The start fails, nothing was changed. To serve the other records would expose values
    that these records have replaced.
    """

    def __init__(self, root: str, volume: int, start: int, end: int) -> None:
        super().__init__(
            f"mount point {root!r}: data/{volume} cannot be read from offset {start} to"
            f" {end}, where values may be that are in no index file yet; start again"
            " when the disk can be read. If it cannot be repaired, give another"
            " mount_point, or remove the files in this one to begin with an empty cache"
        )
        self.volume = volume
        self.start = start
        self.end = end


class UnreadableRecordError(StoreError):
    """The disk refuses to read a record: it is unknown whether its key has a value."""


class FormatVersionError(StoreError):
    """The mount point has another format version. Nothing was changed."""


class DiskFullError(StoreError):
    """The disk has no space for the next volume. Nothing was changed."""

    def __init__(self, *, volume: int, needed: int, free: int) -> None:
        super().__init__(
            f"disk full: volume {volume} needs {needed} bytes, {free} are free"
        )
        self.volume = volume
        self.needed = needed
        self.free = free


class DiskTooSmallError(MountPointError):
    """The disk does not hold two volumes. The start fails; nothing was stored."""

    def __init__(
        self, root: str, *, volume_size: int, holds: int, advised: int
    ) -> None:
        remedy = "give a mount_point on a larger disk"
        if advised:
            remedy = f"set volume_size = {advised} or less, or {remedy}"
        super().__init__(
            f"mount point {root!r}: its disk has room for {holds} bytes, and two volumes"
            f" of volume_size = {volume_size} take {2 * volume_size}; {remedy}"
        )


class TooFewDescriptorsError(MountPointError):
    """This process may not have enough open files. The start fails; nothing was changed."""

    def __init__(self, root: str, *, limit: int, volumes: int = 0) -> None:
        what = "it has too many open files"
        if volumes:
            what = f"{volumes} volumes need as many open files, besides connections"
        super().__init__(
            f"mount point {root!r} cannot be opened: {what}, and this process may have"
            f" {limit}; raise LimitNOFILE= of the systemd unit, or ulimit -n, or have"
            " fewer and larger volumes"
        )


class GeometryError(MountPointError):
    """There are too many volumes, or too long ones. The start fails."""

    def __init__(
        self, volume_bytes: int, volumes: int, most: int, longest: int
    ) -> None:
        allowed = f"allowed are at most {most} of this length"
        if not most:
            allowed = f"allowed are volumes of at most {longest} bytes"
        super().__init__(
            f"{volumes} volumes of up to {volume_bytes} bytes are not allowed; {allowed}"
        )


class StoreIOError(StoreError):
    """A write or sync failed. The write is not acknowledged; the old value stays."""


class ReadOnlyError(StoreIOError):
    """Nothing can be written: see `Store.open` and `Rings.completing`."""


class OutOfMemoryError(StoreIOError, MemoryError):
    """There is no memory for a write. Nothing was written; the old value stays."""


class TooManyPurgesError(ClientError):
    """The list of purges is full. Nothing was changed."""

    def __init__(self, entries: int, size: int) -> None:
        super().__init__(
            f"the list of purges is full: allowed are {entries} entries, and {size} bytes"
            " of prefixes, and none can be dropped before the volumes that existed at its"
            " time were reclaimed; purge a shorter prefix, which replaces all entries that"
            " begin with it, or flush"
        )


class DamagedRecordError(StoreError):
    """
    The bytes at a position are not the record that was written there.

    The store handles it: the read is a miss and is counted. Tools report it.
    """

    def __init__(self, reason: str, volume: int, offset: int) -> None:
        super().__init__(f"damaged record: {reason} [volume {volume}, offset {offset}]")
        self.reason = reason
        self.volume = volume
        self.offset = offset


# --- Caused by the environment ---------------------------------------------------


class CoreMissingError(VolcacheError, ImportError):
    """The native core was not built. Exit code 1."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the native core of volcache is missing: {reason}; install a C compiler and"
            " headers (on Debian: gcc, libc6-dev, libev-dev, python3-dev), then run: pip"
            " install --force-reinstall --no-cache-dir volcache (in a checkout:"
            " tools/setup.sh run)"
        )


class ListenError(VolcacheError):
    """The address cannot be listened on. Exit code 1."""


class FolderError(VolcacheError):
    """A folder that a tool writes cannot be used. Exit code 1."""


class InstanceError(VolcacheError):
    """A running instance does not answer, or not as expected. Exit code 1."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason
