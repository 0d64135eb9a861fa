"""
The store with one ring against a dict and a list of records, at any time of the clock.

Whatever is read is what was put, and the files have the records that were written, as
format.py and scan.py read them. Where files are damaged, a start that reads them with the
core finds what one does that reads them so. `test_rings.py` has two rings, and crashes.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.clocks import ManualClock
from support.contents import files_of
from support.damage import flip, overwrite
from support.extent import examples
from support.index_files import decode_block, decode_blocks
from support.readers import without_the_core
from support.stores import (
    VOLUME_NUM,
    BareProcess,
    UnsyncedFileSystem,
    assert_sums,
    counted_size,
    disk_bytes,
    kill,
    open_fifo,
)
from volcache.errors import StoreError, ValueTooLargeError
from volcache.store import Store
from volcache.store.format import RECORD_OVERHEAD_BYTES, VOLUME_HEADER_BYTES, Record
from volcache.store.index import Found
from volcache.store.native import Records
from volcache.store.volume import Volume

pytestmark = pytest.mark.property

VOLUME_SIZE: Final = 48 * 1024
KEYS: Final = [
    *(b"a", b"b/c", b"b c", b"%20", b"#", b"\n\x00\xff", "grün".encode(), b"x" * 300),
    *(b"key %d" % number for number in range(9)),
    *(b"long/key 1", b"long/key 10", b"long/key 12", b"long/key 2", b"long/key 1\0"),
]
BYTES: Final = random.Random(1).randbytes(2 * VOLUME_SIZE)  # noqa: S311 - To be repeated.
HOUR_MS = 3_600_000
# A start after a kill may begin this much later than the time at the kill.
AHEAD_US_MAX = 1_000_000

keys = st.sampled_from(KEYS)
lengths = st.one_of(
    st.integers(0, 300),
    st.sampled_from([4000, 4096, 8100, 14_500, 16_000, 16_384, 17_000]),
    st.integers(0, VOLUME_SIZE - 2000),
)
texts = st.sampled_from([b"", b"text/plain", b"gzip", b"\xff" * 255])
# Negative: the clock of the machine is set back. It may stay as it is.
jumps_ms = st.sampled_from([0, 0, -HOUR_MS, -5000, -1, 1, 5000, HOUR_MS])
waits_ms = st.sampled_from([0, 1, 999, 5000, HOUR_MS])
lives_ms = st.sampled_from([0, 0, 0, 1, 1000, 5000, 6000, HOUR_MS, 2 * HOUR_MS])


class Damage(NamedTuple):
    """What happens to the files of a store that is stopped."""

    what: str
    where: float  # a share of the length of a file
    choice: int  # of the file
    seed: int

    def do(self, directory: Path, active: int, end: int) -> None:
        """Damage one file; the active volume has records up to `end`."""
        if self.what == "remove all":
            shutil.rmtree(directory / "index")
            return
        if self.what == "cut active":
            path = directory / "data" / str(active)
            os.truncate(path, max(0, int(end - self.where * 500)))
            return
        is_index = self.what == "remove" or self.choice % 3 == 0
        folder = directory / ("index" if is_index else "data")
        files = sorted(path for path in folder.iterdir() if path.stat().st_size)
        if not files:
            return
        path = files[self.choice % len(files)]
        if self.what == "remove":
            path.unlink()
            return
        length = path.stat().st_size if is_index else min(path.stat().st_size, end)
        self._change(path, min(int(self.where * length), length - 1), length)

    def _change(self, path: Path, at: int, length: int) -> None:
        dice = random.Random(self.seed)  # noqa: S311 - To be repeated.
        if self.what == "flip":
            flip(path, at, dice)
        elif self.what == "zeros":
            overwrite(path, at, bytes(min(dice.randrange(1, 5000), length - at)))
        else:
            os.truncate(path, at)


damages = st.builds(
    Damage,
    st.sampled_from(
        ["flip", "flip", "cut", "cut active", "remove", "remove all", "zeros"]
    ),
    st.floats(0, 1),
    st.integers(0, 99),
    st.integers(0, 2**32),
)


class Stored(NamedTuple):
    """A record, and the number of its volume, counted from the first."""

    record: Record
    turn: int


class Entry(NamedTuple):
    """A record in a volume."""

    key: bytes
    offset: int
    size: int
    is_tombstone: bool = False

    @property
    def line(self) -> tuple[bytes, int, int]:
        """What the index file has."""
        return (
            (self.key, 0, 0)
            if self.is_tombstone
            else (self.key, self.offset, self.size)
        )


class StoreMachine(RuleBasedStateMachine):
    """Every operation in every order, with restarts, kills and damage between."""

    def __init__(self) -> None:
        """Start with an empty store."""
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.directory = self.folder / "store"
        self.machine_ms = 1_790_000_000_000
        self.elapsed_ms = 0
        self.latest_us = self.machine_ms * 1000  # that the clock of the store may show
        self.store = self.start()
        self.model: dict[bytes, Stored] = {}
        self.written: dict[int, list[Entry]] = {}  # by the number of the volume
        self.expired: set[bytes] = set()  # by a get, and not stored again since
        self.purged: set[bytes] = set()  # and not stored again since
        self.evicted: list[int] = []  # sizes of records, by this process

    def start(self, directory: Path | None = None) -> Store:
        """Open the store in a new process, whose core makes its system calls by itself."""
        clock = ManualClock(
            lambda: self.machine_ms * 1000, lambda: self.elapsed_ms * 1_000_000
        )
        return open_fifo(
            directory or self.directory,
            volume_size=VOLUME_SIZE,
            clock=clock,
            fs=BareProcess(UnsyncedFileSystem()),
        )

    def pass_time(self, jump_ms: int, wait_ms: int) -> None:
        """Set the clock of the machine, then let time pass."""
        for jump, wait in ((jump_ms, 0), (0, wait_ms)):
            self.machine_ms += jump + wait
            self.elapsed_ms += wait
            self.latest_us = max(self.latest_us + wait * 1000, self.machine_ms * 1000)

    def is_kept(self, key: bytes) -> bool:
        """Return whether the volume of a value is valid: not older than a full turn."""
        stored = self.model.get(key)
        newest = max(self.written, default=0)
        return stored is not None and stored.turn > newest - VOLUME_NUM

    def expected(self, key: bytes) -> Record | None:
        """Return what a get must answer: nothing that was reclaimed or has expired."""
        if not self.is_kept(key) or key in self.purged:
            return None
        record = self.model[key].record
        if 0 < record.expires_ms <= self.store.clock.now_ms():
            return None
        return record

    def live_sizes(self, turn: int) -> list[int]:
        """Return the sizes of the values in a volume, as the index counts them."""
        return [
            counted_size(record.size)
            for record, of_turn in self.model.values()
            if of_turn == turn
        ]

    def see_record(
        self, key: bytes, offset: int, size: int, *, is_tombstone: bool
    ) -> int:
        """Note what was appended; return the number of its volume."""
        self.latest_us += 1  # No two records have one time.
        turn = self.store.usage(volumes=False).active_seq
        volume = self.written.setdefault(turn, [])
        end = volume[-1].offset + volume[-1].size if volume else VOLUME_HEADER_BYTES
        assert offset == end
        volume.append(Entry(key, offset, size, is_tombstone))
        for gone in [old for old in self.written if old <= turn - VOLUME_NUM]:
            del self.written[gone]
            self.evicted += self.live_sizes(gone)
        self.expired.discard(key)
        self.purged.discard(key)
        return turn

    # --- Operations ----------------------------------------------------------------

    @rule(
        key=keys,
        start=st.integers(0, 1000),
        length=lengths,
        types=st.tuples(texts, texts, texts),
        life_ms=lives_ms,
        flags=st.sampled_from([0, 1, 2**32 - 1]),
    )
    def put(
        self,
        key: bytes,
        start: int = 0,
        length: int = 10,
        types: Sequence[bytes] = (b"", b"", b""),
        life_ms: int = 0,
        flags: int = 0,
    ) -> None:
        """Store a value."""
        value = BYTES[start : start + length]
        expires_ms = life_ms and self.store.clock.now_ms() + life_ms
        record = self.store.put(
            key,
            value,
            content_type=types[0],
            content_encoding=types[1],
            cache_control=types[2],
            expires_ms=expires_ms,
            flags=flags,
        )
        assert record[:4] == (value, *types)
        assert (record.expires_ms, record.flags) == (expires_ms, flags)
        turn = self.see_record(key, record.offset, record.size, is_tombstone=False)
        self.model[key] = Stored(record, turn)

    @rule(number=st.sampled_from([100, 600]))
    def put_many(self, number: int) -> None:
        """So many that the index file is written between."""
        for i in range(number):
            self.put(KEYS[i % len(KEYS)], i)

    @rule(key=keys)
    def put_what_does_not_fit(self, key: bytes) -> None:
        """The value stays."""
        with pytest.raises(ValueTooLargeError):
            self.store.put(key, bytes(VOLUME_SIZE))

    @rule(jump_ms=jumps_ms, wait_ms=waits_ms)
    def let_time_pass(self, jump_ms: int, wait_ms: int) -> None:
        """Set the clock of the machine, and let time pass."""
        self.pass_time(jump_ms, wait_ms)

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        """Delete returns whether there was a value."""
        was_there = self.expected(key) is not None
        has_record = self.is_kept(key)

        assert self.store.delete(key) == was_there

        if has_record:
            size = RECORD_OVERHEAD_BYTES + len(key)
            end = self.store.usage(volumes=False).active_end
            self.see_record(key, end - size, size, is_tombstone=True)
        self.model.pop(key, None)

    @rule(key=keys)
    def read(self, key: bytes) -> None:
        """A read returns all of the last record, or a miss if it is too old."""
        expected = self.expected(key)
        header = expected and expected._replace(value=b"")

        assert self.store.peek(key) == expected
        assert self.store.stat(key) == header
        assert (key in self.store) == (self.is_kept(key) and key not in self.purged)

    @rule(key=keys, length=st.integers(1, 12))
    def purge(self, key: bytes, length: int) -> None:
        """Drop what begins with a part of a key; time passes between put and purge."""
        self.pass_time(0, 1)
        self.latest_us += 1
        self.store.purge(key[:length])
        self.purged |= {other for other in self.model if other.startswith(key[:length])}

    @rule()
    def sync(self) -> None:
        """What is pending is written."""
        self.store.sync()

    # --- Restarts ------------------------------------------------------------------

    def stop(self, *, is_clean: bool) -> None:
        """End the process; the files have all records, and entries of them."""
        self.evicted.clear()
        volumes: dict[int, Volume] = dict(self.store._log.volumes)
        for turn, volume in volumes.items():
            fs = UnsyncedFileSystem()
            found = list(Records(fs, volume, VOLUME_HEADER_BYTES, volume.end))
            assert all(isinstance(event, Found) and event.intact for event in found)
            headers = [event.header for event in found if isinstance(event, Found)]
            assert self.written.get(turn, []) == [
                Entry(h.key, h.offset, h.size, bool(h.tombstone)) for h in headers
            ]
        if is_clean:
            self.store.close()
        else:
            kill(self.store)
        for turn, volume in volumes.items():
            blocks = decode_blocks(
                (self.directory / "index" / str(volume.id)).read_bytes()
            )
            found_lines = [
                line for block in blocks for line in decode_block(block) or ()
            ]
            lines = [entry.line for entry in self.written.get(turn, [])]
            assert found_lines == lines[: len(found_lines)]
            # A deletion is in the index file when it is done.
            assert is_clean or all(line[2] for line in lines[len(found_lines) :])
            assert not is_clean or found_lines == lines

    @rule(jump_ms=jumps_ms, wait_ms=waits_ms, is_clean=st.booleans())
    def restart(self, jump_ms: int, wait_ms: int, *, is_clean: bool) -> None:
        """Stop or kill, and start; meanwhile the clock may be set."""
        self.stop(is_clean=is_clean)
        self.latest_us += 0 if is_clean else AHEAD_US_MAX
        self.pass_time(jump_ms, wait_ms)
        self.store = self.start()

    @precondition(lambda self: self.written)
    @rule()
    def lose_index_files(self) -> None:
        """Stop, lose every index file, start."""
        self.stop(is_clean=True)
        shutil.rmtree(self.directory / "index")
        self.store = self.start()

    @rule(is_clean=st.booleans(), damage=damages)
    def start_on_a_damaged_copy(self, *, is_clean: bool, damage: Damage) -> None:
        """The core finds what the definition of the bytes says, and writes the same."""
        usage = self.store.usage(volumes=False)
        self.stop(is_clean=is_clean)
        self.latest_us += 0 if is_clean else AHEAD_US_MAX
        found = []
        for reading in (nullcontext, without_the_core):
            copy = self.folder / reading.__name__
            shutil.copytree(self.directory, copy)
            damage.do(copy, usage.active_id, usage.active_end)
            dice = random.Random(2)  # noqa: S311 - The same salts.
            with reading(), mock.patch.object(secrets, "randbits", dice.getrandbits):
                found.append(self.found_at_start(copy))
            shutil.rmtree(copy)
        for one, other in zip(*found, strict=True):
            assert one == other
        self.store = self.start()

    def found_at_start(self, directory: Path) -> list[Any]:
        """Start on a copy; return what it has, or why it is refused, and all files."""
        try:
            store = self.start(directory)
        except StoreError as error:
            found: list[Any] = [type(error), str(error).replace(str(directory), "")]
        else:
            found = [asdict(store.recovery), store.count, store.usage().volumes]
            found += [store.get(key) for key in KEYS]
            kill(store)
        return [*found, files_of(directory)]

    # --- Always ----------------------------------------------------------------------

    @invariant()
    def is_whole(self) -> None:
        """Every key is as the model says; nothing is damaged; the disk is bounded."""
        for key in self.model:
            assert self.store.get(key) == self.expected(key)
        there = [key for key in self.model if self.is_kept(key)]
        assert self.store.count == len(there)
        assert self.store.stats.damaged_records == 0
        assert (self.store.recovery.damaged, self.store.recovery.torn) == (0, 0)
        assert disk_bytes(self.directory) <= VOLUME_NUM * VOLUME_SIZE

    @invariant()
    def usage_is_that_of_the_model(self) -> None:
        """Which bytes of each volume are live, and what was evicted."""
        usage = self.store.usage()
        for volume in usage.volumes:
            sizes = self.live_sizes(volume.seq) if volume.seq else []
            live = min(sum(sizes), max(0, volume.used - VOLUME_HEADER_BYTES))
            assert (volume.live_records, volume.live) == (len(sizes), live)
            assert volume.live + volume.dead == volume.used <= volume.size
        assert_sums(usage)
        short = self.store.usage(volumes=False)
        # The free space of the disk changes meanwhile.
        assert replace(short, disk=usage.disk) == replace(usage, volumes=[])
        assert usage.live + usage.dead + usage.free == VOLUME_NUM * VOLUME_SIZE
        stats = self.store.stats
        evicted = len(self.evicted), sum(self.evicted)
        assert (stats.evicted_records, stats.evicted_bytes) == evicted

    @invariant()
    def no_expired_value_returns(self) -> None:
        """Whatever the clocks say; and no value expires too early."""
        for key in self.model:
            record = self.store.get(key)
            assert record is None or key not in self.expired
            if record is None and self.is_kept(key) and key not in self.purged:
                assert 0 < self.model[key].record.expires_ms <= self.latest_us // 1000
                self.expired.add(key)
        assert self.store.clock.now_us() <= self.latest_us

    def teardown(self) -> None:
        """Remove the directory; a start that failed must not hide its error."""
        kill(self.store)
        shutil.rmtree(self.folder)


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(max_examples=examples(60), stateful_step_count=40)
