"""Loads: which requests are sent, and what is computed from a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.client import LoadError
from bench.load import Load, cpu_figures, read_wrk, turns, wrk_arguments
from bench.machine import Usage
from bench.servers import Dataset
from support.tables import each_row

if TYPE_CHECKING:
    from typing import Literal

LOAD = Load(
    kind="sample",
    dataset=Dataset(count=50, value_bytes=1024),
    seconds=1,
    connections=2,
    sample=10,
)
LINE = (
    'figures {"requests": 500, "micros": 1000000, "p50": 250, "p99": 1500, '
    '"p999": 2000, "max": 9000, "status": %d, "failed": %d}\n'
)


def test_the_line_of_the_wrk_script_is_read() -> None:
    """Microseconds become milliseconds."""
    run = read_wrk("Running\n" + LINE % (0, 0), misses=False, source="wrk")
    assert (run.requests, run.rate, run.p50, run.max) == (500, 500, 0.25, 9)


@pytest.mark.parametrize(
    ("output", "misses"),
    [
        ("", False),
        (LINE % (1, 0), False),
        (LINE % (0, 1), False),
        (LINE % (499, 0), True),
    ],
    ids=["no line", "a status", "a socket error", "a hit among misses"],
)
def test_a_run_of_wrk_that_failed_has_no_figures(output: str, *, misses: bool) -> None:
    """The error has what wrk printed."""
    with pytest.raises(LoadError):
        read_wrk(output, misses=misses, source="wrk")


def test_each_answer_of_a_run_of_misses_is_an_error_status() -> None:
    """A 404 is an error to wrk."""
    assert read_wrk(LINE % (500, 0), misses=True, source="wrk").requests == 500


@each_row(
    ("kind", "expected"),
    [
        ("get", ["50", "k", "0", "1024"]),
        ("put", ["50", "k", "100", "1024"]),
        ("mix", ["50", "k", "5", "1024"]),
        ("miss", ["50", "none", "0", "1024"]),
    ],
)
def test_wrk_is_given_the_keys_and_the_share_of_puts(
    kind: Literal["get", "put", "mix", "miss"], expected: list[str]
) -> None:
    """And the size of values."""
    assert wrk_arguments(replace(LOAD, kind=kind)) == expected


def test_a_sample_has_each_key_once_and_depends_on_the_seed() -> None:
    """A cold key is read once only."""
    keys = LOAD.keys(1)
    assert len(keys) == len(set(keys)) == 10
    assert keys == LOAD.keys(1) != LOAD.keys(2)
    assert set(keys) < set(LOAD.dataset.keys)


def test_a_sequential_load_has_the_first_keys_in_the_order_they_were_stored() -> None:
    """The key k0 was stored first."""
    assert replace(LOAD, kind="sequential").keys(1) == [f"k{n}" for n in range(10)]


def test_cpu_is_divided_by_the_requests() -> None:
    """In microseconds."""
    used = Usage(user=0.002, system=0.003, written=0)
    assert cpu_figures(100, used) == {"cpu": 50, "user": 20, "system": 30}


def test_each_round_starts_with_another_contender() -> None:
    """Each contender has one turn in each round."""
    assert list(turns(["a", "b"], 1)) == [(0, "a"), (0, "b")]
    assert list(turns(["a", "b"], 2)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]
