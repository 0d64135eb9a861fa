"""The load: which requests are sent, ends of answers, and what is computed from a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench import client
from bench.client import LoadError, corrected, percentile, summarise
from bench.load import Load, read_wrk
from bench.servers import Dataset
from support.scripted_server import ScriptedServer, answering

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
HTTP, HIT = client.is_complete_http, client.is_complete_hit
MISS, STORED = client.is_complete_miss, client.is_complete_stored


def test_percentile_is_the_nearest_rank() -> None:
    """Of one figure it is that figure."""
    percents = (50, 99, 99.9, 100, 0)
    found = [percentile(range(1, 101), percent) for percent in percents]
    assert found == [50, 99, 100, 100, 1]
    assert percentile([7.0], 99.9) == 7.0


def test_a_pause_counts_for_each_request_that_it_delayed() -> None:
    """As wrk counts them; it changes the percentiles, not the rate."""
    assert sorted(corrected([1.0, 5.0], 1.0)) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert corrected([1.0, 5.0], 0) == [1.0, 5.0]
    run = summarise([0.001] * 99 + [0.1], 0.2, 1)
    assert (run.requests, run.rate, run.p50, run.max) == (100, 500, 1.0, 100)
    assert run.p99 == pytest.approx(98)


def test_an_answer_is_complete_with_its_last_byte() -> None:
    """Each shorter piece is incomplete; a wrong answer must not count as a fast one."""
    for is_complete, answer in (
        (HTTP, b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: 3\r\n\r\nabc"),
        (HIT, b"VALUE k1 0 3\r\nabc\r\nEND\r\n"),
        (MISS, b"END\r\n"),
        (STORED, b"STORED\r\n"),
    ):
        assert not any(is_complete(answer[:end]) for end in range(1, len(answer)))
        assert is_complete(answer)
    for is_complete, answer in (
        (HTTP, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        (HTTP, b"HTTP/1.1 200 OK\r\n\r\n"),
        (HIT, b"END\r\n"),
        (MISS, b"VALUE k1 0 3\r\nabc\r\nEND\r\n"),
        (STORED, b"SERVER_ERROR out of memory\r\n"),
    ):
        with pytest.raises(LoadError):
            is_complete(answer)


@pytest.fixture
def received() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port of a server, and the requests it has received."""
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        if b"/bad" in request:
            return b"HTTP/1.1 500 No\r\n\r\n"
        return b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"

    with ScriptedServer(answering(answer)) as server:
        yield server.port, requests


def test_requests_are_sent_in_order_until_none_is_left_or_the_time_is_up(
    received: tuple[int, list[bytes]],
) -> None:
    """One is under way at a time on each connection; that at the end is the last."""
    port, requests = received
    sent = [client.http_get(key) for key in ("a", "b", "c")]
    run = client.closed_loop({port: sent}, HTTP, connections=1)
    assert (requests, run.requests) == (sent, 3)
    requests.clear()
    run = client.closed_loop({port: sent}, HTTP, connections=1, seconds=0)
    assert (requests, run.requests) == (sent[:1], 1)


def test_a_wrong_answer_ends_the_run(received: tuple[int, list[bytes]]) -> None:
    """The error shows the answer; a run without requests is an error, too."""
    port, requests = received
    sent = [client.http_get("bad"), client.http_get("a")]
    with pytest.raises(LoadError, match="500 No"):
        client.closed_loop({port: sent}, HTTP, connections=1)
    assert requests == sent[:1]
    with pytest.raises(LoadError, match="no request"):
        client.closed_loop({port: []}, HTTP, connections=1)


def test_the_line_of_the_wrk_script_is_read() -> None:
    """Microseconds become milliseconds; each answer of a run of misses is an error."""
    run = read_wrk("Running\n" + LINE % (0, 0), misses=False, source="wrk")
    assert (run.requests, run.rate, run.p50, run.max) == (500, 500, 0.25, 9)
    assert read_wrk(LINE % (500, 0), misses=True, source="wrk").requests == 500
    # No line, a status, a socket error, and a hit among misses.
    for output, misses in (
        ("", False),
        (LINE % (1, 0), False),
        (LINE % (0, 1), False),
        (LINE % (499, 0), True),
    ):
        with pytest.raises(LoadError):
            read_wrk(output, misses=misses, source="wrk")


def test_a_sample_has_each_key_once_and_depends_on_the_seed() -> None:
    """A cold key is read once only; a sequential load has the first keys in order."""
    keys = LOAD.keys(1)
    assert len(keys) == len(set(keys)) == 10
    assert keys == LOAD.keys(1) != LOAD.keys(2)
    assert set(keys) < set(LOAD.dataset.keys)
    assert replace(LOAD, kind="sequential").keys(1) == [f"k{n}" for n in range(10)]
