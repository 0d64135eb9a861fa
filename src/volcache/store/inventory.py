"""
The inventory of a mount point: which volumes it holds, before any record is read.

META.txt names them. The header of each volume is compared with it, because files can be
replaced: by earlier ones, by those of a copy of the mount point, or of another store. A
data file that does not match is *rejected*: none of its records is used. If its index file
does not match either, the keys of the volume are not known, and a record of an older volume
could be outdated: then the start is refused. If META.txt is lost, it is rebuilt from the
volumes, but only if they agree. PURGE.txt is compared as well, see `purges.py`.

Taking an inventory changes nothing and returns a value; `recovery.py` replays it.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import ForeignDirectoryError
from volcache.store.directory import (
    DATA,
    INDEX,
    META,
    read_whole,
    refuse_other_version,
)
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    Ring,
    VolumeHeader,
    VolumeUse,
    decode_volume_header,
    volume_version,
)
from volcache.store.index_file import IndexContents
from volcache.store.index_format import IndexName, decode_index_header, has_block
from volcache.store.manifest import ListedVolume, Manifest
from volcache.store.purges import NO_PURGES, FoundPurges, compare_purges
from volcache.store.volume import NO_FILE, Volume
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from volcache.store.directory import StoreDirectory
    from volcache.store.format import Segment
    from volcache.store.manifest import VolumeState
    from volcache.store.progress import Progress

# If META.txt is lost, the mount count is not known, only those at which volumes were
# started. At most this many mounts followed, and HOT.txt must not be bound to the number
# of one of them.
_LOST_MOUNT_COUNTS_MAX: Final = 2**16
_LISTED_MAX: Final = 3  # files that the text of a refusal names


class Rejected(NamedTuple):
    """A file that does not belong to the volume that should be there."""

    file: str
    expected: str
    found: str

    def __str__(self) -> str:
        """Return one sentence."""
        return f"{self.file} is {self.found}, expected was {self.expected}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """
    What a mount point holds.

    Attributes:
        manifest: META.txt, or what the volumes say if it is lost.
        is_manifest_lost: META.txt is missing or damaged although there are volumes.
        is_same_boot: The machine has not booted since the last process wrote: what that
            process wrote is there, synced or not.
        headers: The intact volume headers, by volume id.
        damaged: Ids of valid volumes whose header is damaged, missing or unreadable.
        stale: Ids of valid volumes whose header is that of an earlier use, because the
            process ended, or the machine, before the present one was on the disk.
        rejected: Files that belong elsewhere.
        rejected_ids: Ids of valid volumes whose data file is rejected.
        unknown_ids: Those whose index file is rejected as well.
        foreign: Ids of volumes of another store that META.txt does not name.
        purges: What PURGE.txt says.
        refusal: Why a start must not use these files; empty: it may.
    """

    manifest: Manifest
    is_manifest_lost: bool
    is_same_boot: bool
    headers: Mapping[int, VolumeHeader]
    damaged: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    rejected_ids: frozenset[int] = frozenset()
    unknown_ids: frozenset[int] = frozenset()
    foreign: tuple[int, ...] = ()
    purges: FoundPurges = NO_PURGES
    refusal: str = ""

    def open_volumes(
        self, directory: StoreDirectory, descriptors: Mapping[int, int]
    ) -> list[Volume]:
        """
        Return the valid volumes as objects, in the order of a replay; nothing is read.

        Ring probation comes before ring main, each oldest first: see `eviction.py`.
        """
        in_order = sorted(
            self.manifest.volumes, key=lambda listed: listed.use.ring, reverse=True
        )
        return [
            Volume(
                directory.fs,
                descriptors.get(listed.use.volume, NO_FILE),
                use=listed.use,
                store_id=self.manifest.store_id,
                segments=listed.segments,
                started_ms=self._started_ms(listed.use),
            )
            for listed in in_order
        ]

    def _started_ms(self, use: VolumeUse) -> int:
        header = self.headers.get(use.volume)
        return header.started_ms if header is not None and header.use == use else 0


def take_inventory(
    directory: StoreDirectory, descriptors: Mapping[int, int], *, lenient: bool = False
) -> Inventory:
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
    volumes = _take_volumes(directory, descriptors, lenient=lenient)
    return _with_purges(volumes, directory.read_purges(), lenient=lenient)


def _take_volumes(
    directory: StoreDirectory, descriptors: Mapping[int, int], *, lenient: bool
) -> Inventory:
    files = _Files(directory, descriptors)
    manifest, exists = directory.read_manifest()
    if manifest is None:
        if files.headers or files.without_header():
            return _Rebuilt(files, lenient=lenient).inventory()
        if files.damaged and not exists:
            message = (
                f"mount point {directory.root!r} is not a volcache directory: the files"
                " in data/ are not volumes and there is no META.txt; give an empty or a"
                " new directory as mount_point"
            )
            raise ForeignDirectoryError(message)
        return _new_store(directory, is_manifest_lost=exists)
    compared = _compare(files, manifest)
    if not (lenient and compared.refusal):
        return compared
    if _is_outdated(compared, directory.progress) or 2 * len(
        compared.rejected_ids
    ) > len(manifest.volumes):
        return _Rebuilt(files, lenient=True).inventory()
    return _without_unknown(compared)


def _with_purges(
    inventory: Inventory, data: bytes | None, *, lenient: bool
) -> Inventory:
    """
    Return the inventory with what PURGE.txt says.

    Args:
        inventory: Of the volumes.
        data: The contents of PURGE.txt; None if there is none.
        lenient: Instead of a refusal, leave out the volumes that may have purged records.
    """
    manifest = inventory.manifest
    if not manifest.mount_count:  # A new store: nothing can have been purged.
        found = FoundPurges(exists=data is not None)
        return replace(inventory, purges=found)
    found = compare_purges(
        data,
        manifest.store_id,
        manifest.purges,
        oldest_seq=manifest.volumes[0].use.seq,
        newest_seq=manifest.active.seq,
        is_manifest_lost=inventory.is_manifest_lost,
    )
    inventory = replace(inventory, purges=found)
    if not found.refusal:
        if inventory.is_manifest_lost and found.file is not None:
            manifest = manifest._replace(purges=found.file.listed)
        return replace(inventory, manifest=manifest)
    if lenient:
        inventory = replace(inventory, manifest=manifest._replace(purges=None))
        uses = (listed.use for listed in manifest.volumes)
        doubtful = [use for use in uses if use.seq <= found.doubtful_seq]
        return _keep_from(inventory, outdated_bounds(doubtful, manifest))
    reasons = [inventory.refusal, found.refusal]
    return replace(inventory, refusal="; ".join(filter(None, reasons)))


def _new_store(directory: StoreDirectory, *, is_manifest_lost: bool) -> Inventory:
    use = VolumeUse(0, 1, Ring.MAIN, secrets.randbits(64))
    manifest = Manifest(
        secrets.randbits(64), 0, 0, directory.boot(), (ListedVolume(use),)
    )
    return Inventory(
        manifest=manifest,
        is_manifest_lost=is_manifest_lost,
        is_same_boot=False,
        headers={},
    )


class _IndexFacts(NamedTuple):
    """What an index file says of its volume."""

    name: IndexName
    segments: tuple[Segment, ...]
    end: int  # of the last record that it lists


class _Files:
    """
    The headers of the data files, and the first lines of index files where needed.

    Attributes:
        headers: The intact headers, by volume id.
        damaged: Ids of files that have bytes in place of a header.
        unreadable: Ids of files whose header cannot be read.
    """

    def __init__(
        self, directory: StoreDirectory, descriptors: Mapping[int, int]
    ) -> None:
        self.directory = directory
        self.headers: dict[int, VolumeHeader] = {}
        self.damaged: list[int] = []
        self.unreadable: list[int] = []
        for volume, fd in descriptors.items():
            if fd != NO_FILE:
                self._read_header(volume, fd)
        self._ids = {*descriptors, *directory.index_ids()}
        self._index_files: dict[int, _IndexFacts | None] = {}

    def _read_header(self, volume: int, fd: int) -> None:
        try:
            data = self.directory.fs.pread(fd, VOLUME_HEADER_BYTES, 0)
        except OSError:
            self.unreadable.append(volume)
            return
        version = volume_version(data)
        if version is not None:
            refuse_other_version(self.directory.root, f"{DATA}/{volume}", version)
        header = decode_volume_header(data)
        if header is not None and header.use.volume == volume:
            self.headers[volume] = header
        elif any(data):
            self.damaged.append(volume)

    def index_file(self, volume: int) -> _IndexFacts | None:
        """Return what an index file says; None if its first line is not intact."""
        if volume not in self._index_files:
            self._index_files[volume] = self._read_index_file(volume)
        return self._index_files[volume]

    def _read_index_file(self, volume: int) -> _IndexFacts | None:
        data = read_whole(self.directory, self.directory.index_path(volume))
        named = decode_index_header(data)
        if named is None or not has_block(data):
            return None
        version, name = named
        refuse_other_version(self.directory.root, f"{INDEX}/{volume}", version)
        if name.use.volume != volume:
            return None
        contents = IndexContents(data, name)
        for _ in contents.read():
            pass
        return _IndexFacts(name, tuple(contents.segments), contents.volume_end)

    def without_header(self) -> list[_IndexFacts]:
        """Return what the index files of the volumes without a header say."""
        found = (self.index_file(volume) for volume in self._ids - set(self.headers))
        return [facts for facts in found if facts is not None]


def _text_of(use: VolumeUse, store_id: int) -> str:
    volume, seq, _, salt = use
    return f"volume {volume} seq {seq} salt {salt:016x} of store {store_id:016x}"


# --- With META.txt -----------------------------------------------------------------


def _compare(files: _Files, manifest: Manifest) -> Inventory:
    """Compare the files with META.txt."""
    boot = files.directory.boot()
    is_same_boot = bool(boot) and boot == manifest.boot
    comparison = _Comparison(files, manifest, is_same_boot=is_same_boot)
    for listed in manifest.volumes:
        comparison.compare(listed)
    inventory = Inventory(
        manifest=manifest,
        is_manifest_lost=False,
        is_same_boot=is_same_boot,
        headers=files.headers,
        damaged=tuple(comparison.damaged),
        stale=tuple(comparison.stale),
        rejected=tuple(comparison.rejected),
        rejected_ids=frozenset(comparison.rejected_ids),
        unknown_ids=frozenset(comparison.unknown_ids),
        foreign=tuple(_foreign(files, manifest)),
    )
    return _with_refusal(inventory, files.directory.progress)


class _Comparison:
    """Compares the volumes with META.txt; the fields are those of `Inventory`."""

    def __init__(
        self, files: _Files, manifest: Manifest, *, is_same_boot: bool
    ) -> None:
        self._files = files
        self._store_id = manifest.store_id
        self._active = manifest.active
        self._is_same_boot = is_same_boot
        self.damaged: list[int] = []
        self.stale: list[int] = []
        self.rejected: list[Rejected] = []
        self.rejected_ids: set[int] = set()
        self.unknown_ids: set[int] = set()

    def compare(self, listed: ListedVolume) -> None:
        """Compare one volume with its line."""
        use = listed.use
        header = self._files.headers.get(use.volume)
        if header is None:
            # The process may have ended while it wrote the header of a new volume.
            if use != self._active or not listed.is_open:
                self.damaged.append(use.volume)
        elif (header.use, header.store_id) != (use, self._store_id):
            facts = self._files.index_file(use.volume)
            name = None if facts is None else facts.name
            if self._is_stale(listed, header, name):
                self.stale.append(use.volume)
            else:
                self._reject(use, header, name)

    def _is_stale(
        self, listed: ListedVolume, header: VolumeHeader, name: IndexName | None
    ) -> bool:
        """
        Return whether a crash explains that a header is that of an earlier use.

        A new one is written after META.txt, and not synced; then LOCK names the volume.
        """
        if header.store_id != self._store_id or header.use.seq >= listed.use.seq:
            return False
        if not self._is_same_boot:
            return listed.state != "synced"
        progress = self._files.directory.progress
        is_written = any(line.salt in listed.salts for line in progress)
        is_written |= name == IndexName(listed.use, self._store_id)
        return listed.use == self._active and listed.is_open and not is_written

    def _reject(
        self, use: VolumeUse, header: VolumeHeader, name: IndexName | None
    ) -> None:
        expected = _text_of(use, self._store_id)
        found = _text_of(header.use, header.store_id)
        self.rejected.append(Rejected(f"{DATA}/{use.volume}", expected, found))
        self.rejected_ids.add(use.volume)
        if name == IndexName(use, self._store_id):
            return
        self.unknown_ids.add(use.volume)
        if name is not None:
            found = _text_of(*name)
            self.rejected.append(Rejected(f"{INDEX}/{use.volume}", expected, found))


def _foreign(files: _Files, manifest: Manifest) -> Iterator[int]:
    listed = {volume.use.volume for volume in manifest.volumes}
    for volume, header in files.headers.items():
        if volume not in listed and header.store_id != manifest.store_id:
            yield volume


def _newer(inventory: Inventory) -> list[Rejected]:
    """Return the data files of this store that are newer than META.txt."""
    manifest = inventory.manifest
    return [
        Rejected(
            f"{DATA}/{volume}",
            f"at most seq {manifest.active.seq}",
            _text_of(header.use, header.store_id),
        )
        for volume, header in inventory.headers.items()
        if header.store_id == manifest.store_id and header.use.seq > manifest.active.seq
    ]


def _is_outdated(inventory: Inventory, progress: Sequence[Progress]) -> bool:
    """Return whether META.txt is older than a data file or LOCK."""
    return bool(_newer(inventory) or _contradiction(inventory.manifest, progress))


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


def _contradiction(manifest: Manifest, progress: Sequence[Progress]) -> Rejected | None:
    """Return in what LOCK contradicts META.txt, which is written before it."""
    contradictions = (_contradicts(manifest, line) for line in progress)
    return next((found for found in contradictions if found is not None), None)


def _contradicts(manifest: Manifest, progress: Progress) -> Rejected | None:
    if progress.store_id != manifest.store_id:
        return None
    if progress.boot != manifest.boot and progress.seq <= manifest.active.seq:
        return None  # A power loss may have taken what it names.
    named = [one for one in manifest.volumes if one.use.seq == progress.seq]
    for listed in named:
        start = listed.segments[-1].start if listed.segments else 0
        if _has_written(listed, start, progress):
            return None
    if not named and progress.seq < manifest.active.seq:
        return None
    expected = named[0].use if named else manifest.active
    return Rejected(
        "LOCK",
        _text_of(expected, manifest.store_id),
        f"of seq {progress.seq} salt {progress.salt:016x} end {progress.end}",
    )


def _with_refusal(inventory: Inventory, progress: Sequence[Progress]) -> Inventory:
    """Return the inventory with the reason why it must not be used, if there is one."""
    newer, rejected = _newer(inventory), inventory.rejected
    lock = _contradiction(inventory.manifest, progress)
    number = len(inventory.manifest.volumes)
    if newer:
        refusal = (
            f"{META} is older than the volumes, or a volume is that of a copy of this"
            f" mount point: {_some(newer)}; put back the files that belong together"
        )
    elif lock is not None:
        refusal = (
            f"{META} and LOCK do not belong together: {lock}; put back the right {META},"
            " or remove LOCK if it is not of this mount point"
        )
    elif 2 * len(inventory.rejected_ids) > number:
        refusal = (
            f"{len(inventory.rejected_ids)} of {counted(number, 'volume')} do not match"
            f" {META}: {_some(rejected)}; put back the right {META} or the right volumes"
        )
    elif inventory.unknown_ids:
        refusal = (
            f"files do not match {META}, so that it is unknown which older values they"
            f" replaced: {_some(rejected)}; put back the right files"
        )
    else:
        return inventory
    return replace(inventory, refusal=refusal)


def _some(rejected: Sequence[Rejected]) -> str:
    shown = "; ".join(map(str, rejected[:_LISTED_MAX]))
    more = len(rejected) - _LISTED_MAX
    return f"{shown}; and {more} more" if more > 0 else shown


def _without_unknown(inventory: Inventory) -> Inventory:
    """Leave out the volumes whose keys are not known, and those that may be outdated."""
    listed_volumes = inventory.manifest.volumes
    bounds = outdated_bounds(
        [v.use for v in listed_volumes if v.use.volume in inventory.unknown_ids],
        inventory.manifest,
    )
    return replace(_keep_from(inventory, bounds), unknown_ids=frozenset(), refusal="")


def _keep_from(inventory: Inventory, bounds: Mapping[Ring, int]) -> Inventory:
    """Leave out the volumes with a lower sequence number; `bounds` are by ring."""
    listed_volumes = inventory.manifest.volumes
    kept = tuple(v for v in listed_volumes if v.use.seq >= bounds[v.use.ring])
    newest = listed_volumes[-1].use
    has_main = any(listed.use.ring is Ring.MAIN for listed in kept)
    if not has_main or kept[-1].use != newest:
        # If the newest one is left out, META.txt must not be older than its header.
        place = next(v.use.volume for v in reversed(listed_volumes) if v not in kept)
        kept += (following_volume(newest._replace(volume=place)),)
    manifest = inventory.manifest._replace(volumes=kept)
    return replace(inventory, manifest=manifest)


def outdated_bounds(
    unknown: Iterable[VolumeUse], manifest: Manifest
) -> dict[Ring, int]:
    """
    Return for each ring below which sequence number records may be outdated.

    Args:
        unknown: Volumes of which not all keys are known.
        manifest: Names all volumes.
    """
    bounds = dict.fromkeys(Ring, 0)
    for use in unknown:
        bounds[use.ring] = max(bounds[use.ring], use.seq + 1)
    if bounds[Ring.MAIN]:
        # Records of these volumes may have been copied to ring main, and replaced there.
        first = manifest.probation_first
        bounds[Ring.PROBATION] = max(bounds[Ring.PROBATION], first + 1)
    return bounds


def following_volume(use: VolumeUse) -> ListedVolume:
    """Return a new, empty volume of ring main in the place of one that is dropped."""
    return ListedVolume(
        VolumeUse(use.volume, use.seq + 1, Ring.MAIN, secrets.randbits(64))
    )


# --- Without META.txt --------------------------------------------------------------


class _Candidate(NamedTuple):
    """A volume that a header or an index file names."""

    use: VolumeUse
    store_id: int
    header: VolumeHeader | None
    segments: tuple[Segment, ...]  # that its index file names
    end: int  # of the last record in its index file

    def listed(self, state: VolumeState) -> ListedVolume:
        """Return its line for META.txt."""
        return ListedVolume(self.use, state, segments=self.segments)


class _Rebuilt:
    """META.txt as the volumes have it."""

    def __init__(self, files: _Files, *, lenient: bool) -> None:
        self._files = files
        self._lenient = lenient
        self._progress = files.directory.progress
        self._refusals: list[str] = []
        self._is_broken = False  # files of the store do not follow each other
        self._names: list[IndexName] = []  # what all files say they are

    def inventory(self) -> Inventory:
        """Return the volumes that follow each other, from the newest back."""
        candidates = self._candidates()
        store_id = self._store_id(candidates)
        ours = [found for found in candidates if found.store_id == store_id]
        ours.sort(key=lambda found: found.use.seq, reverse=True)
        chain = self._chain(ours)
        if not any(found.use.ring is Ring.MAIN for found in chain):
            self._is_broken = True
            self._refusals.append("there is no volume of ring main; put back its files")
        progress = [line for line in self._progress if line.store_id == store_id]
        is_confirmed = bool(progress) and all(
            any(_has_written(found.listed("open"), found.end, line) for found in chain)
            for line in progress
        )
        if progress and not is_confirmed:
            self._refusals.append(
                "LOCK names the volume that was written last, and it is not there; put it"
                " back, or remove LOCK if it is not of this mount point"
            )
        newest = max((name.use for name in self._names), key=lambda use: use.seq)
        is_confirmed &= newest.seq == chain[-1].use.seq
        is_doubtful = self._is_broken or not is_confirmed
        if self._refusals and self._lenient and is_doubtful:
            # Any of these files may be older than what was lost, or that of a copy.
            volumes = [following_volume(newest)]
        else:
            # How far the sealed ones go is not known.
            volumes = [found.listed("sealed") for found in chain]
            newest_of = {found.use.ring: at for at, found in enumerate(chain)}
            for at in newest_of.values():
                volumes[at] = chain[at].listed("open")
        headers = [found.header for found in chain if found.header is not None]
        boot = self._files.directory.boot()
        manifest = Manifest(
            store_id,
            max((header.mount_count for header in headers), default=0)
            + _LOST_MOUNT_COUNTS_MAX,
            max((header.started_ms for header in headers), default=0) * 1000,
            boot,
            tuple(volumes),
            probation_first=max(
                (v.use.seq for v in volumes if v.use.ring is Ring.PROBATION), default=0
            ),
        )
        return Inventory(
            manifest=manifest,
            is_manifest_lost=True,
            is_same_boot=bool(progress) and 0 != boot == progress[0].boot,
            headers=self._files.headers,
            damaged=tuple(
                found.use.volume
                for found in chain
                if found.header is None and found.use not in manifest.actives
            ),
            foreign=tuple(
                found.use.volume
                for found in candidates
                if found.store_id != store_id and found.header is not None
            ),
            refusal=self._refusal(),
        )

    def _refusal(self) -> str:
        unreadable = [f"{DATA}/{volume}" for volume in self._files.unreadable]
        if unreadable:
            self._refusals.append(f"{', '.join(unreadable)} cannot be read")
        elif self._lenient:
            return ""
        if not self._refusals:
            return ""
        return f"{META} is missing or damaged, and {'; '.join(self._refusals)}"

    def _candidates(self) -> list[_Candidate]:
        """Return what each data file is, or else its index file."""
        files, found = self._files, list[_Candidate]()
        for volume, header in files.headers.items():
            name = IndexName(header.use, header.store_id)
            nothing = _IndexFacts(name, (), VOLUME_HEADER_BYTES)
            facts = files.index_file(volume) or nothing
            other = facts.name
            self._names += [name, other]
            _, segments, end = facts if other == name else nothing
            found.append(_Candidate(*name, header, segments, end))
            if (
                other.store_id == name.store_id
                and other.use.seq >= name.use.seq
                and other != name
            ):
                self._is_broken = True
                self._refusals.append(
                    f"{DATA}/{volume} and {INDEX}/{volume} do not belong together:"
                    f" {_text_of(*name)} and {_text_of(*other)}"
                )
        for name, segments, end in files.without_header():
            self._names.append(name)
            found.append(_Candidate(*name, None, segments, end))
        return found

    def _store_id(self, candidates: list[_Candidate]) -> int:
        """Return the store that LOCK names, or else the one most volumes belong to."""
        counted = Counter(found.store_id for found in candidates).most_common()
        if self._progress:
            named = self._progress[0].store_id
            counted.sort(key=lambda pair: pair[0] != named)
        if len(counted) > 1:
            others = [f for f in candidates if f.store_id != counted[0][0]]
            names = ", ".join(f"{DATA}/{f.use.volume}" for f in others[:_LISTED_MAX])
            self._refusals.append(
                f"the volumes belong to {len(counted)} stores: {names} to another one"
                f" than the rest ({counted[0][0]:016x}); move away what does not belong"
                " here"
            )
        return counted[0][0]

    def _chain(self, newest_first: list[_Candidate]) -> list[_Candidate]:
        """Return the volumes that lead to the newest of each ring, oldest first."""
        newest = newest_first[0].header
        oldest_seq = 0 if newest is None else newest.oldest_seq
        chain: list[_Candidate] = []
        for ring in Ring:
            found = [
                one
                for one in newest_first
                if one.use.ring is ring and one.use.seq >= oldest_seq
            ]
            chain += self._chain_of_ring(found)
        return sorted(chain, key=lambda found: found.use.seq)

    def _chain_of_ring(self, newest_first: list[_Candidate]) -> list[_Candidate]:
        """Return the volumes of a ring that end with the newest, without a break."""
        chain, following = _sequence(newest_first)
        if following is not None:
            self._is_broken = True
            last = chain[-1].use
            self._refusals.append(
                f"no file is the volume before {DATA}/{last.volume} (seq {last.seq}), but"
                f" there are older ones, such as {DATA}/{following.use.volume} (seq"
                f" {following.use.seq}); put back the right files"
            )
        return chain


def _sequence(
    newest_first: list[_Candidate],
) -> tuple[list[_Candidate], _Candidate | None]:
    """Return the volumes of a ring up to the first break, and the one after it."""
    chain = newest_first[:1]
    for found in newest_first[1:]:
        last = chain[-1]
        # Without a header, only the sequence number tells; it may be of the other ring.
        is_previous = (
            found.use.seq == last.use.seq - 1
            if last.header is None
            else last.header.previous_salt == found.listed("open").salts[-1]
        )
        if not is_previous:
            return chain, found
        chain.append(found)
    return chain, None
