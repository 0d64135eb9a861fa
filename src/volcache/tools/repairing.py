"""
`volcache repair`: make index files and META.txt anew from the volumes.

Good lines of an index file stay, for they know keys of records whose headers are damaged;
what is behind them is found as a start finds it. Volumes are only read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.store.files import replace_file
from volcache.store.index import Index
from volcache.store.lines import encode_block, encode_index_header
from volcache.store.load import Loader
from volcache.store.mount_point import INDEX, META, MountPoint, unusable
from volcache.store.offline import OfflineStore
from volcache.store.report import RecoveryReport
from volcache.store.scan import NO_FILE
from volcache.store.survey import read_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store.files import FileSystem
    from volcache.store.volume import Volume

_LEFT_OVER: Final = ".new"


def repair(directory: str, fs: FileSystem, say: Callable[[str], None]) -> None:
    """
    Complete or replace what is wrong with index files and META.txt.

    Each file is replaced in one step, so that a repair that is cut short leaves nothing
    worse, and can be begun again.

    Args:
        directory: That nobody serves.
        fs: The disk.
        say: Takes one line for each file that was written, and a last one.

    Raises:
        StoreError: The directory cannot be written, is in use, or no store's.
    """
    # First without making anything: an empty directory is not to become a store.
    MountPoint.inspect(fs, directory).close()
    mount = MountPoint.open(fs, directory)
    try:
        store = OfflineStore(mount)
        try:
            written = _repair(store, say)
        finally:
            store.close()
    except OSError as error:
        raise unusable(directory, error) from error
    say(f"{directory}: {len(store.volumes)} volumes, {written} files written")


def _repair(store: OfflineStore, say: Callable[[str], None]) -> int:
    mount = store.mount
    for name in mount.fs.names(mount.index):
        if name.endswith(_LEFT_OVER):
            mount.fs.unlink(f"{mount.index}/{name}")
    loader = Loader(mount, Index(), RecoveryReport())
    head = store.volumes[-1]
    written = 0
    for volume in store.volumes:
        if volume.fd != NO_FILE:
            written += _repair_index(mount, loader, volume, head, say)
    if store.meta_lost or store.meta.head_life != head.life:
        meta = store.meta._replace(head=head.id, generation=head.generation)
        mount.write_meta(meta)
        say(f"{META}: written from the headers of the volumes")
        written += 1
    return written


def _repair_index(
    mount: MountPoint,
    loader: Loader,
    volume: Volume,
    head: Volume,
    say: Callable[[str], None],
) -> bool:
    """Write an index file if it lacks something; tell whether it did."""
    path = mount.index_path(volume.id)
    before = read_whole(mount, path)
    is_head = volume is head
    contents = loader.read(volume, is_head=is_head)
    data = before[: contents.file_end] or encode_index_header(volume.index_name)
    lacks_seal = not (is_head or volume.sealed)
    if volume.pending or lacks_seal:
        data += encode_block(volume.pending, volume.end, sealed=not is_head)
    if data == before:
        return False
    replace_file(mount.fs, path, data)
    kept = contents.file_end
    say(
        f"{INDEX}/{volume.id}: written, {kept} bytes of it as before,"
        f" {len(volume.pending)} records found in the volume"
    )
    return True
