"""
Every exception volcache raises on purpose, one tree, sorted by whose fault it is.

A miss is `None`, never an exception. Each class carries its coordinates as fields and
words its own message, so that the edges (`web/responses.py`, `cli.py`) only choose a
status or an exit code. Knows nothing of HTTP, of files or of settings.
"""

from __future__ import annotations


class VolcacheError(Exception):
    """Root of the tree; never raised itself."""


class ConfigError(VolcacheError):
    """A setting is unknown, of the wrong type or out of range. Exit code 2."""


# --- What a client did -----------------------------------------------------------


class ClientError(VolcacheError):
    """A request asked for something that cannot be; nothing was changed."""


class BadKeyError(ClientError):
    """The path is not a key: empty, control bytes, reserved, or above the root."""


class KeyTooLongError(ClientError):
    """The key has more bytes than the instance takes."""

    def __init__(self, *, size: int, limit: int) -> None:
        """Say both numbers, in bytes."""
        super().__init__(f"key is {size} bytes long; allowed are 1 to {limit}")
        self.size = size
        self.limit = limit


class ValueTooLargeError(ClientError):
    """The value has more bytes than the instance takes."""

    def __init__(self, *, size: int, limit: int) -> None:
        """Say both numbers, in bytes."""
        super().__init__(f"value is {size} bytes long; allowed are 0 to {limit}")
        self.size = size
        self.limit = limit


# --- What a mount point or a disk did --------------------------------------------


class StoreError(VolcacheError):
    """Something about the mount point, not about the request."""


class MountPointError(StoreError):
    """The mount point cannot be created, read or written. The start ends."""


class ForeignDirectoryError(StoreError):
    """The directory holds files that are not volcache's. Nothing was touched."""


class StoreLockedError(StoreError):
    """Another process has the mount point open. Nothing was touched."""


class FormatVersionError(StoreError):
    """The mount point was written by a newer volcache. Nothing was touched."""


class DiskFullError(StoreError):
    """
    The disk has no room for the volume to be written next.

    Nothing was changed: what is stored stays readable.
    """

    def __init__(self, *, volume: int, needed: int, free: int) -> None:
        """Say both numbers, in bytes."""
        super().__init__(
            f"disk full: volume {volume} needs {needed} bytes, {free} are free"
        )
        self.volume = volume
        self.needed = needed
        self.free = free


class StoreIOError(StoreError):
    """
    The disk refused to write or to sync.

    What was to be stored is not acknowledged; the old value stays.
    """


class DamagedRecordError(StoreError):
    """
    The bytes at a position are not the record that was written there.

    Caught inside the store, where it becomes a miss and a count; tools show it.
    """

    def __init__(self, reason: str, volume: int, offset: int) -> None:
        """Say what is wrong and where, the offset in bytes."""
        super().__init__(f"damaged record: {reason} [volume {volume}, offset {offset}]")
        self.reason = reason
        self.volume = volume
        self.offset = offset


class StoreClosedError(StoreError):
    """The store was closed; a mistake of the caller."""


# --- What the surroundings did ---------------------------------------------------


class ListenError(VolcacheError):
    """The address cannot be listened on. Exit code 1."""


class InstanceError(VolcacheError):
    """An instance that was asked does not answer as it should. Exit code 1."""

    def __init__(self, url: str, reason: str) -> None:
        """Say which, and why."""
        super().__init__(f"{url}: {reason}")
