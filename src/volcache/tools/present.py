"""The volumes of a mount point as they are, for a tool that is to leave them so."""

from __future__ import annotations

from typing import Final

from volcache.errors import ForeignDirectoryError, MountPointError
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.format import VOLUME_HEADER_BYTES
from volcache.store.offline import OfflineStore
from volcache.store.scan import NO_FILE

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
        head = store.volumes[-1]
        size = 0 if head.fd == NO_FILE else store.mount.fs.size(head.fd)
        if size > VOLUME_HEADER_BYTES:
            found["volume_size"] = size
        number = max(store.mount.volume_ids(), default=0) + 1
        if number >= _VOLUMES_MIN:
            found["volume_num"] = number
    except OSError:
        pass  # Without `data`, as after somebody has removed it.
    finally:
        store.close()
    return found
