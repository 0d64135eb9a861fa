"""
Open a mount point: find out what is there, mend what a crash left, build the index.

Lives are loaded from the oldest to the newest, so that later entries win. No damage ends
the start. The result is on the disk again before anything is served: META.txt names a new
session, and index files are completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from volcache.store.index import Index
from volcache.store.index_file import remove_index_file
from volcache.store.load import Loader
from volcache.store.position import VOLUME_MAX
from volcache.store.report import RecoveryReport
from volcache.store.survey import Survey

if TYPE_CHECKING:
    from volcache.store.lines import Meta
    from volcache.store.mount_point import MountPoint
    from volcache.store.stats import StoreStats
    from volcache.store.volume import Volume


@dataclass(slots=True)
class Recovered:
    """A mount point as it was found, ready to be served."""

    meta: Meta
    descriptors: dict[int, int]  # of every volume, by its id
    volumes: dict[int, Volume]  # by their life
    head: Volume
    index: Index
    report: RecoveryReport
    stats: StoreStats  # in which what the disk refused meanwhile is counted


def recover(mount: MountPoint, *, volume_num: int, now_ms: int) -> Recovered:
    """
    Build the index of a mount point and make it ready for writing.

    Args:
        mount: Locked by us.
        volume_num: How many volumes there may be; the oldest beyond are given up.
        now_ms: The time, milliseconds since the epoch.

    Raises:
        OSError: The disk cannot be written; what was there is still there.
        FormatVersionError: A volume was written by a newer volcache.
        ForeignDirectoryError: `data` holds files that are not volumes.
    """
    descriptors = _open_volumes(mount, volume_num)
    try:
        return _recover(mount, descriptors, volume_num, now_ms)
    except BaseException:
        for fd in descriptors.values():
            mount.fs.close(fd)
        raise


def _open_volumes(mount: MountPoint, volume_num: int) -> dict[int, int]:
    """Open all volumes there are and may be, so that none can fail to open later."""
    ids = sorted({*mount.volume_ids(), *range(volume_num)})
    descriptors: dict[int, int] = {}
    try:
        for volume in ids:
            if volume <= VOLUME_MAX:
                path = mount.data_path(volume)
                descriptors[volume] = mount.fs.open(path, create=True)
        # fdatasync makes the bytes of a file safe and promises nothing for its name.
        mount.fs.sync_directory(mount.data)
    except BaseException:
        for fd in descriptors.values():
            mount.fs.close(fd)
        raise
    return descriptors


def _recover(
    mount: MountPoint, descriptors: dict[int, int], volume_num: int, now_ms: int
) -> Recovered:
    report = RecoveryReport()
    survey = Survey(mount, descriptors, report)
    volumes = survey.lives()
    head = volumes[max(volumes)]
    meta = survey.meta._replace(
        head=head.id,
        generation=head.generation,
        session=survey.meta.session + 1,
    )
    # Before anything else is written: all that follows carries the new session, even
    # if this start does not come to its end.
    mount.write_meta(meta)
    _drop_oldest(mount, volumes, volume_num, report)
    header = survey.headers.get(head.id)
    if header is None or header.generation != head.generation:
        head.write_header(mount.fs, meta, now_ms)
    index = Index()
    loader = Loader(mount, index, report)
    for life in sorted(volumes):
        loader.load(volumes[life], is_head=life == head.life)
    index.begin(head.life)
    return Recovered(meta, descriptors, volumes, head, index, report, loader.stats)


def _drop_oldest(
    mount: MountPoint,
    volumes: dict[int, Volume],
    volume_num: int,
    report: RecoveryReport,
) -> None:
    """
    Give up the oldest volumes when there are more than there may be.

    Synced, or a power loss could bring one back when what had replaced its values is gone.
    """
    dropped = sorted(volumes)[: max(0, len(volumes) - volume_num)]
    for life in dropped:
        volume = volumes.pop(life)
        remove_index_file(mount.fs, mount.index_path(volume.id))
        mount.fs.truncate(volume.fd, 0)
        mount.fs.sync(volume.fd)
        if volume.id >= volume_num:
            mount.fs.unlink(mount.data_path(volume.id))
        report.note_dropped(volume.id, volume.generation)
    if dropped:
        mount.fs.sync_directory(mount.index)
        mount.fs.sync_directory(mount.data)
