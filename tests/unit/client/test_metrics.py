"""metrics.py: counters that are right whatever the threads do."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from support.tables import each_row
from volcache_client.errors import InvalidKeyError, NodeDownError
from volcache_client.metrics import BUCKETS, Counters, NodeNumbers

THREADS, ROUNDS = 8, 2_000


def test_new_client_has_no_numbers() -> None:
    """But all its nodes."""
    read = Counters().read({"a:1": (True, 0), "b:1": (False, 2)})
    assert not any((read.operations, read.errors, read.durations))
    assert (read.made, read.waits) == (0, 0)
    assert read.nodes == {
        "a:1": NodeNumbers(is_up=True, requests=0, failures=0, in_flight=0, connections=0),
        "b:1": NodeNumbers(is_up=False, requests=0, failures=0, in_flight=0, connections=2),
    }  # fmt: skip


def test_operations_are_counted_by_name_and_outcome() -> None:
    """And their durations by name."""
    counters = Counters()
    for outcome in ("hit", "hit", "miss"):
        counters.operation_ended("get", outcome, 0.25)
    counters.operation_ended("put", "done", 0.5)
    read = counters.read({})
    assert read.operations == {
        ("get", "hit"): 2,
        ("get", "miss"): 1,
        ("put", "done"): 1,
    }
    assert read.durations["get"].seconds == 0.75
    assert sum(read.durations["get"].counts) == 3
    assert sum(read.durations["put"].counts) == 1


@each_row(
    ("seconds", "place"),
    [
        (0.0, 0),
        *((limit, place) for place, limit in enumerate(BUCKETS)),
        *((math.nextafter(limit, 9), place + 1) for place, limit in enumerate(BUCKETS)),
        (1e9, len(BUCKETS)),
    ],
)
def test_duration_is_counted_in_its_class(seconds: float, place: int) -> None:
    """A class includes its upper limit."""
    counters = Counters()
    counters.operation_ended("get", "hit", seconds)
    counts = counters.read({}).durations["get"].counts
    assert counts.index(1) == place
    assert len(counts) == len(BUCKETS) + 1


def test_requests_are_counted_by_node() -> None:
    """Those that are not answered yet are in flight."""
    counters = Counters()
    for _ in range(3):
        counters.request_began("a:1")
    counters.request_ended("a:1", is_failure=True)
    counters.request_ended("a:1", is_failure=False)
    read = counters.read({"a:1": (True, 1), "b:1": (True, 0)})
    assert read.nodes["a:1"] == (True, 3, 1, 1, 1)
    assert read.nodes["b:1"] == (True, 0, 0, 0, 0)


def test_errors_are_counted_by_class() -> None:
    """Of this package and others."""
    counters = Counters()
    for error in (
        NodeDownError("a:1", "x"),
        InvalidKeyError("x"),
        InvalidKeyError("y"),
    ):
        counters.error(error)
    assert counters.read({}).errors == {"NodeDownError": 1, "InvalidKeyError": 2}


def test_numbers_that_were_read_do_not_change() -> None:
    """They are of one moment."""
    counters = Counters()
    counters.operation_ended("get", "hit", 0.1)
    counters.error(ValueError())
    read = counters.read({"a:1": (True, 0)})
    before = repr(read)
    counters.operation_ended("get", "hit", 0.1)
    counters.operation_ended("head", "hit", 0.1)
    counters.error(ValueError())
    counters.request_began("a:1")
    assert repr(read) == before


def test_child_process_has_nothing_in_flight() -> None:
    """And takes no lock that another thread of the parent had."""
    counters = Counters()
    counters.request_began("a:1")
    counters._lock.acquire()
    counters.after_fork()
    counters.request_began("a:1")
    assert counters.read({"a:1": (True, 0)}).nodes["a:1"].in_flight == 1


def test_no_count_of_eight_threads_is_lost() -> None:
    """While a ninth reads: each reading is consistent."""
    counters = Counters()
    barrier = Barrier(THREADS)

    def work(number: int) -> None:
        barrier.wait(30)
        node = f"a:{number % 2}"
        for turn in range(ROUNDS):
            counters.request_began(node)
            counters.request_ended(node, is_failure=turn % 10 == 0)
            counters.operation_ended("get", "hit" if turn % 2 else "miss", 0.25)
            counters.made()
            counters.waited()
            counters.error(ValueError())

    nodes = {"a:0": (True, 0), "a:1": (True, 0)}
    with ThreadPoolExecutor(THREADS) as pool:
        done = [pool.submit(work, number) for number in range(THREADS)]
        while not all(future.done() for future in done):
            read = counters.read(nodes)
            ended = sum(read.operations.values())
            assert sum(sum(d.counts) for d in read.durations.values()) == ended
            assert read.made >= read.waits
            for numbers in read.nodes.values():
                assert 0 <= numbers.in_flight <= THREADS
        for future in done:
            future.result()
    total = THREADS * ROUNDS
    read = counters.read(nodes)
    assert read.operations == {("get", "hit"): total / 2, ("get", "miss"): total / 2}
    assert read.durations["get"].seconds == total / 4
    assert (read.made, read.waits) == (total, total)
    assert read.errors == {"ValueError": total}
    for numbers in read.nodes.values():
        assert numbers == (True, total / 2, total / 20, 0, 0)
