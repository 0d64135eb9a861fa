"""Dates as validators: with a store, when values and clocks change within a second."""

from __future__ import annotations

import tempfile
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.extent import examples
from support.stores import open_store
from volcache.cache import Cache
from volcache.http.app import App, Limits
from volcache.store.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NINE_MS = 1_795_251_600_000  # 2026-11-21 09:00:00 UTC
NAMES = {
    "If-Modified-Since": "HTTP_IF_MODIFIED_SINCE",
    "If-Unmodified-Since": "HTTP_IF_UNMODIFIED_SINCE",
    "If-Range": "HTTP_IF_RANGE",
    "Range": "HTTP_RANGE",
}


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def validator(self) -> str:
        """The date that a client compares with later: RFC 9110 section 13.1.3."""
        return self.headers.get("Last-Modified") or self.headers["Date"]


class Instance:
    """A store and an application on a machine whose clock a test sets."""

    def __init__(self, directory: Path | str) -> None:
        """Start at 09:00:00."""
        self.machine_ms = NINE_MS
        self.elapsed_ms = 0
        self.store = open_store(
            directory,
            clock=Clock(
                lambda: self.machine_ms * 1000, lambda: self.elapsed_ms * 1_000_000
            ),
        )
        self.app = App(
            Cache(self.store),
            Limits(key_size=99, value_size=99),
            clock=lambda: self.machine_ms * 1_000_000,
            # Each request is in a second of its own, so it reads the clock.
            timer=count(step=1_000_000_000).__next__,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.store.close()

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.machine_ms += ms
        self.elapsed_ms += ms

    def set_clock(self, ms: int) -> None:
        """Change the clock of the machine by some milliseconds."""
        self.machine_ms += ms

    def put(self, value: bytes) -> None:
        """Store a value."""
        self.store.put(b"key", value)

    def ask(self, method: str = "GET", **headers: str) -> Answer:
        """Send a request for the key; `If_Range` is the header If-Range."""
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": "/key"}
        environ |= {NAMES[n.replace("_", "-")]: v for n, v in headers.items()}
        seen: list[Any] = []
        body = self.app(environ, lambda *start: seen.extend(start))  # type: ignore[arg-type]
        return Answer(int(seen[0][:3]), dict(seen[1]), b"".join(body))

    def assert_is_not_taken_for(self, old: Answer) -> None:
        """Check that no condition with the date of an old value is true."""
        date = old.validator
        assert self.ask(If_Modified_Since=date).status == 200
        part = self.ask(If_Range=date, Range="bytes=1-")
        assert part.status == 200
        assert self.ask("HEAD", If_Unmodified_Since=date).status == 412
        assert self.ask("DELETE", If_Unmodified_Since=date).status == 412


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """Return an instance at 09:00:00."""
    with Instance(tmp_path) as running:
        yield running


def test_value_that_stays_is_recognised_by_its_date(instance: Instance) -> None:
    """As soon as its second is over: 304, 206, and changes are allowed."""
    instance.wait(999)
    instance.put(b"value")
    assert "Last-Modified" not in instance.ask().headers
    instance.wait(1)
    answer = instance.ask()
    assert answer.headers["Last-Modified"] == "Sat, 21 Nov 2026 09:00:01 GMT"
    for _ in range(3):
        date = answer.validator
        assert instance.ask(If_Modified_Since=date).status == 304
        part = instance.ask(If_Range=date, Range="bytes=1-")
        assert (part.status, part.body) == (206, b"alue")
        assert instance.ask("HEAD", If_Unmodified_Since=date).status == 200
        instance.wait(1_000_000)
    assert instance.ask("DELETE", If_Unmodified_Since=answer.validator).status == 200


@pytest.mark.parametrize("later_ms", [0, 1, 500, 998])
def test_value_replaced_within_its_second_is_recognised(
    instance: Instance, later_ms: int
) -> None:
    """The client has only a Date, which is earlier than the date of either value."""
    instance.put(b"old..")
    old = instance.ask()
    instance.wait(later_ms)
    instance.put(b"new..")
    for wait_ms in (0, 999 - later_ms, 1, 500, 10_000):
        instance.wait(wait_ms)
        instance.assert_is_not_taken_for(old)
    assert instance.ask().body == b"new.."


@pytest.mark.parametrize("later_ms", [1000, 1001, 1999, 5000])
def test_value_replaced_in_a_later_second_is_recognised(
    instance: Instance, later_ms: int
) -> None:
    """Also if the old one was read in the second in which it was replaced."""
    instance.put(b"old..")
    instance.wait(later_ms)
    old = instance.ask()
    assert "Last-Modified" in old.headers
    instance.put(b"new..")
    for wait_ms in (0, 500, 500, 10_000):
        instance.wait(wait_ms)
        instance.assert_is_not_taken_for(old)


@pytest.mark.parametrize("back_ms", [1, 500, 1000, 3_600_000])
@pytest.mark.parametrize("read_ms", [0, 1500])
def test_value_replaced_after_the_clock_was_set_back_is_recognised(
    instance: Instance, read_ms: int, back_ms: int
) -> None:
    """The clock of the store has not gone back, so the new value has a later date."""
    instance.put(b"old..")
    instance.wait(read_ms)
    old = instance.ask()
    instance.set_clock(-back_ms)
    instance.put(b"new..")
    for wait_ms in (0, 500, 1000, 2000, back_ms):
        instance.wait(wait_ms)
        instance.assert_is_not_taken_for(old)


def test_date_in_the_future_is_no_validator(instance: Instance) -> None:
    """After the clock was set back: the value is sent whole until the date is over."""
    instance.put(b"value")
    instance.wait(1500)
    date = instance.ask().headers["Last-Modified"]
    instance.set_clock(-60_000)
    assert "Last-Modified" not in instance.ask().headers
    assert instance.ask(If_Modified_Since=date).status == 200
    assert instance.ask(If_Range=date, Range="bytes=0-1").status == 200
    instance.wait(60_000)
    assert instance.ask(If_Modified_Since=date).status == 304
    assert instance.ask(If_Range=date, Range="bytes=0-1").status == 206


def test_date_read_while_the_clock_was_ahead_is_no_validator_later(
    instance: Instance,
) -> None:
    """
    The clock is set ahead, a value is read, the clock is set right, the value replaced.

    All within the second in which the first value was stored.
    """
    instance.put(b"old..")
    instance.set_clock(5000)
    old = instance.ask()
    instance.set_clock(-5000)
    instance.wait(1)
    instance.put(b"new..")
    for wait_ms in (0, 1000, 5000):
        instance.wait(wait_ms)
        instance.assert_is_not_taken_for(old)


@pytest.mark.property
@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.sampled_from([1, 300, 999, 1000, 2500])),
            # Ahead is the test before.
            st.tuples(st.just("set"), st.sampled_from([-1, -400, -1000, -5000])),
            st.tuples(st.just("put"), st.just(0)),
            st.tuples(st.just("read"), st.just(0)),
        ),
        max_size=25,
    )
)
def test_no_date_names_two_values(steps: list[tuple[str, int]]) -> None:
    """Whatever happens when: a condition is true only for the value that was read."""
    with tempfile.TemporaryDirectory() as folder, Instance(folder) as instance:
        instance.put(b"0")
        known: list[Answer] = []
        for number, (what, ms) in enumerate(steps, 1):
            if what == "wait":
                instance.wait(ms)
            elif what == "set":
                instance.set_clock(ms)
            elif what == "put":
                instance.put(b"%d" % number)
            else:
                known.append(instance.ask())
        present = instance.ask().body
        for old in known:
            date = old.validator
            if old.body != present:
                assert instance.ask(If_Modified_Since=date).status == 200
                assert instance.ask(If_Range=date, Range="bytes=0-").status == 200
                assert instance.ask("HEAD", If_Unmodified_Since=date).status == 412
