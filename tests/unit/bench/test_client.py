"""The closed-loop client: percentiles, ends of answers, and which answers are errors."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from bench import client
from bench.client import LoadError, corrected, percentile, summarise
from support.tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

OK_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


@each_row(
    ("percent", "expected"), [(50, 50), (99, 99), (99.9, 100), (100, 100), (0, 1)]
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    """The figures are 1 to 100."""
    assert percentile(range(1, 101), percent) == expected


def test_percentile_of_one_figure_is_that_figure() -> None:
    """At any percentage."""
    assert percentile([7.0], 99.9) == 7.0


def test_a_pause_counts_for_each_request_that_it_delayed() -> None:
    """As wrk counts them."""
    assert sorted(corrected([1.0, 5.0], 1.0)) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert corrected([1.0, 5.0], 0) == [1.0, 5.0]


def test_a_summary_is_in_milliseconds_and_counts_requests_that_were_sent() -> None:
    """Corrections of pauses change the percentiles, not the rate."""
    run = summarise([0.001] * 99 + [0.1], 0.2, 1)
    assert (run.requests, run.rate) == (100, 500)
    assert run.p50 == 1.0
    assert run.p99 == pytest.approx(98)
    assert run.max == 100


@pytest.mark.parametrize(
    ("is_complete", "answer"),
    [
        (
            client.is_complete_http,
            b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: 3\r\n\r\nabc",
        ),
        (client.is_complete_hit, b"VALUE k1 0 3\r\nabc\r\nEND\r\n"),
        (client.is_complete_miss, b"END\r\n"),
        (client.is_complete_stored, b"STORED\r\n"),
    ],
    ids=["http", "hit", "miss", "stored"],
)
def test_an_answer_is_complete_with_its_last_byte(
    is_complete: client.IsComplete, answer: bytes
) -> None:
    """Each shorter piece is incomplete."""
    assert [is_complete(answer[:end]) for end in range(1, len(answer))] == [False] * (
        len(answer) - 1
    )
    assert is_complete(answer)


@each_row(
    ("is_complete", "answer"),
    [
        (
            client.is_complete_http,
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        ),
        (client.is_complete_http, b"HTTP/1.1 200 OK\r\n\r\n"),
        (client.is_complete_hit, b"END\r\n"),
        (client.is_complete_miss, b"VALUE k1 0 3\r\nabc\r\nEND\r\n"),
        (client.is_complete_stored, b"SERVER_ERROR out of memory\r\n"),
    ],
)
def test_a_wrong_answer_is_an_error(
    is_complete: client.IsComplete, answer: bytes
) -> None:
    """It must not count as a fast one."""
    with pytest.raises(LoadError):
        is_complete(answer)


@pytest.fixture
def received() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port of a server of one connection, and the requests it has received."""
    requests: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        stream, _ = listener.accept()
        with stream:
            while data := stream.recv(1000):
                requests.append(data)
                answer = b"HTTP/1.1 500 No\r\n\r\n" if b"/bad" in data else OK_ANSWER
                stream.sendall(answer)

    with socket.create_server((client.IP, 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        yield listener.getsockname()[1], requests
        thread.join(10)


def test_requests_are_sent_in_order_until_there_are_none_left(
    received: tuple[int, list[bytes]],
) -> None:
    """One request is under way at a time on each connection."""
    port, requests = received
    sent = [client.http_get(key) for key in ("a", "b", "c")]
    run = client.closed_loop({port: sent}, client.is_complete_http, connections=1)
    assert requests == sent
    assert run.requests == 3


def test_requests_end_with_the_time(received: tuple[int, list[bytes]]) -> None:
    """The request under way when the time is up is the last."""
    port, requests = received
    sent = [client.http_get(key) for key in ("a", "b", "c")]
    loop = client.closed_loop
    run = loop({port: sent}, client.is_complete_http, connections=1, seconds=0)
    assert requests == sent[:1]
    assert run.requests == 1


def test_a_wrong_answer_ends_the_run(received: tuple[int, list[bytes]]) -> None:
    """The connection is closed and the error shows the answer."""
    sent = [client.http_get("bad"), client.http_get("a")]
    with pytest.raises(LoadError, match="500 No"):
        client.closed_loop({received[0]: sent}, client.is_complete_http, connections=1)
    assert received[1] == sent[:1]


def test_a_run_without_requests_is_an_error(received: tuple[int, list[bytes]]) -> None:
    """It has no figures."""
    with pytest.raises(LoadError, match="no request"):
        client.closed_loop({received[0]: []}, client.is_complete_http, connections=1)
