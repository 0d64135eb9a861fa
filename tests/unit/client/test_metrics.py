"""metrics.py: counters that are right whatever the threads do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from volcache_client.metrics import Counters

THREADS, ROUNDS = 8, 2_000


def test_counters_in_a_child_process_take_no_lock_of_the_parent() -> None:
    """Another thread of the parent may have had it."""
    counters = Counters()
    counters._lock.acquire()
    counters.after_fork()
    counters.error(ValueError())
    assert counters.read({})["errors"] == {"ValueError": 1}


def test_counters_of_eight_threads_lose_nothing() -> None:
    """While a ninth reads: each reading is consistent."""
    counters = Counters()
    barrier = Barrier(THREADS)

    def work(_: int) -> None:
        barrier.wait(30)
        for turn in range(ROUNDS):
            counters.operation_ended("get", "hit" if turn % 2 else "miss", 0.25)
            counters.making("made")
            counters.making("waits")
            counters.error(ValueError())

    with ThreadPoolExecutor(THREADS) as pool:
        done = [pool.submit(work, number) for number in range(THREADS)]
        while not all(future.done() for future in done):
            read = counters.read({})
            ended = sum(read["operations"].get("get", {}).values())
            assert sum(sum(d["counts"]) for d in read["durations"].values()) == ended
            assert read["made"] >= read["waits"]
        for future in done:
            future.result()
    total = THREADS * ROUNDS
    read = counters.read({})
    assert read["operations"] == {"get": {"hit": total / 2, "miss": total / 2}}
    assert read["durations"]["get"]["seconds"] == total / 4
    assert (read["made"], read["waits"]) == (total, total)
    assert read["errors"] == {"ValueError": total}
