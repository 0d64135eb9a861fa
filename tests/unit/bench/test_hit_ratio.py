"""Replays count what a client would see, and volumes hold what was asked for."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import hit_ratio
from bench.hit_ratio import (
    TraceError,
    Values,
    read_trace,
)
from volcache.store.format import RECORD_OVERHEAD_BYTES


def trace_of(*lines: str, folder: Path) -> Path:
    """Write a trace."""
    path = folder / "trace"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    return path


Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    """Return a function that replays lines, and returns what is printed as JSON."""

    def replayed(lines: list[str], *arguments: str) -> dict[str, Any]:
        path = trace_of(*lines, folder=tmp_path)
        hit_ratio.main([str(path), "--json", *arguments])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return replayed


# --- Traces --------------------------------------------------------------------------


def test_lines_are_gets_and_puts(tmp_path: Path) -> None:
    """A plus sign is a PUT; without sizes each request counts the same."""
    trace = read_trace(trace_of("a 3", "+b 4", "a 3", folder=tmp_path))
    assert list(trace.keys) == [b"a", b"b", b"a"]
    assert list(trace.sizes) == [3, 4, 3]
    assert list(trace.puts) == [0, 1, 0]
    assert trace.requested() == [3, 3]
    path = tmp_path / "trace.xz"
    path.write_bytes(lzma.compress(b"a\nb\n"))
    trace = read_trace(path)
    assert list(trace.keys) == [b"a", b"b"]
    assert list(trace.weights()) == [1, 1]


def test_a_wrong_trace_is_refused(tmp_path: Path) -> None:
    """With the number of the line, where one is wrong; without a traceback."""
    for lines, error in (
        (["a", "b c d"], ":2: neither"),
        (["a 1", "b -1"], ":2: neither"),
        (["a", "+"], ":2: neither"),
        (["a", ""], ":2: neither"),
        (["a 1", "b"], "some lines have a SIZE"),
        (["a", "b 1"], "some lines have a SIZE"),
        ([], "no requests"),
    ):
        with pytest.raises(SystemExit, match=error):
            hit_ratio.main([str(trace_of(*lines, folder=tmp_path))])
    path = tmp_path / "trace.xz"
    path.write_text("a\n", encoding="ascii")
    with pytest.raises(SystemExit, match="no figures"):
        hit_ratio.main([str(path)])


# --- Replays -------------------------------------------------------------------------


LINES = ["a 10", "a 10", "+b 30", "b 30", "c 50"]


def test_a_get_that_misses_is_followed_by_a_put(result: Replay) -> None:
    """PUTs that no GET asked for are hits later, and are not in the ratios."""
    found = result(LINES, "--capacity", "100000", "--eviction", "fifo")
    assert found.pop("requests_per_second") > 0
    expected = {
        "requests": 4,
        "misses": 2,
        "puts": 3,
        "object_miss": 0.5,
        "byte_miss": 0.6,
        "write_amplification": 1,
        "put_bytes": 3 * (RECORD_OVERHEAD_BYTES + 1) + 90,
        "capacity": 100_000,
        "volumes": 64,
        "keys": 3,
    }
    assert found | expected == found


def test_what_does_not_fit_is_evicted(result: Replay) -> None:
    """A loop over twice the capacity of a FIFO has no hit."""
    lines = [f"k{number % 200}" for number in range(1000)]
    arguments = ["--capacity", "100", "--volumes", "10", "--eviction", "fifo"]
    assert result(lines, *arguments)["object_miss"] == 1
    # A value larger than a volume is a miss each time, and the replay goes on.
    found = result(["a 5000", "a 5000", "b 1", "b 1"], "--capacity", "6400")
    assert (found["too_large"], found["misses"]) == (2, 3)


def test_a_wrong_value_ends_the_replay() -> None:
    """One of another key, or of another length."""
    values = Values(100)
    value = values.make(b"one", 50)
    values.stored[b"one"] = values.stored[b"two"] = 50
    values.check(b"one", value)
    with pytest.raises(TraceError, match="wrong value"):
        values.check(b"two", value)
    with pytest.raises(TraceError, match="wrong value"):
        values.check(b"one", value[:-1])
