"""What the benchmarks make of the figures they take."""

from __future__ import annotations

import pytest

import client
from latency import percentile, summarise, with_waiting
from load import LoadError, read_figures
from proc import Usage
from results import Result
from runner import cost_figures

FIGURES = (
    'figures {"requests": 500, "micros": 1000000, "p50": 250, "p99": 1500, '
    '"p999": 2000, "max": 9000, "status": %d, "failed": %d}\n'
)


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 50), (99, 99), (99.9, 100), (100, 100), (0, 1)]
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    """Of a hundred figures the 50th is not exceeded by fifty."""
    assert percentile(range(1, 101), percent) == expected


def test_percentile_of_one_figure_is_that_figure() -> None:
    """There is always one."""
    assert percentile([7.0], 99.9) == 7.0


def test_a_pause_counts_for_every_request_it_held_up() -> None:
    """As wrk counts them: those that would have waited more than one distance."""
    assert sorted(with_waiting([1.0, 5.0], 1.0)) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert with_waiting([1.0, 5.0], 0) == [1.0, 5.0]


def test_a_summary_is_in_milliseconds_and_counts_real_requests_only() -> None:
    """What is added for a pause moves percentiles, not the rate."""
    run = summarise([0.001] * 99 + [0.1], 0.2, 1)
    assert (run.requests, run.rate) == (100, 500)
    assert run.p50 == 1.0
    assert run.p99 == pytest.approx(98)
    assert run.max == 100


def test_the_line_of_the_wrk_scripts_is_read() -> None:
    """Microseconds become milliseconds."""
    run = read_figures("Running\n" + FIGURES % (0, 0), misses=False, source="wrk")
    assert (run.requests, run.rate, run.p50, run.max) == (500, 500, 0.25, 9)


@pytest.mark.parametrize(
    ("output", "misses"),
    [
        ("", False),
        (FIGURES % (1, 0), False),
        (FIGURES % (0, 1), False),
        (FIGURES % (499, 0), True),
    ],
    ids=["no line", "a status", "a socket error", "a hit among misses"],
)
def test_figures_of_a_run_that_went_wrong_are_refused(
    output: str, *, misses: bool
) -> None:
    """They would mean nothing."""
    with pytest.raises(LoadError):
        read_figures(output, misses=misses, source="wrk")


def test_misses_are_what_a_run_of_misses_wants() -> None:
    """Every answer is an error then."""
    assert read_figures(FIGURES % (500, 0), misses=True, source="wrk").requests == 500


def test_cpu_is_divided_among_requests() -> None:
    """In microseconds, user and system apart and together."""
    used = Usage(user=0.002, system=0.003, written=0)
    assert cost_figures(100, used) == {"cpu": 50, "user": 20, "system": 30}


@pytest.mark.parametrize(
    ("is_whole", "answer"),
    [
        (
            client.is_whole_http,
            b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: 3\r\n\r\nabc",
        ),
        (client.is_whole_hit, b"VALUE k1 0 3\r\nabc\r\nEND\r\n"),
        (client.is_whole_miss, b"END\r\n"),
        (client.is_whole_stored, b"STORED\r\n"),
    ],
    ids=["http", "hit", "miss", "stored"],
)
def test_an_answer_is_whole_with_its_last_byte(
    is_whole: client.IsWhole, answer: bytes
) -> None:
    """And not before."""
    assert [is_whole(answer[:end]) for end in range(1, len(answer))] == [False] * (
        len(answer) - 1
    )
    assert is_whole(answer)


@pytest.mark.parametrize(
    ("is_whole", "answer"),
    [
        (client.is_whole_http, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        (client.is_whole_http, b"HTTP/1.1 200 OK\r\n\r\n"),
        (client.is_whole_hit, b"END\r\n"),
        (client.is_whole_miss, b"VALUE k1 0 3\r\nabc\r\nEND\r\n"),
        (client.is_whole_stored, b"SERVER_ERROR out of memory\r\n"),
    ],
)
def test_an_answer_nobody_wanted_ends_the_run(
    is_whole: client.IsWhole, answer: bytes
) -> None:
    """Instead of counting as a fast one."""
    with pytest.raises(LoadError):
        is_whole(answer)


RESULT = Result(
    name="read",
    title="Reading",
    rounds={
        "volcache": [{"cpu": 10.0}, {"cpu": 30.0}, {"cpu": 20.0}],
        "floor": [{"cpu": 5.0}, {"cpu": 10.0}, {"cpu": 20.0}],
        "idle": [{"rate": 1.0}, {"cpu": 0.0}, {"rate": 2.0}],
    },
)


def test_a_ratio_is_taken_within_each_round() -> None:
    """The median of the quotients, which is not the quotient of the medians."""
    ratio = RESULT.ratio("floor", "cpu")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.0, 3.0)


def test_what_was_not_measured_has_no_ratio() -> None:
    """Nothing is divided by nothing."""
    assert RESULT.ratio("idle", "cpu") is None
    assert RESULT.spread("volcache", "rate") is None


def test_measures_come_in_the_order_of_columns() -> None:
    """Whoever has them."""
    assert RESULT.measures() == ["rate", "cpu"]
    assert Result(name="none", title="Nothing", error="broken").measures() == []
