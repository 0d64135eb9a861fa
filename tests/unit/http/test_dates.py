"""Dates as validators: with a store, when values and clocks change within a second."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.clocks import ManualClock
from support.extent import examples
from support.stores import open_store
from support.wsgi_client import Answer, Client
from volcache.cache import Cache
from volcache.http.preconditions import parse_date
from volcache.http.responses import format_date

NINE_MS = 1_795_251_600_000  # 2026-11-21 09:00:00 UTC


def validator(answer: Answer) -> str:
    """Return the date that a client compares with later: RFC 9110 section 13.1.3."""
    return answer.headers.get("Last-Modified") or answer.headers["Date"]


class Instance:
    """A store and an application on a machine whose clock a test sets."""

    def __init__(self, directory: Path | str) -> None:
        """Start at 09:00:00."""
        self.machine_ms = NINE_MS
        self.elapsed_ms = 0
        clock = ManualClock(
            lambda: self.machine_ms * 1000, lambda: self.elapsed_ms * 1_000_000
        )
        self.store = open_store(directory, clock=clock)
        self.client = Client(Cache(self.store), clock=lambda: self.machine_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.store.close()

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.machine_ms += ms
        self.elapsed_ms += ms

    def put(self, value: bytes) -> None:
        """Store a value."""
        self.store.put(b"key", value)

    def ask(self, method: str = "GET", **headers: str) -> Answer:
        """Send a request for the key; `If_Range` is the header If-Range."""
        given = {f"HTTP_{name.upper()}": text for name, text in headers.items()}
        return self.client.ask(method, "/key", b"", **given)

    def check(self, old: Answer) -> None:
        """Check that no condition with the date of an old value is true."""
        date = validator(old)
        if old.body != self.ask().body:
            assert self.ask(If_Modified_Since=date).status == "200 OK"
            assert self.ask(If_Range=date, Range="bytes=0-").status == "200 OK"
            for method in ("HEAD", "DELETE"):
                answer = self.ask(method, If_Unmodified_Since=date)
                assert answer.status == "412 Precondition Failed"


def test_condition_with_a_date_in_the_future_is_false(tmp_path: Path) -> None:
    """After the clock was set back: the value is sent whole until the date is over."""
    with Instance(tmp_path) as instance:
        instance.put(b"value")
        instance.wait(1500)
        date = instance.ask().headers["Last-Modified"]
        instance.machine_ms -= 60_000
        assert "Last-Modified" not in instance.ask().headers
        assert instance.ask(If_Modified_Since=date).status[:3] == "200"
        assert instance.ask(If_Range=date, Range="bytes=0-1").status[:3] == "200"
        instance.wait(60_000)
        assert instance.ask(If_Modified_Since=date).status[:3] == "304"
        assert instance.ask(If_Range=date, Range="bytes=0-1").status[:3] == "206"


def play(steps: list[tuple[str, int]]) -> None:
    """
    Store, read, wait and set the clock, in milliseconds.

    A condition is true only for the value that was read.
    """
    with tempfile.TemporaryDirectory() as folder, Instance(folder) as instance:
        instance.put(b"0")
        known: list[Answer] = []
        for number, (what, ms) in enumerate(steps, 1):
            if what == "wait":
                instance.wait(ms)
            elif what == "set":
                instance.machine_ms += ms
            elif what == "put":
                instance.put(b"%d" % number)
            else:
                known.append(instance.ask())
            for old in known:
                instance.check(old)


PUT, READ = ("put", 0), ("read", 0)
WAITS = [("wait", ms) for ms in (0, 1, 499, 500, 1000, 10_000)]


def test_put_after_the_clock_was_ahead_has_another_date() -> None:
    """The first value was read while it was ahead."""
    play([("set", 5000), READ, ("set", -5000), ("wait", 1), PUT, *WAITS])


@pytest.mark.property
@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.sampled_from([1, 300, 999, 1000, 2500])),
            # Ahead is the test before.
            st.tuples(st.just("set"), st.sampled_from([-1, -400, -1000, -5000])),
            st.just(PUT) | st.just(READ),
        ),
        max_size=25,
    )
)
def test_condition_with_any_date_is_true_for_one_value_only(
    steps: list[tuple[str, int]],
) -> None:
    play(steps)


@pytest.mark.property
@given(st.integers(0, 4_000_000_000))
def test_parse_date_of_a_formatted_date_returns_its_second(seconds: int) -> None:
    assert parse_date(format_date(seconds)) == seconds


@pytest.mark.slow
@pytest.mark.property
@given(st.text(max_size=40) | st.from_regex(r"\w{3}, \d+ \w{3} \d+ [\d:]+ [+-]?\w+"))
def test_parse_date_of_any_text_returns_a_date_or_none(text: str) -> None:
    assert isinstance(parse_date(text), int | None)
