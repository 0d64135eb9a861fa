"""
The native core and its twin in Python: any history gives the same answers and files.

Two stores in two directories get the same operations, with the same clock and salts. So do
the two indexes and the two writers by themselves.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.damage import flip, overwrite
from support.extent import examples
from support.native import Side, counted, needs_native
from support.stores import ProcessFileSystem, UnsyncedFileSystem
from volcache.store import native
from volcache.store.eviction import Terms
from volcache.store.format import RECORD_OVERHEAD_BYTES
from volcache.store.index import PythonIndex
from volcache.store.writer import PythonWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from volcache.store.files import FileSystem
    from volcache.store.index import Index
    from volcache.store.writer import Writer

if native.IS_NATIVE:
    from volcache.store._core import _native

pytestmark = [pytest.mark.property, needs_native]

KEYS: Final = [
    *(b"a", b"b/c", b"b c", b"%20", b"#", b"\n\x00\xff", "grün".encode(), b"x" * 300),
    *(b"key %d" % number for number in range(20)),
]
LIMIT: Final = 255
VOLUME_SIZE: Final = 160 * 1024
VOLUME_NUM: Final = 3

keys = st.sampled_from(KEYS)
sizes = st.one_of(
    st.integers(0, 300),
    st.sampled_from([4000, 4096, 8100, 14_500, 16_000, 16_384, 17_000, 65_536]),
    st.integers(0, 100 * 1024),
)
texts = st.one_of(
    st.just(b""), st.sampled_from([b"text/plain", b"gzip", b"\xff" * LIMIT])
)
lives_ms = st.sampled_from([0, 0, 0, 1, 1000, 3_600_000])


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


class Twins(RuleBasedStateMachine):
    """Two stores that get the same operations, and have the same files."""

    native_disk: Callable[[], Any] | None = None  # system calls are made in C
    options: ClassVar[dict[str, Any]] = {
        "volume_size": VOLUME_SIZE,
        "volume_num": VOLUME_NUM,
        "sync_mode": "periodic",
    }

    def __init__(self) -> None:
        """Start with two empty stores."""
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.machine_ms = 1_790_000_000_000
        self.dice = random.Random(1)  # noqa: S311 - To be repeated.
        self.bytes = self.dice.randbytes(100 * 1024)
        self.sides = [
            Side(
                self.folder / name,
                is_native=name == "native",
                machine_us=lambda: self.machine_ms * 1000,
                disk=self.native_disk if name == "native" else None,
                **self.options,
            )
            for name in ("native", "python")
        ]

    def both(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of both stores; return the answer, which is the same."""
        call = methodcaller(name, *arguments, **options)
        first, second = (side.do(call) for side in self.sides)
        assert first == second
        return first

    def stop(self, *, is_clean: bool) -> None:
        """End both processes; their files are the same."""
        for side in self.sides:
            if is_clean:
                side.close()
            else:
                side.kill()
        self.compare_files()

    def compare_files(self) -> None:
        """Compare every byte in the two directories."""
        first, second = (side.files() for side in self.sides)
        assert first.keys() == second.keys()
        for name, data in first.items():
            assert data == second[name], name

    def start(self) -> bool:
        """Start both; return whether they start, or refuse for the same reason."""
        answers = [side.try_to_start() for side in self.sides]
        assert answers[0] == answers[1]
        self.compare_files()
        return answers[0] is None

    @precondition(lambda self: self.sides)
    @invariant()
    def is_same(self) -> None:
        """What is counted is the same, and what the last start has found."""
        first, second = (counted(side.store) for side in self.sides)
        assert first == second

    def teardown(self) -> None:
        """Kill both, and remove the directories."""
        for side in self.sides:
            side.kill()
        shutil.rmtree(self.folder)


class StoreMachine(Twins):
    """Every operation in every order, with restarts, kills and damage between."""

    # --- Operations ----------------------------------------------------------------

    @rule(
        key=keys,
        start=st.integers(0, 1000),
        size=sizes,
        content_type=texts,
        encoding=texts,
        directives=texts,
        life_ms=lives_ms,
        flags=st.sampled_from([0, 1, 2**32 - 1]),
    )
    def put(  # noqa: PLR0913, PLR0917 - One for each field.
        self,
        key: bytes,
        start: int,
        size: int,
        content_type: bytes,
        encoding: bytes,
        directives: bytes,
        life_ms: int,
        flags: int,
    ) -> None:
        """The record returned has the same time, position and checksum."""
        value = self.bytes[start : start + size]
        now_ms = self.sides[0].store.clock.now_ms()
        self.both(
            "put",
            key,
            value,
            content_type=content_type,
            content_encoding=encoding,
            cache_control=directives,
            expires_ms=life_ms and now_ms + life_ms,
            flags=flags,
        )

    @rule(number=st.sampled_from([1, 100, 600]))
    def put_many(self, number: int) -> None:
        """So many that the index file is written between."""
        for i in range(number):
            self.both("put", KEYS[i % len(KEYS)], b"%d" % i)

    @rule()
    def put_what_does_not_fit(self) -> None:
        """The errors are the same."""
        refused = self.both("put", b"a", bytes(VOLUME_SIZE))
        assert refused[0].__name__ == "ValueTooLargeError"

    @rule()
    def fill(self) -> None:
        """Rotate through all volumes."""
        for i in range(VOLUME_NUM * 3):
            self.both("put", KEYS[i], self.bytes[: 60_000 + i])

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        """Delete returns the same."""
        self.both("delete", key)

    @rule(key=keys)
    def get_and_stat(self, key: bytes) -> None:
        """All fields are the same."""
        self.both("get", key)
        self.both("stat", key)
        self.both("read_raw", key)
        self.both("__contains__", key)

    @rule()
    def flush(self) -> None:
        """All is gone."""
        self.both("flush")

    @rule(prefix=st.sampled_from([b"a", b"b", b"b/", b"key ", b"key 1", b"x" * 200]))
    def purge(self, prefix: bytes) -> None:
        """What begins with it is gone; time passes between a put and a purge."""
        self.machine_ms += 1
        self.both("purge", prefix)
        for key in KEYS:
            if key.startswith(prefix):
                assert self.both("get", key) is None

    @rule()
    def sync(self) -> None:
        """What is pending is written."""
        self.both("sync")
        self.compare_files()

    @rule(ms=st.sampled_from([1, 999, 5000, 3_600_000, -5000]))
    def let_time_pass(self, ms: int) -> None:
        """Set the clock of the machine."""
        self.machine_ms += ms

    # --- Restarts ------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        """Stop and start."""
        self.stop(is_clean=True)
        assert self.start()

    @rule()
    def die(self) -> None:
        """Kill and start."""
        self.stop(is_clean=False)
        assert self.start()

    @rule(is_clean=st.booleans(), damage=damages)
    def suffer(self, *, is_clean: bool, damage: Damage) -> None:
        """Stop, damage the files, start; if that is refused, go on without the damage."""
        active, _, end = counted(self.sides[0].store)["active"]
        self.stop(is_clean=is_clean)
        shutil.copytree(self.sides[0].directory, self.folder / "before")
        for side in self.sides:
            damage.do(side.directory, active, end)
        if not self.start():
            for side in self.sides:
                shutil.rmtree(side.directory)
                shutil.copytree(self.folder / "before", side.directory)
            assert self.start()
        shutil.rmtree(self.folder / "before")
        for key in KEYS:
            self.both("stat", key)
            self.both("get", key)


class PythonCallsMachine(StoreMachine):
    """The same, when the native core makes its system calls through Python."""

    native_disk = staticmethod(lambda: ProcessFileSystem(UnsyncedFileSystem()))


# As many as a bucket of the ghost holds: which key is dropped from a bucket depends on the
# hashes of the keys, and these differ.
RING_KEYS: Final = [b"ring/%d" % number for number in range(8)]
# Exactly known to the native index, so that tokens suffice for both or for none.
RECORD_SIZES: Final = [1024, 1536, 2048, 3072, 4096]
ring_keys = st.sampled_from(RING_KEYS)


def need_of_middle(terms: Terms, size: float) -> int:
    """Return the need as the native core does, by the middle of the size class."""
    return _need(terms, _native.size_middle(int(size)))


_need: Final = Terms.need


class RingsMachine(Twins):
    """
    Two rings: the same records are copied, and the same volumes reclaimed.

    Reads earn no tokens, because the native core counts them by the middle of a size class.
    """

    options: ClassVar = {
        "volume_size": 8 * 1024,
        "volume_num": 7,
        "sync_mode": "periodic",
        "eviction": "frequency",
        "reinsert_reads": 0.0,
    }

    def __init__(self) -> None:
        """Start with two empty stores."""
        self._patch = mock.patch.object(Terms, "need", need_of_middle)
        self._patch.start()
        super().__init__()

    def _put(self, key: bytes, size: int, life_ms: int = 0) -> None:
        length = size - RECORD_OVERHEAD_BYTES - len(key)
        now_ms = self.sides[0].store.clock.now_ms()
        self.both(
            "put", key, self.bytes[:length], expires_ms=life_ms and now_ms + life_ms
        )

    @rule(key=ring_keys, size=st.sampled_from(RECORD_SIZES), life_ms=lives_ms)
    def put(self, key: bytes, size: int, life_ms: int) -> None:
        """Put what was not asked for, or was."""
        self._put(key, size, life_ms)

    @rule(key=ring_keys)
    def get(self, key: bytes) -> None:
        """Ask for a value."""
        self.both("get", key)

    @rule(key=ring_keys)
    def stat(self, key: bytes) -> None:
        """Ask for a value in another way; it is not a hit."""
        self.both("stat", key)

    @rule(key=ring_keys)
    def delete(self, key: bytes) -> None:
        """The tombstone goes into the ring of the key."""
        self.both("delete", key)

    @rule(
        seed=st.integers(0, 2**16),
        steps=st.integers(10, 150),
        hot=st.integers(1, 8),
        put_share=st.sampled_from([0.0, 0.1, 0.5]),
    )
    def serve(self, seed: int, steps: int, hot: int, put_share: float) -> None:
        """Get values, and put those that are missing; sometimes others, too."""
        dice = random.Random(seed)  # noqa: S311 - To be repeated.
        for _ in range(steps):
            key = RING_KEYS[int(8 * dice.random() ** hot)]
            if dice.random() < put_share or self.both("get", key) is None:
                self._put(key, dice.choice(RECORD_SIZES))
            elif dice.random() < 0.02:
                self.both("delete", key)
            self.is_same()

    @rule()
    def flush(self) -> None:
        """All is gone."""
        self.both("flush")

    @rule(key=ring_keys)
    def purge(self, key: bytes) -> None:
        """It is not copied from now on."""
        self.machine_ms += 1
        self.both("purge", key)
        assert self.both("get", key) is None

    @rule()
    def sync(self) -> None:
        """What was copied may replace its original."""
        self.both("sync")
        self.compare_files()

    @rule(ms=st.sampled_from([1, 1000, 3_600_000]))
    def let_time_pass(self, ms: int) -> None:
        """Records expire."""
        self.machine_ms += ms

    @rule(
        is_clean=st.booleans(),
        eviction=st.sampled_from(["frequency", "frequency", "frequency", "fifo"]),
        volume_num=st.sampled_from([7, 7, 7, 4, 5, 9]),
    )
    def restart(self, *, is_clean: bool, eviction: str, volume_num: int) -> None:
        """Stop or kill, and start, sometimes with another policy."""
        self.stop(is_clean=is_clean)
        for side in self.sides:
            side.options |= {"eviction": eviction, "volume_num": volume_num}
        assert self.start()

    @precondition(lambda self: self.sides)
    @invariant()
    def is_same(self) -> None:
        """Also what was copied and dropped, and for which reasons."""
        super().is_same()
        first, second = (side.store.usage().eviction for side in self.sides)
        for name in ("policy", "put_bytes", "fate", "ghost_hits", "reclaiming"):
            assert getattr(first, name) == getattr(second, name), name
        assert first.tokens == pytest.approx(second.tokens)
        assert first.reclaimed == second.reclaimed

    def teardown(self) -> None:
        """Kill both, and remove the directories."""
        super().teardown()
        self._patch.stop()


TestRings = RingsMachine.TestCase
TestRings.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)


def test_any_history_of_two_rings_copies_something() -> None:
    """Otherwise, the machine above shows little."""
    machine = RingsMachine()
    for seed in range(20):
        machine.serve(seed, 100, 2, 0.1)
    copied = machine.sides[0].store.stats.fate.copied
    machine.teardown()
    assert copied > 10


TestStores = StoreMachine.TestCase
TestStores.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestStoresWithPythonCalls = PythonCallsMachine.TestCase
TestStoresWithPythonCalls.settings = settings(
    max_examples=examples(30), stateful_step_count=30, deadline=None
)


# --- The index ---------------------------------------------------------------------

INDEX_VOLUMES: Final = 3
index_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("set"),
            st.binary(min_size=1, max_size=2),
            st.integers(64, 2**24 - 1),
            st.integers(1, 2**31),
        ),
        st.tuples(st.just("set"), keys, st.just(64), st.integers(1, 40)),
        st.tuples(st.just("set_tombstone"), st.binary(min_size=1, max_size=2)),
        st.tuples(st.just("set_tombstone"), keys),
        st.tuples(st.just("forget"), keys),
        st.tuples(st.just("rotate")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("sweep"), st.integers(1, 3000)),
    ),
    max_size=120,
)


class IndexTwins:
    """A native index and one in Python, with at most three volumes."""

    def __init__(self) -> None:
        """Begin with one volume."""
        self.native: Index = _native.Index(
            UnsyncedFileSystem(),
            bytes(range(16)),
            volume_bytes=2**24,
            volumes=INDEX_VOLUMES,
        )
        self.python = PythonIndex()
        self.latest = 7
        self.volumes = [7]
        self.sizes: dict[int, dict[bytes, int]] = {7: {}}
        self.seen: set[bytes] = set()
        self._each("add_volume", 7)

    def _each(self, name: str, *arguments: Any) -> Any:
        first = getattr(self.native, name)(*arguments)
        second = getattr(self.python, name)(*arguments)
        return first, second

    def do(self, what: str, *arguments: Any) -> None:
        """Do one step to both."""
        if what == "set":
            key, offset, size = arguments
            seq = self.volumes[-1]
            self._each("set", key, seq, offset, size)
            self._forget(key)
            self.sizes[seq][key] = size
            self.seen.add(key)
        elif what == "set_tombstone":
            self._each("set_tombstone", *arguments, self.volumes[-1], 64, 70)
            self._forget(*arguments)
            self.seen.add(*arguments)
        elif what == "forget":
            [key] = arguments
            position = self.python.find(key) or (self.volumes[-1], 64, 1)
            first, second = self._each("forget", key, *position[:2])
            assert first == second == any(key in sizes for sizes in self.sizes.values())
            self._forget(key)
        elif what == "sweep":
            self._each("sweep", *arguments)
        else:
            self._rotate(0 if what == "flush" else INDEX_VOLUMES - 1)

    def _forget(self, key: bytes) -> None:
        for sizes in self.sizes.values():
            sizes.pop(key, None)

    def _rotate(self, kept: int) -> None:
        seq = self.latest = self.latest + 10**12
        while len(self.volumes) > kept:
            oldest = self.volumes.pop(0)
            lost = self.sizes.pop(oldest)
            first, second = self._each("reclaim", oldest)
            assert second == (len(lost), sum(lost.values()))
            assert first == (len(lost), sum(map(_native.size_middle, lost.values())))
            assert self._each("reclaim", oldest) == ((0, 0), (0, 0))
        self.volumes.append(seq)
        self.sizes[seq] = {}
        self._each("add_volume", seq)

    def compare(self) -> None:
        """Compare every answer."""
        assert self.native.count == self.python.count
        assert self.native.displaced == self.python.displaced == 0
        for key in self.seen:
            assert self.native.is_deleted(key) == self.python.is_deleted(key)
            first, second = self.native.find(key), self.python.find(key)
            if second is not None and second[0] not in self.volumes:
                second = None  # Stale: only the one in Python finds it.
            if second is None:
                assert first is None
            else:
                assert first == (*second[:2], _native.size_max(second[2]))
        for seq, sizes in self.sizes.items():
            first_live, second_live = self._each("live", seq)
            assert second_live == (len(sizes), sum(sizes.values()))
            middle = sum(map(_native.size_middle, sizes.values()))
            assert first_live == (len(sizes), middle)
        assert self._each("live", 1) == ((0, 0), (0, 0))


@settings(max_examples=examples(300), deadline=None)
@given(index_steps)
def test_both_indexes_give_the_same_answers(steps: list[tuple[Any, ...]]) -> None:
    """Positions with the size rounded up; records; bytes by the middle of their class."""
    twins = IndexTwins()
    for step in steps:
        twins.do(*step)
        if step[0] != "set":
            twins.compare()
    twins.compare()
    while twins.native.is_sweeping or twins.python.is_sweeping:
        twins.do("sweep", 100_000)
    twins.compare()


@settings(max_examples=examples(600))
@given(st.integers(1, 2**31))
def test_size_classes_hold_their_sizes(size: int) -> None:
    """At most an eighth more, and the middle between the class before and the maximum."""
    largest, middle = _native.size_max(size), _native.size_middle(size)
    assert size <= largest <= size + max(0, size // 8)
    assert _native.size_max(largest) == largest
    assert _native.size_max(largest + 1) > largest
    assert 7 * largest // 8 <= middle <= largest
    assert middle == _native.size_middle(largest)


# --- The writer --------------------------------------------------------------------


class ScriptedDisk(UnsyncedFileSystem):
    """Records each write and sync; the script says what becomes of it."""

    def __init__(self, script: Sequence[tuple[str, int]]) -> None:
        """Do as the script says, then write everything."""
        self.calls: list[tuple[Any, ...]] = []
        self._script = list(script)
        self.pwritev = self._write  # type: ignore[assignment]
        self.sync = self._sync

    def _next(self) -> tuple[str, int]:
        what, number = self._script.pop(0) if self._script else ("all", 0)
        if what == "error":
            raise OSError(number, os.strerror(number))
        if what == "odd error":
            message = "without a number"
            raise OSError(message)
        if what == "bug":
            message = "not an error of the disk"
            raise ValueError(message)
        return what, number

    def _write(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        data = b"".join(buffers)
        self.calls.append(("write", fd, data, offset))
        what, number = self._next()
        return max(1, len(data) * number // 1000) if what == "part" else len(data)

    def _sync(self, fd: int) -> None:
        self.calls.append(("sync", fd))
        self._next()


scripts = st.lists(
    st.one_of(
        st.just(("all", 0)),
        st.tuples(st.just("part"), st.integers(0, 999)),
        st.tuples(st.just("error"), st.sampled_from([errno.EIO, errno.ENOSPC])),
        st.tuples(st.sampled_from(["odd error", "bug"]), st.just(0)),
    ),
    max_size=30,
)
writer_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.one_of(keys, st.just(b"k" * 65_535)),
            st.one_of(sizes, st.integers(3900, 4200)),
            texts,
            texts,
            texts,
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**32 - 1),
            st.booleans(),
            st.booleans(),
        ),
        st.tuples(
            st.just("add_entry"), keys, st.integers(0, 2**40), st.integers(0, 2**31)
        ),
        st.tuples(st.just("clear")),
        st.tuples(st.just("capacity"), st.integers(0, 2**18)),
        st.tuples(st.just("end"), st.integers(64, 2**17)),
        st.tuples(st.just("salt"), st.integers(0, 2**64 - 1)),
        st.tuples(st.just("fd"), st.integers(-1, 9)),
    ),
    max_size=30,
)
ZEROS: Final = bytes(100 * 1024)


def do_step(writer: Writer, what: str, *arguments: Any) -> Any:
    """Do one step; return what it returns, or the error."""
    try:
        if what in {"capacity", "end", "salt", "fd"}:
            setattr(writer, what, *arguments)
            return None
        if what == "append":
            key, size, *more = arguments
            value = b"" if more[-2] else ZEROS[:size]  # A deletion has none.
            arguments = (key, value, *more)
        return getattr(writer, what)(*arguments)
    except Exception as error:  # noqa: BLE001 - Compared with that of the other.
        cause = type(error.__cause__) if isinstance(error, OSError) else None
        return type(error), error.args, cause


def state_of(writer: Writer) -> tuple[Any, ...]:
    """Return all that a writer shows."""
    return (
        *(writer.fd, writer.end, writer.capacity, writer.salt),
        *(writer.pending, writer.lines),
    )


@settings(max_examples=examples(400), deadline=None)
@given(writer_steps, scripts, st.integers(0, 2**16 - 1))
def test_both_writers_make_the_same_calls(
    steps: list[tuple[Any, ...]], script: list[tuple[str, int]], volume: int
) -> None:
    """The same bytes at the same places, whatever the disk refuses; the same errors."""
    disks = [ScriptedDisk(script), ScriptedDisk(script)]
    writers: list[Writer] = [
        _native.Writer(cast("FileSystem", disks[0]), 5, volume),
        PythonWriter(cast("FileSystem", disks[1]), 5, volume),
    ]
    for writer in writers:
        writer.capacity, writer.salt = 2**18 - 3, 0x123456789ABCDEF0
    for step in steps:
        first, second = (do_step(writer, *step) for writer in writers)
        assert first == second, step[0]
        assert state_of(writers[0]) == state_of(writers[1])
        assert disks[0].calls == disks[1].calls
