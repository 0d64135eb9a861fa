"""
The reclaim of one volume, in Python and in the native core: which records are copied.

Both get the same records. The native index knows sizes to an eighth only, so the sizes
here are the largest of their class, and limits lie between classes.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

from support.native import needs_native
from support.stores import UnsyncedFileSystem
from volcache.errors import DamagedRecordError
from volcache.store import native
from volcache.store.eviction import HITS_MAX, Rates, Terms
from volcache.store.format import (
    RECORD_OVERHEAD_BYTES,
    VOLUME_HEADER_BYTES,
    Ring,
    VolumeUse,
    decode_record,
)
from volcache.store.index import SHARES, Step
from volcache.store.reclaim import make_reclaim
from volcache.store.stats import Fate
from volcache.store.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from volcache.store.format import Record
    from volcache.store.reclaim import Reclaim

VOLUME_BYTES: Final = 256 * 1024
SIZE: Final = 1024
NOW_MS: Final = 1_790_000_000_000
EVERYTHING: Final = 1 << 40
# One hit is needed, whatever the size.
TERMS: Final = Terms((1.0,) * 5, (1,) * 6, HITS_MAX, is_probation=True)
MAIN_TERMS: Final = TERMS._replace(hits_taken=1, is_probation=False)


class Disk(UnsyncedFileSystem):
    """Records reads and writes; fails those that a test names."""

    def __init__(self) -> None:
        """Fail nothing."""
        self.calls: list[tuple[str, int, int, int]] = []  # name, fd, length, offset
        self.refused: dict[str, int] = {}  # error numbers by name

        def pread(fd: int, length: int, offset: int) -> bytes:
            self._note("pread", fd, length, offset)
            return os.pread(fd, length, offset)

        def pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
            self._note("pwritev", fd, sum(map(len, buffers)), offset)
            return os.pwritev(fd, buffers, offset)

        self.pread = pread
        self.pwritev = pwritev  # type: ignore[assignment]

    def _note(self, name: str, fd: int, length: int, offset: int) -> None:
        self.calls.append((name, fd, length, offset))
        if name in self.refused:
            code = self.refused[name]
            raise OSError(code, os.strerror(code))

    def count(self, name: str) -> int:
        """Return how often a function was called."""
        return sum(call[0] == name for call in self.calls)


class World:
    """
    An index, and three volumes: one that is reclaimed and two that are written.

    Each byte that is put earns two tokens.
    """

    def __init__(self, folder: Path, ring: Ring = Ring.PROBATION) -> None:
        self.disk = Disk()
        self.index: Any = native.make_index(
            self.disk, 1, volumes=4, volume_bytes=VOLUME_BYTES, expected=100
        )
        self.index.set_policy(Rates(0.0, 2.0, 1e9, (0, 0)))
        self.fds: list[int] = []
        self.source = self._volume(folder, 0, ring)
        self.target = self._volume(folder, 1, Ring.MAIN)
        self.spare = self._volume(folder, 2, Ring.MAIN)
        self._reclaim: Reclaim | None = None

    def _volume(self, folder: Path, number: int, ring: Ring) -> Volume:
        self.fds.append(self.disk.open(str(folder / str(number)), create=True))
        use = VolumeUse(number, 10 + number, ring, 0x1234567 << number)
        volume = Volume(self.disk, self.fds[-1], use=use, store_id=7)
        volume.allocate(VOLUME_BYTES)
        volume.start(NOW_MS, mount_count=1, oldest_seq=10, previous_salt=0)
        self.index.add_volume(volume.seq)
        self.index.bind_volume(volume.seq, volume.fd, volume.id, volume.salts)
        # Volumes of one ring follow each other.
        self.index.set_age(volume.seq, ring, number * VOLUME_BYTES, volume.end)
        return volume

    def put(  # noqa: PLR0913 - The fields of a record.
        self,
        key: bytes,
        size: int = SIZE,
        *,
        to: Volume | None = None,
        value: bytes | None = None,
        content_type: bytes = b"",
        content_encoding: bytes = b"",
        cache_control: bytes = b"",
        stored_us: int = 1,
        expires_ms: int = 0,
        flags: int = 0,
    ) -> int:
        """Append a record of a size, set its position, and return the offset."""
        volume = to or self.source
        if value is None:
            value = key * (size // len(key) + 1)
            value = value[: size - RECORD_OVERHEAD_BYTES - len(key)]
        offset, size, _ = volume.writer.append(
            key,
            value,
            content_type,
            content_encoding,
            cache_control,
            stored_us,
            expires_ms,
            flags,
            False,
            False,
        )
        self.index.put(key, volume.seq, offset, size)
        return offset

    def hit(self, key: bytes, times: int = 1) -> None:
        """Count reads."""
        for _ in range(times):
            self.index.hit(key)

    def put_hit(self, key: bytes, size: int = SIZE, **fields: Any) -> int:
        """Append a record that is kept if there are tokens."""
        offset = self.put(key, size, **fields)
        self.hit(key)
        return offset

    def begin(self, terms: Terms = TERMS) -> Fate:
        """Begin the reclaim, and search the whole index."""
        volume = self.source
        self._reclaim = make_reclaim(self.index, self.disk, volume)
        self.disk.calls.clear()
        return self._reclaim.collect(SHARES, terms)

    def step(
        self,
        terms: Terms = TERMS,
        *,
        end: int = EVERYTHING,
        copy_bytes: int = EVERYTHING,
        to: Volume | None = None,
        nowhere: bool = False,
    ) -> Step:
        """Do one step; `nowhere`: nothing more is copied."""
        assert self._reclaim is not None
        target = None if nowhere else to or self.target
        return self._reclaim.step(end, copy_bytes, terms, target, NOW_MS)

    def run(self, terms: Terms = TERMS) -> Fate:
        """Reclaim the volume without errors, and return what has happened."""
        fate = self.begin(terms)
        step = self.step(terms)
        assert (step.why, step.error) == ("done", None)
        return fate.plus(step.fate)

    def place(self, key: bytes) -> tuple[int, int] | None:
        """Return sequence number and offset of a key."""
        position = self.index.find(key)
        return None if position is None else (position[0], position[1])

    def record(self, key: bytes) -> Record:
        """Return the record of a key, read and checked."""
        position = self.index.find(key)
        assert position is not None
        volumes = {v.seq: v for v in (self.source, self.target, self.spare)}
        volume = volumes[position[0]]
        data = os.pread(volume.fd, position[2], position[1])
        found = decode_record(data, volume.identity_at(position[1]), position[1], key)
        assert found is not None
        return found

    def is_ghost(self, key: bytes) -> bool:
        """Return whether a key is in the ghost; its volume is dropped first."""
        self.index.reclaim(self.source.seq)
        self.index.miss(key)  # Otherwise it was not asked for.
        return bool(self.index.ring_for(key) is Ring.MAIN)

    def close(self) -> None:
        """Close the files."""
        self.index.close()
        for fd in self.fds:
            self.disk.close(fd)


@pytest.fixture(params=["python", pytest.param("native", marks=needs_native)])
def _kind(request: pytest.FixtureRequest) -> Iterator[None]:
    with mock.patch.object(native, "IS_NATIVE", new=request.param == "native"):
        yield


@pytest.fixture
def world(tmp_path: Path, _kind: None) -> Iterator[World]:
    """A volume of ring probation that is reclaimed."""
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def main_world(tmp_path: Path, _kind: None) -> Iterator[World]:
    """A volume of ring main that is reclaimed."""
    made = World(tmp_path, Ring.MAIN)
    yield made
    made.close()


# --- What is kept ------------------------------------------------------------------


def test_record_with_enough_hits_is_copied(world: World) -> None:
    """It is found in the target, and the tokens are spent."""
    world.put_hit(b"kept")
    before = world.index.heat().tokens

    assert world.run() == Fate(copied=1, copied_bytes=SIZE)

    assert world.place(b"kept") == (world.target.seq, VOLUME_HEADER_BYTES)
    assert world.index.heat().tokens == before - SIZE
    assert world.index.live(world.source.seq)[0] == 0
    assert world.index.live(world.target.seq)[0] == 1
    world.index.reclaim(world.source.seq)
    assert world.record(b"kept").value.startswith(b"keptkept")


def test_copy_has_every_field_of_the_record(world: World) -> None:
    """Value, type, encoding, flags, expiry and the time when it was stored."""
    world.put_hit(
        b"k\x00\xff",
        value=bytes(range(256)) * 9,
        content_type=b"text/plain; charset=utf-8",
        content_encoding=b"gzip",
        stored_us=1_789_000_000_123_456,
        expires_ms=NOW_MS + 1,
        flags=0xDEADBEEF,
    )
    before = world.record(b"k\x00\xff")
    world.run()
    after = world.record(b"k\x00\xff")

    assert (after.volume, after.offset) == (world.target.id, VOLUME_HEADER_BYTES)
    assert after == before._replace(volume=after.volume, offset=after.offset)


@pytest.mark.parametrize("size", [72, 4096, 65_536, 196_608])
def test_copy_costs_one_read_and_one_write(world: World, size: int) -> None:
    """Of at most a page more than the record."""
    offset = world.put_hit(b"k", size)
    world.run()

    [read, write] = world.disk.calls
    assert read == ("pread", world.source.fd, size, offset)
    assert (write[0], write[1]) == ("pwritev", world.target.fd)
    assert size <= write[2] < size + 4096


def test_record_without_hits_is_neither_read_nor_moved(world: World) -> None:
    """Until its volume is dropped it can be read."""
    place = (world.source.seq, world.put(b"unused"))

    assert world.run() == Fate(unused=1)

    assert world.disk.calls == []
    assert world.place(b"unused") == place
    assert world.index.live(world.source.seq)[0] == 1


def test_record_that_was_replaced_is_not_counted(world: World) -> None:
    """In the same volume or in another one, however often it was read before."""
    world.put_hit(b"same")
    world.put_hit(b"other")
    world.put_hit(b"deleted")
    last = world.put_hit(b"same")
    elsewhere = world.put(b"other", to=world.target)
    world.index.set_tombstone(b"deleted", world.source.seq, last + SIZE, 71)

    assert world.run() == Fate(copied=1, copied_bytes=SIZE)

    assert world.disk.count("pread") == 1
    assert world.place(b"other") == (world.target.seq, elsewhere)
    assert world.place(b"deleted") is None
    assert world.index.is_deleted(b"deleted")
    assert world.place(b"same") == (world.target.seq, elsewhere + SIZE)


def test_records_of_other_volumes_are_not_looked_at(world: World) -> None:
    """They stay where they are."""
    place = (world.spare.seq, world.put_hit(b"k", to=world.spare))

    assert world.run() == Fate()
    assert world.place(b"k") == place


@pytest.mark.parametrize(
    ("size", "hits", "is_kept"),
    [
        (1024, 0, True),
        (1280, 0, False),
        (2048, 1, True),
        (2048, 2, True),
        (4096, 1, False),
        (4096, 2, True),
        (8192, 2, False),
        (8192, 3, True),
    ],
)
def test_need_depends_on_the_size(
    world: World, size: int, hits: int, *, is_kept: bool
) -> None:
    """The larger a record, the more hits."""
    terms = TERMS._replace(
        limits=(256.0, 512.0, 1100.0, 3900.0, 7800.0), needs=(0, 0, 0, 1, 2, 3)
    )
    world.put(b"k", size)
    world.hit(b"k", hits)

    fate = world.run(terms)

    assert (fate.copied, fate.unused) == (is_kept, not is_kept)


@pytest.mark.parametrize("missing", [0, 1])
def test_copy_needs_tokens_for_its_size(world: World, missing: int) -> None:
    """Without them it is dropped; with exactly so many, it is copied."""
    world.put_hit(b"k", 2048)
    world.index.set_policy(Rates(0.0, 1.0, 2048.0 - missing, (0, 0)))
    world.put(b"other", 1024, to=world.spare)  # The tokens are at their maximum now.
    assert world.index.heat().tokens == 2048 - missing

    expected = Fate(unpaid=1) if missing else Fate(copied=1, copied_bytes=2048)
    assert world.run() == expected
    assert world.index.heat().tokens == (2047 if missing else 0)
    if missing:
        assert world.place(b"k") == (world.source.seq, VOLUME_HEADER_BYTES)


def test_tokens_are_spent_in_the_order_of_the_volume(world: World) -> None:
    """A smaller record behind one that is too large is copied."""
    world.put_hit(b"large", 8192)
    world.put_hit(b"small", 1024)
    world.put_hit(b"last", 1024)
    world.index.set_policy(Rates(0.0, 1.0, 1500.0, (0, 0)))
    world.put(b"other", 2048, to=world.spare)

    fate = world.run()

    assert fate == Fate(copied=1, copied_bytes=1024, unpaid=2)
    assert world.place(b"small") == (world.target.seq, VOLUME_HEADER_BYTES)


@pytest.mark.parametrize(("left_ms", "is_kept"), [(-1, False), (0, False), (1, True)])
def test_expired_record_is_not_copied(
    world: World, left_ms: int, *, is_kept: bool
) -> None:
    """Nothing is written for it."""
    world.put_hit(b"k", expires_ms=NOW_MS + left_ms)

    fate = world.run()

    assert (fate.copied, fate.expired) == (is_kept, not is_kept)
    assert world.disk.count("pwritev") == is_kept


def test_copies_are_in_the_order_of_the_volume(world: World) -> None:
    """Also if there are many, and not all are copied."""
    keys = [b"%d" % number for number in range(400)]
    for number, key in enumerate(keys):
        world.put(key, 448)
        world.hit(key, number % 3)
    fate = world.run()

    kept = [key for number, key in enumerate(keys) if number % 3]
    assert fate == Fate(len(kept), 448 * len(kept), unused=400 - len(kept))
    places = [world.place(key) for key in kept]
    assert places == [
        (world.target.seq, VOLUME_HEADER_BYTES + 448 * at) for at in range(len(kept))
    ]


# --- Hits and the ghost ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terms", "before", "after"),
    [(TERMS, 1, 0), (TERMS, 3, 0), (MAIN_TERMS, 1, 0), (MAIN_TERMS, 3, 2)],
)
def test_copy_has_fewer_hits(
    world: World, terms: Terms, before: int, after: int
) -> None:
    """From probation none, from ring main one less."""
    world.put(b"k")
    world.hit(b"k", before)
    world.run(terms)

    assert world.index.hits(b"k") == after


def test_what_probation_drops_goes_into_the_ghost(world: World) -> None:
    """For want of hits or of tokens; not what is copied."""
    world.index.size_ghost(100)
    world.put(b"unused")
    world.put_hit(b"kept")
    world.put_hit(b"unpaid", 65_536)
    world.index.set_policy(Rates(0.0, 1.0, 2048.0, (0, 0)))
    world.put(b"other", 2048, to=world.spare)

    assert world.run() == Fate(copied=1, copied_bytes=SIZE, unused=1, unpaid=1)

    world.index.reclaim(world.target.seq)
    assert [world.is_ghost(key) for key in (b"unused", b"unpaid", b"kept")] == [
        True,
        True,
        False,
    ]


def test_what_ring_main_drops_does_not(main_world: World) -> None:
    """It has had its chance."""
    main_world.index.size_ghost(100)
    main_world.put(b"unused")

    assert main_world.run(MAIN_TERMS) == Fate(unused=1)
    assert not main_world.is_ghost(b"unused")


def test_record_of_ring_main_is_copied_to_its_end(main_world: World) -> None:
    """It stays there as long as it is read."""
    main_world.put_hit(b"k")

    assert main_world.run(MAIN_TERMS) == Fate(1, SIZE)
    assert main_world.place(b"k") == (main_world.target.seq, VOLUME_HEADER_BYTES)


# --- Errors ------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["header", "value", "truncated", "other key"])
def test_damaged_record_is_forgotten_and_passed(world: World, where: str) -> None:
    """It is a miss from now on; its error names the place. The next one is copied."""
    if where == "other key":
        offset = world.put_hit(b"that")
        world.index.put(b"lost", world.source.seq, offset, SIZE)
        world.hit(b"lost")
        world.index.forget(b"that", world.source.seq, offset)
    else:
        offset = world.put_hit(b"lost")
    world.put_hit(b"next")
    at = {"header": 6, "value": SIZE - 1}.get(where)
    if at is not None:
        byte = os.pread(world.source.fd, 1, offset + at)
        os.pwrite(world.source.fd, bytes([byte[0] ^ 1]), offset + at)
    elif where == "truncated":
        os.ftruncate(world.source.fd, offset + 100)
    world.begin()

    step = world.step()

    assert (step.why, step.fate) == ("damaged", Fate(damaged=1))
    assert isinstance(step.error, DamagedRecordError)
    assert str(offset) in str(step.error)
    assert world.index.is_deleted(b"lost")
    assert world.index.find(b"lost") is None
    if where != "truncated":
        assert world.step() == Step("done", Fate(1, SIZE))
        assert world.record(b"next").value.startswith(b"nextnext")


def test_record_that_cannot_be_read_stays_and_is_passed(world: World) -> None:
    """The disk may answer again before the volume is dropped."""
    place = (world.source.seq, world.put_hit(b"k"))
    world.put_hit(b"next")
    world.begin()
    world.disk.refused["pread"] = errno.EIO

    step = world.step()

    assert (step.why, step.fate) == ("unreadable", Fate(unreadable=1))
    assert isinstance(step.error, OSError)
    assert step.error.errno == errno.EIO
    assert world.place(b"k") == place
    assert not world.index.is_deleted(b"k")
    world.disk.refused.clear()
    assert world.step() == Step("done", Fate(1, SIZE))


def test_record_that_cannot_be_written_stays_and_is_passed(world: World) -> None:
    """Tokens are not spent, and the place is used for the next record."""
    place = (world.source.seq, world.put_hit(b"k"))
    world.put_hit(b"next")
    tokens = world.index.heat().tokens
    world.begin()
    world.disk.refused["pwritev"] = errno.ENOSPC

    step = world.step()

    assert (step.why, step.fate) == ("refused", Fate())
    assert isinstance(step.error, OSError)
    assert step.error.errno == errno.ENOSPC
    assert world.place(b"k") == place
    assert world.index.heat().tokens == tokens
    assert world.target.end == VOLUME_HEADER_BYTES
    world.disk.refused.clear()
    assert world.step() == Step("done", Fate(1, SIZE))
    assert world.place(b"next") == (world.target.seq, VOLUME_HEADER_BYTES)


# --- The target --------------------------------------------------------------------


def test_record_that_finds_no_room_is_copied_to_the_next_target(world: World) -> None:
    """It is not passed; what was copied before is counted."""
    for key in (b"one", b"two", b"three"):
        world.put_hit(key)
    world.target.writer.capacity = VOLUME_HEADER_BYTES + 2 * SIZE + SIZE - 1
    world.begin()

    assert world.step() == Step("full", Fate(2, 2 * SIZE))
    assert world.step() == Step("full", Fate())
    assert world.step(to=world.spare) == Step("done", Fate(1, SIZE))

    assert world.place(b"three") == (world.spare.seq, VOLUME_HEADER_BYTES)
    assert world.record(b"two").value.startswith(b"twotwo")


def test_record_that_fits_exactly_is_copied(world: World) -> None:
    """Its end may be the end of the volume."""
    world.put_hit(b"k")
    world.target.writer.capacity = VOLUME_HEADER_BYTES + SIZE

    assert world.run() == Fate(1, SIZE)
    assert world.target.end == world.target.capacity


def test_record_that_is_larger_than_the_target_is_left(world: World) -> None:
    """No other volume would have room for it; a smaller one behind it is copied."""
    world.put_hit(b"large", 8192)
    world.put_hit(b"small")
    world.target.writer.capacity = VOLUME_HEADER_BYTES + 8191

    assert world.run() == Fate(1, SIZE, left=1)
    assert world.place(b"small") == (world.target.seq, VOLUME_HEADER_BYTES)


def test_target_that_is_not_written_any_more_is_full(world: World) -> None:
    """Its last sync has failed, say."""
    world.put_hit(b"k")
    world.target.writer.capacity = 0
    world.begin()

    assert world.step() == Step("full", Fate())
    assert world.step(to=world.spare) == Step("done", Fate(1, SIZE))


def test_without_a_target_what_has_hits_is_left(world: World) -> None:
    """It is dropped with its volume, and goes into the ghost."""
    world.index.size_ghost(100)
    world.put_hit(b"k")
    assert world.begin() == Fate()

    assert world.step(nowhere=True) == Step("done", Fate(left=1))
    assert world.disk.calls == []
    assert world.is_ghost(b"k")


# --- Steps -------------------------------------------------------------------------


def test_step_stops_at_a_record_that_begins_at_the_end(world: World) -> None:
    """The next one goes on there."""
    offsets = [world.put_hit(b"%d" % number) for number in range(10)]
    world.begin()

    assert world.step(end=offsets[0]) == Step("more", Fate())
    assert world.step(end=offsets[3]) == Step("more", Fate(3, 3 * SIZE))
    assert world.step(end=offsets[3] + 1) == Step("more", Fate(1, SIZE))
    assert world.step(end=offsets[2]) == Step("more", Fate())
    assert world.step(end=offsets[9] + SIZE) == Step("done", Fate(6, 6 * SIZE))
    assert world.step(end=offsets[9] + SIZE) == Step("done", Fate())


def test_step_stops_when_enough_was_copied(world: World) -> None:
    """With the record that reaches the number."""
    for number in range(5):
        world.put_hit(b"%d" % number)
    world.begin()

    assert world.step(copy_bytes=1) == Step("more", Fate(1, SIZE))
    assert world.step(copy_bytes=2 * SIZE) == Step("more", Fate(2, 2 * SIZE))
    assert world.step(copy_bytes=2 * SIZE + 1) == Step("done", Fate(2, 2 * SIZE))


@pytest.mark.slow
def test_search_in_parts_finds_every_record_once(world: World) -> None:
    """In whatever parts; searching on after the last one finds nothing."""
    keys = [b"%d" % number for number in range(300)]
    for number, key in enumerate(keys):
        world.put(key, 448)
        world.hit(key, number % 2)
    reclaim = make_reclaim(world.index, world.disk, world.source)
    fate = Fate()
    for shares in (1, 2, 30, 31, 1, 64):
        fate = fate.plus(reclaim.collect(shares, TERMS))

    assert fate == Fate(unused=150)
    step = reclaim.step(EVERYTHING, EVERYTHING, TERMS, world.target, NOW_MS)
    assert step == Step("done", Fate(150, 150 * 448))


def test_record_that_is_replaced_meanwhile_is_not_moved(world: World) -> None:
    """Replaced or deleted between the search and the steps, or between two steps."""
    offsets = [world.put_hit(key) for key in (b"first", b"second", b"third", b"last")]
    world.begin()
    first = world.put(b"first", to=world.spare)
    assert world.step(end=offsets[1]) == Step("more", Fate())
    second = world.put(b"second", to=world.spare)
    world.index.set_tombstone(b"third", world.spare.seq, second + SIZE, 69)

    assert world.step() == Step("done", Fate(1, SIZE))

    assert world.place(b"first") == (world.spare.seq, first)
    assert world.place(b"second") == (world.spare.seq, second)
    assert world.place(b"third") is None
    assert world.place(b"last") == (world.target.seq, VOLUME_HEADER_BYTES)
    assert world.disk.count("pread") == 1


def test_record_that_is_read_after_the_search_is_judged_by_the_search(
    world: World,
) -> None:
    """Hits that come later come too late; one that was found needs no more."""
    world.put(b"late")
    world.put_hit(b"found")

    assert world.begin() == Fate(unused=1)
    world.hit(b"late", 3)

    assert world.step() == Step("done", Fate(1, SIZE))
    assert world.place(b"late") == (world.source.seq, VOLUME_HEADER_BYTES)


@pytest.mark.slow
def test_terms_may_become_stricter_between_search_and_copy(world: World) -> None:
    """Tokens have become scarce."""
    world.put_hit(b"one")
    world.put(b"two")
    world.hit(b"two", 2)
    world.begin()

    step = world.step(TERMS._replace(needs=(2,) * 6))

    assert step == Step("done", Fate(1, SIZE, unused=1))
    assert world.place(b"two") == (world.target.seq, VOLUME_HEADER_BYTES)


def test_empty_volume_is_done_at_once(world: World) -> None:
    """Nothing is read."""
    assert world.run() == Fate()
    assert world.disk.calls == []
