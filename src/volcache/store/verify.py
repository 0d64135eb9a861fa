"""
Integrity check: compare everything in a mount point with docs/FORMAT.md.

Changes nothing. Records are found by the same scan as at startup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volcache.store.directory import DATA, INDEX, META
from volcache.store.replay import open_contents
from volcache.store.volume import NO_FILE
from volcache.store.volume_check import Counts, Finding, VolumeCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store.offline import OfflineStore


def verify(
    store: OfflineStore,
    counts: Counts,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[Finding]:
    """
    Check a mount point and yield what is wrong.

    Args:
        store: To be checked.
        counts: Is filled; complete when the iterator has ended.
        advance: Called with the number of bytes read since the last call.
    """
    yield from _check_files(store)
    yield from _check_volumes(store, counts, advance)


def _check_files(store: OfflineStore) -> Iterator[Finding]:
    inventory = store.inventory
    for problem in store.problems:
        yield Finding("file", *problem)
    if inventory.is_manifest_lost:
        yield Finding("file", META, 0, "is missing or its checksum is wrong")
    for volume_id in inventory.stale:
        what = "the header is that of an earlier use; the present one was not written"
        yield Finding("note", f"{DATA}/{volume_id}", 0, what)
    for file, expected, found in inventory.rejected:
        yield Finding("file", file, 0, f"is {found}, expected was {expected}")
    for volume_id in inventory.foreign:
        other = inventory.headers[volume_id].store_id
        what = f"belongs to another store, {other:016x}"
        yield Finding("file", f"{DATA}/{volume_id}", 12, what)
    if inventory.refusal:
        what = f"a server refuses to start: {inventory.refusal}"
        yield Finding("file", META, 0, what)


def _check_volumes(
    store: OfflineStore, counts: Counts, advance: Callable[[int], object]
) -> Iterator[Finding]:
    inventory = store.inventory
    # Reported above; what follows from it is not.
    unusable = {problem.file for problem in store.problems}
    listed = {listed.use: listed for listed in inventory.manifest.volumes}
    keys = store.make_index()  # Of records that can be read.
    for volume in store.volumes:
        keys.add_volume(volume.seq)
        counts.volumes += volume.fd != NO_FILE
        if volume.id in inventory.rejected_ids:
            continue  # None of its records belongs here.
        check = VolumeCheck(
            store.directory.fs,
            volume,
            open_contents(store.directory, volume),
            listed=listed[volume.use],
            is_active=store.is_active(volume),
            counts=counts,
            keys=keys,
            advance=advance,
        )
        for finding in check.run():
            if not (finding.file in unusable and finding.file.startswith(INDEX)):
                yield finding
    counts.keys = keys.count
