"""metrics.py: counters that are right whatever the threads do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from volcache_client.metrics import Counters

THREADS, ROUNDS = 8, 2_000


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
            counters.request_ended(node, failures=turn % 10 == 0)
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
