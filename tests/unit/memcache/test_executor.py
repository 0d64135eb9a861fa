"""What the commands do in the cache."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from support.refusing_disk import RefusingDisk
from support.stores import FakeClock, open_store
from support.tables import each_row
from volcache.cache import Cache
from volcache.errors import ClientError
from volcache.keys import parse_key
from volcache.memcache.commands import (
    Arithmetic,
    Delete,
    FlushAll,
    Get,
    Put,
    Result,
    Status,
    Touch,
)
from volcache.memcache.executor import Executor, Limits, is_key, parse_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAY = 24 * 60 * 60


class Bench:
    """An executor over a small store, at a time that a test advances."""

    def __init__(self, directory: Path, **limits: Any) -> None:
        """Open the store."""
        self.clock = FakeClock()
        self.disk = RefusingDisk()
        self.store = open_store(directory, clock=self.clock, fs=self.disk)
        self.cache = Cache(self.store)
        accepted = Limits(**{"key_size": 250, "value_size": 1000, **limits})
        self.executor = Executor(
            self.cache, accepted, clock=lambda: self.clock.now_ms * 1_000_000
        )

    def put(self, value: bytes, mode: Any = "set", **fields: Any) -> Result:
        """Store a value of the key "a"."""
        return self.executor.put(Put("set", b"a", mode, value, **fields))

    def value(self, key: bytes = b"a") -> bytes | None:
        """Return a value."""
        record = self.executor.get(Get("get", key)).record
        return None if record is None else record.value

    def cas(self) -> int:
        """Return the cas unique of the key "a"."""
        record = self.executor.get(Get("gets", b"a")).record
        assert record is not None
        return record.stored_us

    def mg(self, **fields: Any) -> Result:
        """Get the key "a" as a meta command does."""
        return self.executor.get(Get("mg", b"a", is_meta=True, **fields))

    def count(self, delta: int = 1, **fields: Any) -> Result:
        """Add to the key "a"."""
        return self.executor.arithmetic(Arithmetic("incr", b"a", delta, **fields))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """An executor without default times to live."""
    opened = Bench(tmp_path)
    yield opened
    opened.store.close()


def test_a_value_is_returned_with_its_flags(bench: Bench) -> None:
    """And with a cas unique."""
    assert bench.put(b"x", flags=7).status is Status.STORED
    record = bench.executor.get(Get("get", b"a")).record
    assert record is not None
    assert (record.value, record.flags) == (b"x", 7)
    assert record.stored_us > 0


@pytest.mark.parametrize(
    ("mode", "present", "absent"),
    [
        ("set", Status.STORED, Status.STORED),
        ("add", Status.NOT_STORED, Status.STORED),
        ("replace", Status.STORED, Status.NOT_STORED),
        ("append", Status.STORED, Status.NOT_STORED),
        ("prepend", Status.STORED, Status.NOT_STORED),
    ],
)
def test_modes_depend_on_whether_there_is_a_value(
    bench: Bench, mode: str, present: Status, absent: Status
) -> None:
    """As in memcached."""
    assert bench.put(b"x", mode).status is absent
    bench.put(b"1")
    assert bench.put(b"2", mode).status is present


@pytest.mark.parametrize("mode", ["set", "replace", "append", "prepend"])
def test_another_version_is_not_replaced(bench: Bench, mode: str) -> None:
    """A version is replaced once."""
    bench.put(b"1")
    cas = bench.cas()
    assert bench.put(b"2", mode, cas=cas).status is Status.STORED
    assert bench.put(b"3", mode, cas=cas).status is Status.EXISTS


def test_a_cas_needs_a_value(bench: Bench) -> None:
    """An append without one is only not stored."""
    assert bench.put(b"x", cas=5).status is Status.NOT_FOUND
    assert bench.put(b"x", "append", cas=5).status is Status.NOT_STORED


def test_append_keeps_flags_and_time(bench: Bench) -> None:
    """What the command says of them is ignored."""
    bench.put(b"1", flags=3, exptime=100)
    bench.put(b"2", "append", flags=9, exptime=5)
    bench.put(b"0", "prepend", flags=9, exptime=5)
    result = bench.mg(ttl="after")
    assert result.record is not None
    assert (result.record.value, result.record.flags) == (b"012", 3)
    assert result.ttl == 100


def test_append_stores_if_asked_to(bench: Bench) -> None:
    """With the time of the flag "N"."""
    result = bench.put(b"x", "append", vivify=50, exptime=9)
    assert result.status is Status.STORED
    assert bench.mg(ttl="after").ttl == 50


def test_a_value_that_is_too_large_deletes_the_old(bench: Bench) -> None:
    """No client may get the value that was to be replaced; only "set" replaces."""
    bench.put(b"old")
    for mode in ("add", "replace", "append"):
        result = bench.put(b"", mode, is_too_large=True)
        assert result.status is Status.TOO_LARGE
        assert bench.value() == b"old"
    assert bench.put(b"x" * 1001).status is Status.TOO_LARGE
    assert bench.value() is None


def test_a_sum_that_is_too_large_keeps_the_old(bench: Bench) -> None:
    """Each of the parts is not."""
    bench.put(b"x" * 600)
    assert bench.put(b"y" * 600, "append").status is Status.TOO_LARGE
    assert bench.value() == b"x" * 600


@pytest.mark.parametrize(
    ("exptime", "ttl"),
    [
        (0, -1),
        (1, 1),
        (30 * DAY, 30 * DAY),
        (1_790_000_000 + 40, 40),  # The clock stands at 1,790,000,000.
        (1_790_000_000 + 400 * DAY, 400 * DAY),
    ],
)
def test_times_up_to_thirty_days_are_from_now(
    bench: Bench, exptime: int, ttl: int
) -> None:
    """Longer ones are since the epoch."""
    bench.put(b"x", exptime=exptime)
    assert bench.mg(ttl="after").ttl == ttl


@pytest.mark.parametrize("exptime", [-1, -(2**40), 30 * DAY + 1, 1_790_000_000])
def test_a_time_in_the_past_deletes(bench: Bench, exptime: int) -> None:
    """The answer is as if it had been stored."""
    bench.put(b"old")
    assert bench.put(b"x", exptime=exptime).status is Status.STORED
    assert bench.value() is None


def test_a_value_expires(bench: Bench) -> None:
    """Then it is as if there were none."""
    bench.put(b"x", exptime=10)
    bench.clock.advance(9)
    assert bench.value() == b"x"
    bench.clock.advance(1)
    assert bench.value() is None
    assert bench.put(b"x", "replace").status is Status.NOT_STORED


def test_the_settings_limit_times_to_live(tmp_path: Path) -> None:
    """`default_ttl` takes the place of 0, `max_ttl` that of what is longer."""
    bench = Bench(tmp_path, default_ttl=60, max_ttl=100)
    for exptime, ttl in ((0, 60), (80, 80), (5000, 100)):
        bench.put(b"x", exptime=exptime)
        assert bench.mg(ttl="after").ttl == ttl
    bench.store.close()


def test_touch_keeps_the_version(bench: Bench) -> None:
    """As in memcached."""
    bench.put(b"x", flags=4)
    cas = bench.cas()
    touched = bench.executor.touch(Touch("touch", b"a", 30))
    assert touched.status is Status.TOUCHED
    assert bench.mg(ttl="after").ttl == 30
    assert bench.cas() == cas
    assert bench.executor.touch(Touch("touch", b"b", 30)).status is Status.NOT_FOUND


def test_get_and_touch_returns_what_it_expires(bench: Bench) -> None:
    """A time in the past deletes."""
    bench.put(b"x")
    result = bench.executor.get(Get("gat", b"a", -1))
    assert result.record is not None
    assert result.record.value == b"x"
    assert bench.value() is None
    assert bench.executor.get(Get("gat", b"a", 10)).status is Status.MISS


@each_row(
    ("value", "number"),
    [
        (b"0", 0),
        (b"00000000000000000000000000000000012", 12),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None),
        (b"12   ", 12),
        (b" 12 abc", 12),
        (b"+12", 12),
        (b"-0", 0),
        (b"-1", None),
        (b"12\0", 12),
        (b"12abc", None),
        (b"", None),
        (b" ", None),
        (b"1.5", None),
        (b"9" * 5000, None),
        (b"0" * 5000 + b"7", 7),
        ("²".encode(), None),
    ],
)
def test_numbers_are_read_as_by_memcached(value: bytes, number: int | None) -> None:
    """As strtoull reads them."""
    assert parse_number(value) == number


def test_a_number_wraps_around_and_stops_at_zero(bench: Bench) -> None:
    """64 bits, unsigned."""
    bench.put(b"18446744073709551615")
    assert bench.count(3).number == 2
    assert bench.count(5, is_decrement=True).number == 0


def test_a_number_does_not_become_shorter(bench: Bench) -> None:
    """As in memcached, which pads it with spaces."""
    bench.put(b"100", flags=2, exptime=50)
    assert bench.count(1, is_decrement=True).number == 99
    result = bench.mg(ttl="after")
    assert result.record is not None
    assert (result.record.value, result.record.flags, result.ttl) == (b"99 ", 2, 50)
    assert bench.count(1).number == 100


def test_what_is_no_number_is_not_counted(bench: Bench) -> None:
    """Not even with the version of another."""
    bench.put(b"abc")
    assert bench.count().status is Status.NON_NUMERIC
    assert bench.count(cas=1).status is Status.EXISTS
    bench.put(b"")
    assert bench.count(cas=1).status is Status.NON_NUMERIC
    assert bench.executor.arithmetic(Arithmetic("incr", b"b", 1)).status is (
        Status.NOT_FOUND
    )


def test_a_number_is_stored_if_there_is_none(bench: Bench) -> None:
    """The first one as it is, whatever version was asked for."""
    result = bench.count(5, initial=40, initial_exptime=30, cas=9, ttl="after")
    assert (result.status, result.number, result.ttl) == (Status.STORED, 40, 30)
    assert bench.count(5, initial=40).number == 45


def test_delete_may_depend_on_the_version(bench: Bench) -> None:
    """Only that one is deleted."""
    bench.put(b"x")
    delete = Delete("md", b"a", cas=1)
    assert bench.executor.delete(delete).status is Status.EXISTS
    assert bench.executor.delete(delete._replace(cas=bench.cas())).status is (
        Status.DELETED
    )
    assert bench.executor.delete(delete).status is Status.NOT_FOUND
    assert bench.executor.delete(Delete("delete", b"a")).status is Status.NOT_FOUND


@pytest.mark.parametrize("key", [b"../a", b"a/./b", b"a/..", b"-/x", b"a\tb", b"a\0"])
def test_what_is_no_key_over_http_is_never_found(bench: Bench, key: bytes) -> None:
    """It cannot be stored, either."""
    executor = bench.executor
    refused = executor.put(Put("set", key, "set", b"x"))
    assert refused.status is Status.BAD_KEY
    assert refused.text
    assert "\n" not in refused.text
    vivified = executor.get(Get("mg", key, is_meta=True, vivify=0))
    assert vivified.status is Status.BAD_KEY
    initial = executor.arithmetic(Arithmetic("ma", key, 1, initial=1))
    assert initial.status is Status.BAD_KEY
    assert executor.get(Get("get", key)).status is Status.MISS
    assert executor.get(Get("gat", key, 5)).status is Status.MISS
    assert executor.delete(Delete("delete", key)).status is Status.NOT_FOUND
    assert executor.touch(Touch("touch", key, 5)).status is Status.NOT_FOUND
    assert executor.arithmetic(Arithmetic("incr", key, 1)).status is Status.NOT_FOUND


@pytest.mark.parametrize("key", [b"a b", b"\xff", "ü".encode(), b".git", b"a//b", b"-"])
def test_other_keys_are_stored(bench: Bench, key: bytes) -> None:
    """Also those that only the meta and binary protocols can name."""
    stored = bench.executor.put(Put("set", key, "set", b"x"))
    assert stored.status is Status.STORED
    assert bench.value(key) == b"x"


def test_flush_deletes_everything(bench: Bench) -> None:
    """At once."""
    bench.put(b"x")
    assert bench.executor.flush(FlushAll("flush_all")).status is Status.OK
    assert bench.value() is None


def test_a_disk_that_refuses_is_an_answer(bench: Bench) -> None:
    """No command raises; the old value stays."""
    bench.put(b"5")
    bench.disk.refuses_writes = True
    executor = bench.executor
    results = [
        bench.put(b"x"),
        bench.put(b"x", "append"),
        bench.count(),
        executor.touch(Touch("touch", b"a", 10)),
        executor.delete(Delete("delete", b"a")),
    ]
    assert {result.status for result in results} == {Status.FAILED}
    assert all(result.text for result in results)
    bench.disk.refuses_writes = False
    assert bench.value() == b"5"


# --- The right to replace a value ----------------------------------------------------


def test_one_client_wins_the_right_to_store_a_missing_value(bench: Bench) -> None:
    """The others see that another has, until a value is stored."""
    first = bench.mg(vivify=30, ttl="after")
    assert first.record is not None
    assert (first.record.value, first.token, first.ttl) == (b"", b"W", 30)
    assert bench.mg(vivify=30).token == b"Z"
    assert bench.mg().token == b"Z"
    bench.put(b"new")
    assert bench.mg(vivify=30).token == b""


def test_one_client_wins_the_right_to_renew_a_value(bench: Bench) -> None:
    """When it expires within the time that was given."""
    bench.put(b"x", exptime=60)
    assert bench.mg(recache=30).token == b""
    bench.clock.advance(40)
    assert bench.mg(recache=30).token == b"W"
    assert bench.mg(recache=30).token == b"Z"
    assert bench.mg(recache=30, exptime=60).token == b"Z"
    assert bench.mg().token == b"Z"


def test_a_value_that_does_not_expire_is_not_renewed(bench: Bench) -> None:
    """Whatever time was given."""
    bench.put(b"x")
    assert bench.mg(recache=30).token == b""


def test_a_new_time_counts_for_what_comes_after_it(bench: Bench) -> None:
    """The flags of "mg" take effect in their order."""
    bench.put(b"x", exptime=60)
    assert bench.mg(exptime=10, recache=30).token == b""
    bench.put(b"x", exptime=60)
    assert bench.mg(exptime=10, recache=30, is_recache_late=True).token == b"W"
    bench.put(b"x", exptime=60)
    assert bench.mg(exptime=10, ttl="before").ttl == 60
    assert bench.mg(exptime=20, ttl="after").ttl == 20


def test_keys_are_those_of_http() -> None:
    """However they begin and wherever a dot is; the quick test accepts no others."""
    size_max = 4
    for length in range(1, size_max + 2):
        for letters in product("a.-/ \x00\xe9", repeat=length):
            text = "".join(letters)
            try:
                expected: bool | type = parse_key("/" + text, size_max) == text.encode(
                    "latin-1"
                )
            except ClientError as error:
                expected = type(error)
            try:
                found: bool | type = is_key(text.encode("latin-1"), size_max)
            except ClientError as error:
                found = type(error)
            assert found == expected, text
