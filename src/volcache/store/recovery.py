"""
Recovery: open a mount point at startup.

1. Open the data files, read what the files say (`mount_point.py`), and derive what is kept,
   rebuilt or refused: nothing is changed.
2. Replay the volumes into the index, ring probation and then ring main, each oldest first,
   so that later entries win (see `eviction.py`): the entries of the index file, then the
   records after the last entry, found by a scan.
3. Remove volumes beyond `volume_num`, and those that may have outdated records. Add what
   the scan found to the index files, so that the next start need not scan again.
4. Write META.txt, with a new mount count and what is known of each volume now. All that
   follows carries that mount count. Before, PURGE.txt is written again if it has purges
   that are not needed, or one that a crash may have left unacknowledged.

Damage never ends the start: it is counted, logged and skipped. But a record that might be
outdated is never served. If it is not known which keys a volume had, it and all older ones
of its ring are dropped. Where a file was replaced, or where the disk does not answer, the
start is refused instead, because the records may still be recovered.

What is known of volumes has six types:

- `VolumeUse`: which use of which volume: id, sequence number, ring and salt;
- `ListedVolume`: what META.txt or an index file says of a use: how far it was written;
- `MountPoint`: what all files say before records are read;
- `StartPlan`: which of them belong together;
- `Volume`: a use whose records can be read, and appended to while it is active;
- `Recovered`: all valid volumes with their index, as `Store` and `CircularLog` get them.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from volcache.errors import MountPointError
from volcache.store.files import close_all, is_short
from volcache.store.format import VOLUME_HEADER_BYTES, Ring, Segment
from volcache.store.manifest import PURGE
from volcache.store.mount_point import MountPoint, new_volume, plan_start
from volcache.store.native import make_index
from volcache.store.purges import encode_purges, purges_since
from volcache.store.replay import Replay, expected_keys
from volcache.store.rings import Recovered
from volcache.store.spill import Spill
from volcache.store.volume import NO_FILE, Volume

if TYPE_CHECKING:
    from volcache.store.clock import Clock
    from volcache.store.directory import StoreDirectory
    from volcache.store.manifest import ListedPurges, Manifest
    from volcache.store.rings import LogOptions
    from volcache.store.stats import RecoveryStats

_logger = logging.getLogger("volcache.store")


class NothingStoredError(MountPointError):
    """A disk that cannot be written has no volume that could be read."""


def recover(directory: StoreDirectory, options: LogOptions, clock: Clock) -> Recovered:
    """
    Build the index of a mount point and make it ready for writing.

    Args:
        directory: Locked by this process.
        options: The oldest volumes beyond `volume_num` are removed. With a `refusal`,
            nothing is changed, and what is returned can be read only: META.txt keeps its
            mount count, and HOT.txt stays for the next start, but is not used.
        clock: Is advanced to the latest time that any file names.

    Raises:
        NothingStoredError: With a `refusal`: there is nothing to be read.
        OSError: The disk cannot be written; what was stored is still there.
        FormatVersionError: A volume was written by another version of volcache.
        ForeignDirectoryError: `data` contains files that are not volumes.
        MismatchedFilesError: Files were replaced; nothing was changed.
        UnreadableVolumeError: The disk cannot be read where records may be; nothing was
            changed.
    """
    fs, descriptors = directory.fs, dict[int, int]()
    try:
        directory.open_data_files(descriptors)
        recovery = _Recovery(directory, descriptors, options, clock)
        return recovery.read() if options.refusal else recovery.run()
    except BaseException:
        close_all(fs, descriptors.values())
        raise


class _Recovery:
    """One start; the steps are those in the docstring of the module."""

    def __init__(
        self,
        directory: StoreDirectory,
        descriptors: dict[int, int],
        options: LogOptions,
        clock: Clock,
    ) -> None:
        """StartPlan the start; `descriptors` are those of the data files."""
        self._directory = directory
        self._clock = clock
        # Ring probation is written only with a policy.
        self._rings = (Ring.MAIN,) if options.policy is None else tuple(Ring)
        self._volume_num = volume_num = options.volume_num
        if options.refusal:  # No volume can be removed.
            self._volume_num = volume_num = max(volume_num, len(descriptors))
        lengths = (directory.fs.stat(fd).st_size for fd in descriptors.values())
        longest = max(options.volume_size, 0, *lengths)
        found = self._found = MountPoint(directory, descriptors)
        plan = self._plan = plan_start(found)
        listed = plan.open_volumes(found)
        self._dropped = self._oldest_first(listed)[: max(0, len(listed) - volume_num)]
        volumes = [volume for volume in listed if volume not in self._dropped]
        index = make_index(
            directory.fs,
            plan.manifest.store_id,
            volumes=volume_num,
            volume_bytes=longest,
            expected=expected_keys(found, volumes),
        )
        newest_seq, purges = plan.manifest.active.seq, plan.purges.purges
        state = self._state = Recovered(
            plan.manifest, descriptors, volumes, newest_seq, index, purges
        )
        self._spill = Spill(directory.index)
        self._replay = Replay(found, plan, index, state.recovery, self._spill)

    def run(self) -> Recovered:
        """Replay, then write what the next start needs."""
        state, plan = self._state, self._plan
        try:
            self._replay_volumes()
            self._prepare_files()
            self._write_files()
        finally:
            self._spill.close()
        if plan.purges.exists and state.manifest.purges is None:
            with suppress(OSError):  # META.txt does not name it.
                self._directory.remove(PURGE)
        # A copy in memcached of what was purged has lost the record it was compared with.
        has_all = len(state.purges) == len(plan.purges.purges)
        if has_all and not self._replay.unclean:
            state.hot = plan.manifest.hot
        state.newest_seq = max(state.volumes[-1].seq, state.newest_seq)
        return state

    def read(self) -> Recovered:
        """Replay, and write nothing."""
        state = self._state
        self._spill.drops = True
        is_new = not state.manifest.mount_count
        if not is_new:
            self._replay_volumes()
        if is_new or not self._has_main():
            message = f"mount point {self._directory.root!r}: nothing is stored there"
            raise NothingStoredError(message)
        return state

    def _has_main(self) -> bool:
        return any(volume.use.ring is Ring.MAIN for volume in self._state.volumes)

    def _replay_volumes(self) -> None:
        """Build the index."""
        state, replay = self._state, self._replay
        self._count_findings()
        unknown = replay.run(state.volumes)
        self._clock.advance_to(replay.latest_us)
        self._dropped += unknown
        state.volumes = [one for one in state.volumes if one not in unknown]
        state.volumes.sort(key=lambda volume: volume.seq)

    def _count_findings(self) -> None:
        """Count and log what the plan says is wrong in the volumes that are kept."""
        found, plan, recovery = self._found, self._plan, self._state.recovery
        kept = {volume.id for volume in self._state.volumes}
        if plan.is_manifest_lost:
            recovery.count_meta_lost()
        for volume in plan.foreign:
            _logger.warning(
                "recovery.foreign_volume volume=%d store=%016x expected=%016x",
                volume,
                found.headers[volume].store_id,
                plan.manifest.store_id,
            )
        for file in chain(*plan.rejected.values()):
            recovery.count_rejected(*plan.explain(found, file))
        for volume in kept.intersection(plan.damaged):
            recovery.count_damage("header", volume, 0, VOLUME_HEADER_BYTES)
        for volume in kept.intersection(plan.stale):
            recovery.count_stale(volume, found.headers[volume].use.seq)

    def _oldest_first(self, volumes: list[Volume]) -> list[Volume]:
        """Return volumes in the order in which they have to be dropped."""
        actives = self._newest(volumes)
        return sorted(
            volumes,
            key=lambda volume: (
                volume in actives,
                not self._may_be_outdated(volume),
                volume in actives and volume.use.ring is Ring.MAIN,
                volume.seq,
            ),
        )

    def _may_be_outdated(self, volume: Volume) -> bool:
        """Return whether ring main may have newer records of the keys of a volume."""
        first = self._plan.manifest.probation_first
        return volume.use.ring is Ring.PROBATION and volume.seq <= first

    def _newest(self, volumes: list[Volume]) -> list[Volume]:
        """Return the volume of each ring that is written, or would be."""
        newest = {v.use.ring: v for v in volumes if not self._may_be_outdated(v)}
        return list(newest.values())

    def _prepare_files(self) -> None:
        """Create all data files there may be, and remove the volumes that do not stay."""
        directory, state = self._directory, self._state
        if not state.manifest.mount_count:  # A new store: before its files.
            directory.write_manifest(state.manifest)
        found = [*state.volumes, *self._dropped]
        ids = {*range(self._volume_num), *(volume.id for volume in found)}
        directory.create_data_files(ids, state.descriptors)
        for volume in found:
            volume.fd = state.descriptors[volume.id]
        self._invalidate_dropped({volume.id for volume in found})
        drop_volumes(directory, self._dropped, self._volume_num, state.recovery)
        if not self._has_main():
            # A new volume of ring main, in the place of one that was dropped.
            place = max(self._dropped, key=lambda volume: volume.seq)
            use = new_volume(place.id, state.newest_seq + 1).use
            state.index.add_volume(use.seq)
            added = Volume(directory.fs, place.fd, use=use, store_id=place.store_id)
            state.volumes.append(added)

    def _invalidate_dropped(self, listed: set[int]) -> None:
        """
        Make volumes unusable that META.txt does not name.

        The last process has dropped them, and may have died before it did this. Should
        META.txt be lost, they must not be taken for valid ones. Those whose id is above the
        limit give back their space.
        """
        directory, descriptors = self._directory, self._state.descriptors
        for volume in sorted(set(descriptors) - listed - set(self._plan.foreign)):
            fd = descriptors[volume]
            try:
                directory.remove_index_file(volume)
                if volume >= self._volume_num:
                    directory.fs.truncate(fd, 0)
                elif volume in self._found.headers:
                    directory.fs.pwritev(fd, [bytes(VOLUME_HEADER_BYTES)], 0)
            except OSError as error:
                self._state.stats.count_write_error(error)

    def _write_files(self) -> None:
        """Write headers, index files, PURGE.txt and META.txt."""
        volumes, is_new = self._state.volumes, not self._state.manifest.mount_count
        actives = [v for v in self._newest(volumes) if v.use.ring in self._rings]
        self._write_headers()
        try:
            for volume in volumes:
                if not volume.is_sealed:
                    # Nothing is appended to one that is rejected. Unless its index file
                    # is sealed, a start after a kill would not know that it is complete.
                    is_rejected = volume.id in self._plan.rejected
                    seal = is_rejected or volume not in actives
                    self._complete_index_file(volume, seal=seal)
            for active in actives:
                # No other process can have written a volume that did not exist before.
                if not is_new and not active.is_sealed:
                    active.add_segment(Segment(active.end, secrets.randbits(64)))
            self._replace_manifest(actives)
        except BaseException:
            for active in actives:
                with suppress(OSError):
                    active.close_index_file()
            raise

    def _write_headers(self) -> None:
        """
        Write the header of the newest volume of each ring if it has none.

        A power loss may also leave a volume that is sealed with the header of an earlier
        use. It is written again: otherwise the next start would take it for a replaced one.
        """
        plan, volumes = self._plan, self._state.volumes
        newest = {volume.use.ring: volume for volume in volumes}.values()
        last_salts = dict.fromkeys(Ring, 0)
        for volume in volumes:
            previous_salt = last_salts[volume.use.ring]
            last_salts[volume.use.ring] = volume.salt
            if volume not in newest and volume.id not in plan.stale:
                continue
            header = self._found.headers.get(volume.id)
            if volume.id in plan.rejected:
                volume.retire()
            elif header is None or header.use != volume.use:
                volume.start(
                    self._clock.now_ms(),
                    mount_count=plan.manifest.next_mount_count,
                    oldest_seq=volumes[0].seq,
                    previous_salt=previous_salt,
                )

    def _complete_index_file(self, volume: Volume, *, seal: bool) -> None:
        """Add the scanned records to the index file; leave it open unless sealed."""
        contents = self._replay.contents.get(volume.seq)  # None: a new volume.
        valid_end = 0 if contents is None else contents.found.file_end
        pending = volume.pending + self._spill.records(volume.seq)
        if contents is not None and pending and not contents.is_whole:
            self._state.recovery.count_rebuilt(volume.id, pending)
        try:
            volume.open_index_file(self._directory.index_path(volume.id), valid_end)
            volume.write_spilled(self._spill.blocks(volume.seq))
            if seal:
                volume.seal()
                volume.close_index_file()
            else:
                volume.write_index()
        except OSError as error:
            # The next start scans again; until then nothing is missing.
            self._state.stats.count_index_error(error, volume=volume.id)
            if seal:
                with suppress(OSError):
                    volume.close_index_file()

    def _replace_manifest(self, actives: list[Volume]) -> None:
        """Write META.txt; on a full disk, give up the oldest volumes for it."""
        directory, state = self._directory, self._state
        while True:
            try:
                manifest = self._new_manifest(actives)
                if manifest.active.seq < state.newest_seq:
                    # The newest volume was dropped. What LOCK says of it would refuse a
                    # start, and so would a header that was overwritten and comes back by a
                    # power loss.
                    directory.clear_progress()
                    for fd in state.descriptors.values():
                        directory.fs.sync(fd)
                directory.write_manifest(manifest)
            except OSError as error:
                if not self._evict_for_space(actives, error):
                    raise
            else:
                state.manifest = manifest
                return

    def _new_manifest(self, actives: list[Volume]) -> Manifest:
        before, volumes = self._plan.manifest, self._state.volumes
        probation = [v.seq for v in volumes if v.use.ring is Ring.PROBATION]
        first = before.probation_first
        if probation and Ring.PROBATION not in self._rings:
            # What is put from now on replaces records there, too.
            first = probation[-1]
        return before._replace(
            mount_count=before.next_mount_count,
            time_us=self._clock.now_us(),
            boot=self._directory.boot,
            volumes=tuple(
                v.listed(is_open=v in actives and not v.is_sealed) for v in volumes
            ),
            hot="",
            probation_first=first,
            purges=self._write_purges(),
        )

    def _write_purges(self) -> ListedPurges | None:
        """
        Write PURGE.txt again as a whole, if it is not; return what META.txt says of it.

        If META.txt does not name it, the last purge was not acknowledged, and what it
        covers may have been copied to newer volumes since: it is needed longer.
        """
        file, before = self._plan.purges.file, self._plan.manifest.purges
        volumes = self._state.volumes
        needed = () if file is None else purges_since(file.purges, volumes[0].seq)
        self._state.purges = needed
        if file is None or not needed:
            return None
        is_whole = not (file.appended or file.is_torn)
        if is_whole and file.listed == before and len(needed) == len(file.purges):
            return before
        *others, last = needed
        if file.listed != before:
            last = last._replace(seq=volumes[-1].seq)
        self._state.purges = (*others, last)
        data, listed = encode_purges(file.store_id, before, self._state.purges)
        self._directory.replace(PURGE, data)
        return listed

    def _evict_for_space(self, actives: list[Volume], error: OSError) -> bool:
        """Free the space of the oldest volume; return whether that may help."""
        fs, root, state = self._directory.fs, self._directory.root, self._state
        if not is_short(fs, root, error):
            return False
        free = fs.space(root).free
        used = {volume.id for volume in state.volumes}
        for volume in sorted(set(state.descriptors) - used):
            fd = state.descriptors[volume]
            if fs.stat(fd).st_blocks:  # A volume was there that was dropped.
                fs.truncate(fd, 0)
                return True
        order = self._oldest_first(state.volumes)
        oldest = next((one for one in order if one not in actives), None)
        if oldest is None:
            return False
        state.stats.count_given_up(oldest.id, oldest.seq, free=free, error=error)
        state.index.reclaim(oldest.seq)
        drop_volumes(self._directory, [oldest], self._volume_num, state.recovery)
        state.volumes.remove(oldest)
        return fs.space(root).free > free


def drop_volumes(
    directory: StoreDirectory,
    volumes: list[Volume],
    volume_num: int,
    recovery: RecoveryStats,
) -> None:
    """
    Remove volumes, the oldest ones.

    Synced, because a power loss could bring one back after the records that superseded
    its own are gone.
    """
    for volume in volumes:
        directory.remove_index_file(volume.id)
        if volume.fd != NO_FILE:
            directory.fs.truncate(volume.fd, 0)
            directory.fs.sync(volume.fd)
        if volume.id >= volume_num:
            directory.fs.unlink(directory.data_path(volume.id))
        recovery.count_dropped(volume.id, volume.seq)
    if volumes:
        directory.fs.sync_directory(directory.index)
        directory.fs.sync_directory(directory.data)
