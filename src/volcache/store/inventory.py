"""
The inventory of a mount point: which volumes it holds, before any record is read.

META.txt names them. The header of each volume is compared with it, because files can be
replaced: by earlier ones, by those of a clone of the mount point, or of another store. A
data file that does not match is *rejected*: none of its records is used. If its index file
does not match either, the keys of the volume are not known, and a record of an older volume
could be outdated: then the start is refused. If META.txt is lost, it is rebuilt from the
volumes, but only if they agree. PURGE.txt is compared as well, see `purges.py`.

Taking an inventory changes nothing on the disk; `replay.py` reads the records.
"""

from __future__ import annotations

import secrets
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

from volcache.errors import ForeignDirectoryError
from volcache.store.directory import DATA, INDEX, LOCK, META
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    Ring,
    VolumeHeader,
    VolumeUse,
    decode_volume_header,
    volume_version,
)
from volcache.store.index_format import decode_index_header, decode_segments
from volcache.store.manifest import (
    PURGE,
    ListedVolume,
    Manifest,
    Mismatch,
    decode_manifest,
)
from volcache.store.native import read_lines
from volcache.store.purges import FoundPurges, compare_purges
from volcache.store.volume import NO_FILE, Volume

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from volcache.store.directory import StoreDirectory
    from volcache.store.progress import Progress

# If META.txt is lost, the mount count is not known, only those at which volumes were
# started. At most this many mounts followed, and HOT.txt must not be bound to the number
# of one of them.
_LOST_MOUNT_COUNTS_MAX: Final = 2**16


class StoreInventory:
    """
    What a mount point holds.

    Attributes:
        directory: Of the store.
        is_lenient: Volumes that do not fit are left out, instead of a refusal.
        headers: The intact volume headers, by volume id.
        unreadable: Ids of volumes whose header cannot be read.
        has_other_data: A data file has bytes in the place of a header.
        manifest: META.txt, or what the volumes say if it is lost.
        is_manifest_lost: META.txt is missing or damaged although there are volumes.
        is_same_boot: The machine has not booted since the last process wrote: what that
            process wrote is there, synced or not.
        damaged: Ids of valid volumes whose header is damaged, missing or unreadable.
        stale: Ids of valid volumes whose header is that of an earlier use, because the
            process ended, or the machine, before the present one was on the disk.
        rejected: By volume id: files that belong elsewhere, although META.txt names them;
            the data file, and perhaps the index file.
        unknown_ids: Those whose index file is rejected as well.
        foreign: Ids of volumes of another store that META.txt does not name.
        purges: What PURGE.txt says.
        mismatches: Because of these files a start must not use any; empty: it may.
    """

    manifest: Manifest

    def __init__(
        self,
        directory: StoreDirectory,
        descriptors: Mapping[int, int],
        *,
        is_lenient: bool,
    ) -> None:
        """Read the volume headers; the rest is found out by `take_inventory`."""
        self.directory, self.is_lenient = directory, is_lenient
        self.headers: dict[int, VolumeHeader] = {}
        self.unreadable: list[int] = []
        self.has_other_data = False
        for volume, fd in descriptors.items():
            if fd != NO_FILE:
                self._read_header(volume, fd)
        self.is_manifest_lost = self.is_same_boot = False
        self.damaged: list[int] = []
        self.stale: list[int] = []
        self.rejected: dict[int, list[Mismatch]] = {}
        self.unknown_ids: set[int] = set()
        self.foreign: list[int] = []
        self.purges = FoundPurges()
        self.mismatches: list[Mismatch] = []

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
        else:
            self.directory.refuse_version(f"{DATA}/{volume}", volume_version(data))
            self.has_other_data = True

    def index_file(self, volume: int) -> tuple[int, ListedVolume] | None:
        """Return what an index file says: store id and volume; None if it is damaged."""
        data = self.directory.read_index_file(volume)
        header = decode_index_header(data)
        if header is None:
            return None
        version, name = header
        self.directory.refuse_version(f"{INDEX}/{volume}", version)
        if name.use.volume != volume:
            return None
        segments = decode_segments(data)
        found, _ = read_lines(data, segments)
        named = tuple(segments[: found.named])
        listed = ListedVolume(name.use, "sealed", found.volume_end, segments=named)
        return name.store_id, listed

    def open_volumes(self, descriptors: Mapping[int, int]) -> list[Volume]:
        """
        Return the valid volumes as objects, in the order of a replay; nothing is read.

        Ring probation comes before ring main, each oldest first: see `eviction.py`.
        """
        started = {one.use: one.started_ms for one in self.headers.values()}
        return [
            Volume(
                self.directory.fs,
                descriptors.get(listed.use.volume, NO_FILE),
                use=listed.use,
                store_id=self.manifest.store_id,
                segments=listed.segments,
                started_ms=started.get(listed.use, 0),
            )
            for ring in reversed(Ring)
            for listed in self.manifest.volumes
            if listed.use.ring is ring
        ]

    def leave_out(self, unknown: Iterable[VolumeUse]) -> None:
        """Leave out volumes that may have outdated records, or that have unknown keys."""
        before = self.manifest.volumes
        bounds = self.manifest.outdated_bounds(unknown)
        kept = tuple(one for one in before if one.use.seq >= bounds[one.use.ring])
        newest = before[-1].use
        has_main = any(listed.use.ring is Ring.MAIN for listed in kept)
        if not has_main or kept[-1].use != newest:
            # If the newest one is left out, META.txt must not be older than its header.
            place = next(v.use.volume for v in reversed(before) if v not in kept)
            kept += (new_volume(place, newest.seq + 1),)
        self.manifest = self.manifest._replace(volumes=kept)


def take_inventory(
    directory: StoreDirectory, descriptors: Mapping[int, int], *, lenient: bool = False
) -> StoreInventory:
    """
    Read META.txt, PURGE.txt, the volume headers and, where needed, the index files.

    Args:
        directory: Locked.
        descriptors: Of the data files, by volume id; `NO_FILE` for one that cannot be
            opened.
        lenient: Instead of a refusal, leave out the volumes that do not fit.

    Raises:
        FormatVersionError: A volume was written by another version of volcache.
        ForeignDirectoryError: `data` contains files that are not volumes.
        OSError: META.txt or PURGE.txt cannot be read.
    """
    found = StoreInventory(directory, descriptors, is_lenient=lenient)
    data = directory.read(META)
    manifest = decode_manifest(data or b"")
    if manifest is not None:
        found.manifest = manifest
        is_wrong = _compare(found)
        if lenient and is_wrong:
            found = StoreInventory(directory, descriptors, is_lenient=True)
            manifest = None
        elif lenient and found.mismatches:
            uses = (listed.use for listed in manifest.volumes)
            found.leave_out(use for use in uses if use.volume in found.unknown_ids)
            found.mismatches = []
    if manifest is None and not _Rebuild(found, descriptors).run():
        _begin(found, exists=data is not None)
    _add_purges(found, directory.read(PURGE))
    return found


def _begin(found: StoreInventory, *, exists: bool) -> None:
    """Begin a new store; `exists`: there is a META.txt."""
    directory = found.directory
    if found.has_other_data and not exists:
        message = (
            f"mount point {directory.root!r} is not a volcache directory: the files"
            " in data/ are not volumes and there is no META.txt; give an empty or a"
            " new directory as mount_point"
        )
        raise ForeignDirectoryError(message)
    volumes = (new_volume(0, 1),)
    found.manifest = Manifest(secrets.randbits(64), 0, 0, directory.boot, volumes)
    found.is_manifest_lost = exists


def _add_purges(found: StoreInventory, data: bytes | None) -> None:
    """Compare PURGE.txt; `data` has its contents, None if there is none."""
    manifest, is_lost = found.manifest, found.is_manifest_lost
    purges = found.purges = compare_purges(data, manifest, is_manifest_lost=is_lost)
    if purges.mismatch is None:
        if is_lost and purges.file is not None:
            found.manifest = manifest._replace(purges=purges.file.listed)
    elif found.is_lenient:
        uses = (listed.use for listed in manifest.volumes)
        found.leave_out(use for use in uses if use.seq <= purges.doubtful_seq)
        found.manifest = found.manifest._replace(purges=None)
    else:
        found.mismatches.append(purges.mismatch)


def new_volume(volume: int, seq: int) -> ListedVolume:
    """Return an empty volume of ring main."""
    return ListedVolume(VolumeUse(volume, seq, Ring.MAIN, secrets.randbits(64)))


def text_of(use: VolumeUse, store_id: int) -> str:
    """Return a use of a volume as `volcache check` names it."""
    volume, seq, _, salt = use
    return f"volume {volume} seq {seq} salt {salt:016x} of store {store_id:016x}"


# --- With META.txt -----------------------------------------------------------------


def _compare(found: StoreInventory) -> bool:
    """Compare the files with META.txt; return whether it is the one that is wrong."""
    manifest, boot = found.manifest, found.directory.boot
    found.is_same_boot = bool(boot) and boot == manifest.boot
    for listed in manifest.volumes:
        _compare_volume(found, listed)
    ids = {listed.use.volume for listed in manifest.volumes}
    found.foreign = [
        volume
        for volume, header in found.headers.items()
        if volume not in ids and header.store_id != manifest.store_id
    ]
    wrong = [*_newer(found, ids), *_contradictions(found)]
    rejected = list(chain(*found.rejected.values()))
    if 2 * len(found.rejected) > len(manifest.volumes):
        wrong += rejected
    if wrong:
        text = f"seq {manifest.active.seq}"
        wrong.insert(0, Mismatch(META, "that of the other files", text))
    found.mismatches = wrong or (rejected if found.unknown_ids else [])
    return bool(wrong)


def _compare_volume(found: StoreInventory, listed: ListedVolume) -> None:
    """Compare the header of one volume with its line."""
    (volume, *_), manifest = listed.use, found.manifest
    header, name = found.headers.get(volume), (manifest.store_id, listed.use)
    if header is None:
        # The process may have ended while it wrote the header of a new volume.
        if listed.use != manifest.active or not listed.is_open:
            found.damaged.append(volume)
        return
    if (header.store_id, header.use) == name:
        return
    indexed = found.index_file(volume)
    is_known = indexed is not None and (indexed[0], indexed[1].use) == name
    if _is_stale(found, listed, is_written=is_known):
        found.stale.append(volume)
        return
    expected = text_of(listed.use, manifest.store_id)
    text = text_of(header.use, header.store_id)
    files = found.rejected[volume] = [Mismatch(f"{DATA}/{volume}", expected, text)]
    if not is_known:
        found.unknown_ids.add(volume)
        if indexed is not None:
            text = text_of(indexed[1].use, indexed[0])
            files.append(Mismatch(f"{INDEX}/{volume}", expected, text))


def _is_stale(found: StoreInventory, listed: ListedVolume, *, is_written: bool) -> bool:
    """
    Return whether a crash explains that a header is that of an earlier use.

    A new one is written after META.txt, and not synced; then LOCK names the volume, or its
    index file is there: `is_written`.
    """
    manifest, header = found.manifest, found.headers[listed.use.volume]
    if header.store_id != manifest.store_id or header.use.seq >= listed.use.seq:
        return False
    if not found.is_same_boot:
        return listed.state != "synced"
    progress = found.directory.progress
    is_written |= any(line.salt in listed.salts for line in progress)
    return listed.use == manifest.active and listed.is_open and not is_written


def _newer(found: StoreInventory, ids: set[int]) -> list[Mismatch]:
    """
    Return the files of this store that are newer than META.txt.

    The index file of a volume that META.txt names is compared when it is replayed.
    """
    ours, newest = found.manifest.store_id, found.manifest.active.seq
    others = map(found.index_file, {*found.directory.index_ids()} - ids)
    files = [(DATA, store_id, use) for use, store_id, *_ in found.headers.values()]
    files += [(INDEX, store_id, one.use) for store_id, one in filter(None, others)]
    return [
        Mismatch(f"{kind}/{use.volume}", f"at most seq {newest}", text_of(use, ours))
        for kind, store_id, use in files
        if store_id == ours and use.seq > newest
    ]


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


def _contradictions(found: StoreInventory) -> list[Mismatch]:
    """Return in what LOCK contradicts META.txt, which is written before it."""
    manifest = found.manifest
    contradictions, by_seq = [], {one.use.seq: one for one in manifest.volumes}
    for line in found.directory.progress:
        named, is_older = by_seq.get(line.seq), line.seq < manifest.active.seq
        if line.store_id != manifest.store_id or (named is None and is_older):
            continue
        if line.boot != manifest.boot and line.seq <= manifest.active.seq:
            continue  # A power loss may have taken what it names.
        start = named.segments[-1].start if named and named.segments else 0
        if named is None or not _has_written(named, start, line):
            use = manifest.active if named is None else named.use
            expected = text_of(use, manifest.store_id)
            contradictions.append(Mismatch(LOCK, expected, str(line)))
    return contradictions


# --- Without META.txt --------------------------------------------------------------


class _Rebuild:
    """META.txt as the volumes have it."""

    def __init__(self, found: StoreInventory, descriptors: Mapping[int, int]) -> None:
        self._found = found
        self._ids = {*descriptors, *found.directory.index_ids()}
        self._mismatches = [
            Mismatch(f"{DATA}/{volume}", "a header", "that it cannot be read")
            for volume in found.unreadable
        ]
        self._is_broken = False  # files of the store do not follow each other
        self._uses: list[VolumeUse] = []  # what all files say they are

    def run(self) -> bool:
        """Find the volumes that follow each other; return false if there are none."""
        found, candidates = self._found, self._candidates()
        if not candidates:
            return False
        store_id = self._store_id(candidates)
        ours = [listed for owner, listed in candidates if owner == store_id]
        ours.sort(key=lambda listed: listed.use.seq, reverse=True)
        chain = self._chain(ours)
        progress = [p for p in found.directory.progress if p.store_id == store_id]
        volumes = self._volumes(chain, progress)
        ids = [listed.use.volume for listed in chain]
        headers = [found.headers[volume] for volume in ids if volume in found.headers]
        probation = [v.use.seq for v in volumes if v.use.ring is Ring.PROBATION]
        found.manifest = Manifest(
            store_id,
            max((header.mount_count for header in headers), default=0)
            + _LOST_MOUNT_COUNTS_MAX,
            max((header.started_ms for header in headers), default=0) * 1000,
            found.directory.boot,
            tuple(volumes),
            probation_first=max(probation, default=0),
        )
        found.is_manifest_lost = True
        if progress:
            found.is_same_boot = 0 != found.manifest.boot == progress[0].boot
        actives = {use.volume for use in found.manifest.actives}
        found.damaged = [v for v in ids if v not in found.headers and v not in actives]
        others = [one.use.volume for owner, one in candidates if owner != store_id]
        found.foreign = [volume for volume in others if volume in found.headers]
        if self._mismatches and (found.unreadable or not found.is_lenient):
            lost = Mismatch(META, "an intact file", "none")
            found.mismatches = [lost, *self._mismatches]
        return True

    def _refuse(self, kind: str, volume: int, expected: str, found: str) -> None:
        self._mismatches.append(Mismatch(f"{kind}/{volume}", expected, found))

    def _candidates(self) -> list[tuple[int, ListedVolume]]:
        """Return what each data file is, or else its index file; first the store id."""
        found, candidates = self._found, list[tuple[int, ListedVolume]]()
        for volume, (use, store_id, *_) in found.headers.items():
            own = store_id, ListedVolume(use, "sealed", VOLUME_HEADER_BYTES)
            other_id, other = indexed = found.index_file(volume) or own
            self._uses += [use, other.use]
            is_same = (other_id, other.use) == (store_id, use)
            candidates.append(indexed if is_same else own)
            if not is_same and other_id == store_id and other.use.seq >= use.seq:
                self._is_broken = True
                expected, text = text_of(other.use, other_id), text_of(use, store_id)
                self._refuse(DATA, volume, expected, text)
        for volume in self._ids - set(found.headers):
            if only := found.index_file(volume):
                self._uses.append(only[1].use)
                candidates.append(only)
        return candidates

    def _store_id(self, candidates: list[tuple[int, ListedVolume]]) -> int:
        """Return the store that LOCK names, or else the one most volumes belong to."""
        stores = Counter(store_id for store_id, _ in candidates).most_common()
        if progress := self._found.directory.progress:
            stores.sort(key=lambda pair: pair[0] != progress[0].store_id)
        chosen = stores[0][0]
        for owner, one in candidates:
            if owner != chosen:
                self._refuse(
                    *(DATA, one.use.volume),
                    *(f"store {chosen:016x}", text_of(one.use, owner)),
                )
        return chosen

    def _chain(self, newest_first: list[ListedVolume]) -> list[ListedVolume]:
        """Return the volumes that lead to the newest of each ring, oldest first."""
        newest = self._found.headers.get(newest_first[0].use.volume)
        oldest_seq = 0 if newest is None else newest.oldest_seq
        valid = [one for one in newest_first if one.use.seq >= oldest_seq]
        chain = list[ListedVolume]()
        for ring in Ring:
            chain += self._chain_of_ring([v for v in valid if v.use.ring is ring])
        return sorted(chain, key=lambda listed: listed.use.seq)

    def _chain_of_ring(self, newest_first: list[ListedVolume]) -> list[ListedVolume]:
        """Return the volumes of a ring that end with the newest, without a break."""
        chain = newest_first[:1]
        for listed in newest_first[1:]:
            last, use = chain[-1].use, listed.use
            header = self._found.headers.get(last.volume)
            # Without a header, only the sequence number tells; it may be of the other ring.
            is_previous = (
                use.seq == last.seq - 1
                if header is None
                else header.previous_salt == listed.salts[-1]
            )
            if not is_previous:
                self._is_broken = True
                expected = f"the volume before {DATA}/{last.volume} (seq {last.seq})"
                self._refuse(DATA, use.volume, expected, f"seq {use.seq}")
                break
            chain.append(listed)
        return chain

    def _volumes(
        self, chain: list[ListedVolume], progress: list[Progress]
    ) -> list[ListedVolume]:
        """Return the volumes of the store; `progress` is what LOCK says of it."""
        if not any(listed.use.ring is Ring.MAIN for listed in chain):
            self._is_broken = True
            self._mismatches.append(Mismatch(DATA, "a volume of ring main", "none"))
        is_confirmed = bool(progress) and all(
            any(_has_written(one, one.end, line) for one in chain) for line in progress
        )
        if progress and not is_confirmed:
            lost = Mismatch(LOCK, "the volume written last", str(progress[0]))
            self._mismatches.append(lost)
        newest = max(self._uses, key=lambda use: use.seq)
        is_confirmed &= newest.seq == chain[-1].use.seq
        is_doubtful = self._is_broken or not is_confirmed
        if self._mismatches and self._found.is_lenient and is_doubtful:
            # Any of these files may be older than what was lost, or come from a copy.
            return [new_volume(newest.volume, newest.seq + 1)]
        actives = {listed.use.ring: listed.use for listed in chain}.values()
        # How far the sealed ones go is not known.
        return [
            ListedVolume(use, "open" if use in actives else "sealed", segments=segments)
            for use, _, _, _, segments in chain
        ]
