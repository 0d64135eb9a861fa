"""
What the files of a mount point say before any record is read, and what follows for a start.

`MountPoint` only reads: META.txt, PURGE.txt, the headers of all volumes and the beginnings
of all index files; `StoreDirectory` has read LOCK. `plan_start` only derives: what is kept,
rebuilt or refused. `replay.py` reads the records, and `recovery.py` writes.

META.txt names the volumes. The header of each volume is compared with it, because files can
be replaced: by earlier ones, by those of a clone of the mount point, or of another store. A
data file that does not match is *rejected*: none of its records is used. If its index file
does not match either, the keys of the volume are not known, and a record of an older volume
could be outdated: then the start is refused. If META.txt is lost, it is rebuilt from the
volumes, but only if they agree. PURGE.txt is compared as well, see `purges.py`.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from volcache.errors import ForeignDirectoryError
from volcache.store.directory import DATA, INDEX, LOCK, META
from volcache.store.files import reading
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    Ring,
    VolumeUse,
    decode_volume_header,
    volume_version,
)
from volcache.store.index_format import (
    IndexName,
    decode_index_header,
    decode_segments,
)
from volcache.store.manifest import (
    PURGE,
    ListedVolume,
    Manifest,
    Mismatch,
    decode_manifest,
)
from volcache.store.native import read_lines
from volcache.store.purges import FoundPurges, compare_purges, decode_purges
from volcache.store.volume import NO_FILE, Volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from volcache.store.directory import StoreDirectory
    from volcache.store.format import VolumeHeader
    from volcache.store.manifest import Progress

_SAMPLE_BYTES: Final = 2**16  # of each index file
# If META.txt is lost, the mount count is not known, only those at which volumes were
# started. At most this many mounts followed, and HOT.txt must not be bound to the number
# of one of them.
_LOST_MOUNT_COUNTS_MAX: Final = 2**16


class MountPoint:
    """
    What the files of a mount point say.

    Attributes:
        directory: Of the store.
        descriptors: Of the data files, by volume id.
        manifest: META.txt; None: it is missing or damaged.
        has_manifest: There is a META.txt.
        purges: PURGE.txt; None: it is missing or damaged.
        has_purges: There is a PURGE.txt.
        headers: The intact volume headers, by volume id.
        unreadable: Ids of volumes whose header cannot be read.
        has_other_data: A data file has bytes in the place of a header.
        values: About how many values the index files list, by volume id.
        names: What data and index files say they are: by their paths, as `data/3`.
    """

    def __init__(
        self, directory: StoreDirectory, descriptors: Mapping[int, int]
    ) -> None:
        """
        Read the files.

        Args:
            directory: Locked.
            descriptors: Of the data files, by volume id; `NO_FILE` for one that cannot be
                opened.

        Raises:
            FormatVersionError: A file was written by another version of volcache.
            OSError: META.txt or PURGE.txt cannot be read.
        """
        self.directory, self.descriptors = directory, descriptors
        data, purges = directory.read(META), directory.read(PURGE)
        self.manifest = decode_manifest(data or b"")
        self.has_manifest, self.has_purges = data is not None, purges is not None
        self.purges = decode_purges(purges or b"")
        self.headers: dict[int, VolumeHeader] = {}
        self.unreadable: list[int] = []
        self.has_other_data = False
        self.names: dict[str, IndexName] = {}
        for volume, fd in descriptors.items():
            if fd != NO_FILE:
                self._read_header(volume, fd)
        self.values: dict[int, int] = {}
        for volume in directory.index_ids():
            self._read_index_file(volume)

    def _read_header(self, volume: int, fd: int) -> None:
        try:
            data = self.directory.fs.pread(fd, VOLUME_HEADER_BYTES, 0)
        except OSError:
            self.unreadable.append(volume)
            return
        if not any(data):
            return
        header = decode_volume_header(data)
        if header is not None and header.use.volume == volume:
            self.headers[volume] = header
            self.names[f"{DATA}/{volume}"] = IndexName(header.use, header.store_id)
        else:
            self.directory.refuse_version(f"{DATA}/{volume}", volume_version(data))
            self.has_other_data = True

    def _read_index_file(self, volume: int) -> None:
        fs = self.directory.fs
        try:
            with reading(fs, self.directory.index_path(volume)) as fd:
                length, data = fs.stat(fd).st_size, fs.pread(fd, _SAMPLE_BYTES, 0)
        except OSError:
            return  # It counts as missing.
        version, name = decode_index_header(data) or (None, None)
        self.directory.refuse_version(f"{INDEX}/{volume}", version)
        # Without comments; and a deleted key keeps the entry that its value had.
        values = data.count(b"\n") - data.count(b"\n#") - data.count(b" 0 0\n")
        self.values[volume] = length * max(0, values) // max(1, len(data))
        if name is not None and name.use.volume == volume:
            self.names[f"{INDEX}/{volume}"] = name

    def read_listed(self, name: IndexName) -> ListedVolume:
        """Return what an index file, whose name is this one, says of its volume."""
        data = self.directory.read_index_file(name.use.volume)
        segments = decode_segments(data)
        found, _ = read_lines(data, segments)
        named = tuple(segments[: found.named])
        return ListedVolume(name.use, "sealed", found.volume_end, segments=named)


@dataclass(slots=True)
class StartPlan:
    """
    What is kept, rebuilt or refused.

    Attributes:
        manifest: META.txt, or what the volumes say if it is lost.
        is_manifest_lost: META.txt is missing or damaged although there are volumes.
        is_same_boot: The machine has not booted since the last process wrote: what that
            process wrote is there, synced or not.
        damaged: Ids of valid volumes whose header is damaged, missing or unreadable.
        stale: Ids of valid volumes whose header is that of an earlier use, because the
            process ended, or the machine, before the present one was on the disk.
        rejected: By volume id: files that belong elsewhere, although META.txt names them;
            the data file, and perhaps the index file.
        foreign: Ids of volumes of another store that META.txt does not name.
        mismatches: Because of these files a start must not use any; empty: it may.
        purges: What PURGE.txt says.
    """

    manifest: Manifest
    is_manifest_lost: bool = False
    is_same_boot: bool = False
    damaged: list[int] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    rejected: dict[int, list[str]] = field(default_factory=dict)
    foreign: list[int] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    purges: FoundPurges = field(default_factory=FoundPurges)

    def open_volumes(self, found: MountPoint) -> list[Volume]:
        """
        Return the valid volumes as objects, in the order of a replay; nothing is read.

        Ring probation comes before ring main, each oldest first: see `eviction.py`.
        """
        started = {one.use: one.started_ms for one in found.headers.values()}
        return [
            Volume(
                found.directory.fs,
                found.descriptors.get(listed.use.volume, NO_FILE),
                use=listed.use,
                store_id=self.manifest.store_id,
                segments=listed.segments,
                started_ms=started.get(listed.use, 0),
            )
            for ring in reversed(Ring)
            for listed in self.manifest.volumes
            if listed.use.ring is ring
        ]

    def explain(self, found: MountPoint, file: str) -> Mismatch:
        """Return what a file that does not match should be, and what it is."""
        manifest, purges = self.manifest, self.purges.mismatch
        if file == META:
            intact = None if self.is_manifest_lost else f"seq {manifest.active.seq}"
            return Mismatch(file, "that of the other files", intact or "no intact one")
        if file == LOCK:
            lines = ", ".join(map(str, found.directory.progress))
            return Mismatch(file, _text_of(manifest.active, manifest.store_id), lines)
        if purges is not None and file == PURGE:
            return purges
        uses = {listed.use.volume: listed.use for listed in manifest.volumes}
        use, name = uses.get(int(file.split("/")[1])), found.names.get(file)
        expected = f"at most seq {manifest.active.seq}"
        if use is not None:
            expected = _text_of(use, manifest.store_id)
        return Mismatch(file, expected, _text_of(*name) if name else "nothing intact")


def plan_start(found: MountPoint, *, is_lenient: bool = False) -> StartPlan:
    """
    Derive what a start does; reads at most index files, and changes nothing.

    Args:
        found: The mount point.
        is_lenient: Instead of a refusal, leave out the volumes that do not fit.

    Raises:
        ForeignDirectoryError: `data` contains files that are not volumes.
    """
    plan = _by_manifest(found, is_lenient=is_lenient)
    plan = plan or _Rebuild(found).plan(is_lenient=is_lenient) or _begin(found)
    manifest, is_lost = plan.manifest, plan.is_manifest_lost
    purges = plan.purges = compare_purges(
        *(found.purges, manifest), exists=found.has_purges, is_manifest_lost=is_lost
    )
    if purges.mismatch is None:
        if is_lost and purges.file is not None:
            plan.manifest = manifest._replace(purges=purges.file.listed)
    elif is_lenient:
        uses = (listed.use for listed in manifest.volumes)
        doubtful = [use for use in uses if use.seq <= purges.doubtful_seq]
        plan.manifest = _without(manifest, doubtful)._replace(purges=None)
    else:
        plan.mismatches.append(PURGE)
    return plan


def _begin(found: MountPoint) -> StartPlan:
    """Begin a new store."""
    directory = found.directory
    if found.has_other_data and not found.has_manifest:
        message = (
            f"mount point {directory.root!r} is not a volcache directory: the files"
            " in data/ are not volumes and there is no META.txt; give an empty or a"
            " new directory as mount_point"
        )
        raise ForeignDirectoryError(message)
    volumes = (new_volume(0, 1),)
    manifest = Manifest(secrets.randbits(64), 0, 0, directory.boot, volumes)
    return StartPlan(manifest, is_manifest_lost=found.has_manifest)


def _without(manifest: Manifest, unknown: Iterable[VolumeUse]) -> Manifest:
    """Leave out volumes that may have outdated records, or that have unknown keys."""
    before, bounds = manifest.volumes, manifest.outdated_bounds(unknown)
    kept = tuple(one for one in before if one.use.seq >= bounds[one.use.ring])
    has_main = any(listed.use.ring is Ring.MAIN for listed in kept)
    if not has_main or kept[-1].use != manifest.active:
        # If the newest one is left out, META.txt must not be older than its header.
        place = next(v.use.volume for v in reversed(before) if v not in kept)
        kept += (new_volume(place, manifest.active.seq + 1),)
    return manifest._replace(volumes=kept)


def new_volume(volume: int, seq: int) -> ListedVolume:
    """Return an empty volume of ring main."""
    return ListedVolume(VolumeUse(volume, seq, Ring.MAIN, secrets.randbits(64)))


def _text_of(use: VolumeUse, store_id: int) -> str:
    volume, seq, _, salt = use
    return f"volume {volume} seq {seq} salt {salt:016x} of store {store_id:016x}"


# --- With META.txt -----------------------------------------------------------------


def _by_manifest(found: MountPoint, *, is_lenient: bool) -> StartPlan | None:
    """Compare the files with META.txt; None if it is lost, or left out."""
    manifest, boot = found.manifest, found.directory.boot
    if manifest is None:
        return None
    plan = StartPlan(manifest, is_same_boot=bool(boot) and boot == manifest.boot)
    unknown = [one.use for one in manifest.volumes if not _is_known(found, plan, one)]
    rejected = list(chain(*plan.rejected.values()))
    ids, ours = {one.use.volume for one in manifest.volumes}, manifest.store_id
    headers = found.headers.items()
    plan.foreign = [v for v, one in headers if v not in ids and one.store_id != ours]
    newest = manifest.active.seq
    wrong = [
        file
        for file, (use, store_id) in found.names.items()
        if store_id == ours and use.seq > newest
    ]
    if _contradicts(found, manifest):
        wrong.append(LOCK)
    if 2 * len(plan.rejected) > len(manifest.volumes):
        wrong += rejected
    if wrong:  # It is META.txt that is wrong.
        plan.mismatches = [META, *wrong]
        return None if is_lenient else plan
    if unknown and is_lenient:
        plan.manifest = _without(manifest, unknown)
    elif unknown:
        plan.mismatches = rejected
    return plan


def _is_known(found: MountPoint, plan: StartPlan, listed: ListedVolume) -> bool:
    """Compare the files of a volume with its line; return whether one may be used."""
    manifest, volume = plan.manifest, listed.use.volume
    data, index = f"{DATA}/{volume}", f"{INDEX}/{volume}"
    header, indexed = found.names.get(data), found.names.get(index)
    name = IndexName(listed.use, manifest.store_id)
    if header is None:
        # The process may have ended while it wrote the header of a new volume.
        if listed.use != manifest.active or not listed.is_open:
            plan.damaged.append(volume)
    elif header != name:
        if _is_stale(found, plan, listed, is_written=indexed == name):
            plan.stale.append(volume)
        else:
            others = [] if indexed in {name, None} else [index]
            plan.rejected[volume] = [data, *others]
            return indexed == name
    return True


def _is_stale(
    found: MountPoint, plan: StartPlan, listed: ListedVolume, *, is_written: bool
) -> bool:
    """
    Return whether a crash explains that a header is that of an earlier use.

    A new one is written after META.txt, and not synced; then LOCK names the volume, or its
    index file is there: `is_written`.
    """
    manifest, header = plan.manifest, found.headers[listed.use.volume]
    if header.store_id != manifest.store_id or header.use.seq >= listed.use.seq:
        return False
    if not plan.is_same_boot:
        return listed.state != "synced"
    progress = found.directory.progress
    is_written |= any(line.salt in listed.salts for line in progress)
    return listed.use == manifest.active and listed.is_open and not is_written


def _has_written(listed: ListedVolume, end: int, progress: Progress) -> bool:
    """
    Return whether the process that wrote LOCK has written this volume, and no other.

    Args:
        listed: The volume and its segments.
        end: A segment that begins here got no record, and is not listed any more.
        progress: What LOCK says.
    """
    if progress.seq != listed.use.seq:
        return False
    if progress.salt not in listed.salts:
        return progress.end <= end
    following = listed.segments[listed.salts.index(progress.salt) :]
    return not following or progress.end <= following[0].start


def _contradicts(found: MountPoint, manifest: Manifest) -> bool:
    """Return whether LOCK contradicts META.txt, which is written before it."""
    by_seq = {one.use.seq: one for one in manifest.volumes}
    for line in found.directory.progress:
        named, is_older = by_seq.get(line.seq), line.seq < manifest.active.seq
        if line.store_id != manifest.store_id or (named is None and is_older):
            continue
        if line.boot != manifest.boot and line.seq <= manifest.active.seq:
            continue  # A power loss may have taken what it names.
        start = named.segments[-1].start if named and named.segments else 0
        if named is None or not _has_written(named, start, line):
            return True
    return False


# --- Without META.txt --------------------------------------------------------------


class _Rebuild:
    """META.txt as the volumes have it."""

    def __init__(self, found: MountPoint) -> None:
        self._found = found
        self._broken: list[str] = []  # files of the store that do not fit each other

    def plan(self, *, is_lenient: bool) -> StartPlan | None:
        """Find the volumes that follow each other; return None if there are none."""
        found, candidates = self._found, self._candidates()
        if not candidates:
            return None
        store_id = self._store_id([owner for owner, _ in candidates])
        listed = self._chain([one for owner, one in candidates if owner == store_id])
        progress = [p for p in found.directory.progress if p.store_id == store_id]
        is_confirmed = all(
            any(_has_written(one, one.end, line) for one in listed) for line in progress
        )
        if not is_confirmed:
            self._broken.append(LOCK)
        others = [one.use.volume for owner, one in candidates if owner != store_id]
        mismatches = [f"{DATA}/{volume}" for volume in found.unreadable + others]
        mismatches += self._broken
        if mismatches:
            mismatches.insert(0, META)
        newest = max((use for use, _ in found.names.values()), key=lambda use: use.seq)
        is_doubtful = self._broken or not progress or newest.seq != listed[-1].use.seq
        if mismatches and is_lenient and is_doubtful:
            # Any of these files may be older than what was lost, or come from a copy.
            volumes = [new_volume(newest.volume, newest.seq + 1)]
        else:
            actives = {one.use.ring: one.use for one in listed}.values()
            # How far the sealed ones go is not known.
            volumes = [
                one._replace(state="open" if one.use in actives else "sealed", end=0)
                for one in listed
            ]
        ids = [one.use.volume for one in listed]
        manifest = self._manifest(store_id, volumes, ids)
        is_same_boot = bool(progress) and 0 != manifest.boot == progress[0].boot
        newest_ids = {use.volume for use in manifest.actives}
        return StartPlan(
            manifest,
            is_manifest_lost=True,
            is_same_boot=is_same_boot,
            damaged=[v for v in ids if not (v in found.headers or v in newest_ids)],
            foreign=[volume for volume in others if volume in found.headers],
            mismatches=[] if is_lenient and not found.unreadable else mismatches,
        )

    def _manifest(
        self, store_id: int, volumes: list[ListedVolume], ids: list[int]
    ) -> Manifest:
        """Return META.txt; `ids` are of the volumes that follow each other."""
        found = self._found
        headers = [found.headers[volume] for volume in ids if volume in found.headers]
        probation = [v.use.seq for v in volumes if v.use.ring is Ring.PROBATION]
        mount_count = max((header.mount_count for header in headers), default=0)
        return Manifest(
            store_id,
            mount_count + _LOST_MOUNT_COUNTS_MAX,
            max((header.started_ms for header in headers), default=0) * 1000,
            found.directory.boot,
            tuple(volumes),
            probation_first=max(probation, default=0),
        )

    def _candidates(self) -> list[tuple[int, ListedVolume]]:
        """Return what each data file is, or else its index file; first the store id."""
        found, names = self._found, self._found.names
        candidates: list[tuple[int, ListedVolume]] = []
        for volume in dict.fromkeys((*found.headers, *found.values)):
            data, index = f"{DATA}/{volume}", f"{INDEX}/{volume}"
            indexed = names.get(index)
            name = names.get(data, indexed)
            if name is None:
                continue
            use, store_id = name
            listed = ListedVolume(use, end=VOLUME_HEADER_BYTES)
            if indexed == name:
                listed = found.read_listed(name)
            elif (
                indexed and indexed.store_id == store_id and indexed.use.seq >= use.seq
            ):
                self._broken.append(data)
            candidates.append((store_id, listed))
        return candidates

    def _store_id(self, owners: list[int]) -> int:
        """Return the store that LOCK names, or else the one most volumes belong to."""
        progress = self._found.directory.progress
        if progress and progress[0].store_id in owners:
            return progress[0].store_id
        return Counter(owners).most_common(1)[0][0]

    def _chain(self, ours: list[ListedVolume]) -> list[ListedVolume]:
        """Return the volumes that lead to the newest of each ring, oldest first."""
        newest_first = sorted(ours, key=lambda listed: listed.use.seq, reverse=True)
        newest = self._found.headers.get(newest_first[0].use.volume)
        oldest_seq = 0 if newest is None else newest.oldest_seq
        valid = [one for one in newest_first if one.use.seq >= oldest_seq]
        if not any(listed.use.ring is Ring.MAIN for listed in valid):
            self._broken.append(META)
        chains = (
            self._chain_of(v for v in valid if v.use.ring is ring) for ring in Ring
        )
        return sorted(chain(*chains), key=lambda listed: listed.use.seq)

    def _chain_of(self, newest_first: Iterable[ListedVolume]) -> list[ListedVolume]:
        """Return the volumes of a ring that end with the newest, without a break."""
        chain: list[ListedVolume] = []
        for listed in newest_first:
            last = chain[-1].use if chain else None
            header = last and self._found.headers.get(last.volume)
            # Without a header, only the sequence number tells; it may be of the other ring.
            is_previous = last is None or (
                listed.use.seq == last.seq - 1
                if header is None
                else header.previous_salt == listed.salts[-1]
            )
            if not is_previous:
                self._broken.append(f"{DATA}/{listed.use.volume}")
                break
            chain.append(listed)
        return chain
