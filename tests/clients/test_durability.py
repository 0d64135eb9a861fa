"""What was acknowledged to a client is there after `kill -9`."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from support.memcache_ends import DRIVERS, SECONDS, Driver, MemcacheInstance
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

SESSIONS = 8
KILLS = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemcacheInstance]:
    """Run an instance to kill."""
    with MemcacheInstance(tmp_path / "data") as running:
        yield running


def found_again(driver: Driver, key: str) -> bytes | None:
    """Read with a connection that the server has lost; clients may fail a few times."""
    found: list[bytes | None] = []

    def is_answered() -> bool:
        with suppress(*driver.errors):
            found.append(driver.get(key))
        # Some clients report a lost connection as a miss.
        return bool(found) and found[-1] is not None

    wait_until(is_answered, f"{driver.name} to connect again")
    return found[-1]


def test_every_client_finds_its_values_after_a_kill(server: MemcacheInstance) -> None:
    """With the connection it had, and cas goes on where it was."""
    drivers = [kind(server.memcache_port) for kind in DRIVERS]
    uniques = []
    for number, driver in enumerate(drivers):
        driver.set(f"{number}/deleted", b"x")
        driver.set(f"{number}/counted", b"1")
        driver.set(f"{number}/cas", b"before")
        uniques.append(driver.gets(f"{number}/cas")[1])
        assert driver.delete(f"{number}/deleted")
        assert driver.incr(f"{number}/counted", 4) == 5
    drivers[-1].set("last", b"stored")
    server.kill()
    server.restart()
    for driver in drivers:  # Some wait before they connect again: all at the same time.
        with suppress(*driver.errors):
            driver.get("last")
    for number, driver in enumerate(drivers):
        assert found_again(driver, "last") == b"stored"
        assert driver.get(f"{number}/deleted") is None
        assert driver.get(f"{number}/counted") == b"5"
        assert driver.gets(f"{number}/cas") == (b"before", uniques[number])
        assert driver.cas(f"{number}/cas", b"after", uniques[number])
        assert not driver.cas(f"{number}/cas", b"again", uniques[number])
        assert driver.get(f"{number}/cas") == b"after"
        driver.close()


def connect(port: int) -> Client:
    """Return a client that waits for all answers."""
    return Client(("127.0.0.1", port), timeout=SECONDS, default_noreply=False)


class Worker(threading.Thread):
    """Changes sessions by gets and cas, as session stores do; connects again."""

    def __init__(self, port: int, number: int) -> None:
        """Choose sessions by the number."""
        super().__init__(daemon=True)
        self._port = port
        self._dice = random.Random(number)  # noqa: S311 - Repeatable.
        self.stop = threading.Event()
        # By session: increments that were acknowledged, and that were sent.
        self.done = [0] * SESSIONS
        self.sent = [0] * SESSIONS
        self.wrong: list[str] = []

    def run(self) -> None:
        """Work until told to stop."""
        while not self.stop.is_set():
            with suppress(OSError, MemcacheError):
                self._connection()

    def _connection(self) -> None:
        with closing(connect(self._port)) as client:
            while not self.stop.is_set():
                self._change(client, self._dice.randrange(SESSIONS))

    def _change(self, client: Client, session: int) -> None:
        value, unique = client.gets(f"session/{session}")
        if value is None:
            self.wrong.append(f"session {session} is gone")
            self.stop.set()
            return
        # The length changes, so that a mixture of two versions would be seen.
        count = int(value.split(b" ")[0])
        if value != text_of(count):
            self.wrong.append(f"session {session}: {value[:40]!r}")
        self.sent[session] += 1
        if client.cas(f"session/{session}", text_of(count + 1), unique):
            self.done[session] += 1
        else:
            self.sent[session] -= 1


def text_of(count: int) -> bytes:
    """Return the value of a session after this many changes."""
    return (b"%d " % count) * (count % 50 + 1)


def test_no_change_of_a_session_is_lost_over_kills(server: MemcacheInstance) -> None:
    """Of several workers at a time; none is made twice."""
    port = server.memcache_port
    with closing(connect(port)) as client:
        for session in range(SESSIONS):
            client.set(f"session/{session}", text_of(0))
    workers = [Worker(port, number) for number in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(KILLS):
        before = sum(sum(worker.done) for worker in workers)
        wait_until(
            lambda: sum(sum(worker.done) for worker in workers) > before + 100,  # noqa: B023
            "a hundred changes",
        )
        server.kill()
        server.restart()
    for worker in workers:
        worker.stop.set()
        worker.join(30)
        assert not worker.is_alive()
        assert not worker.wrong
    with closing(connect(port)) as client:
        for session in range(SESSIONS):
            count = int(client.get(f"session/{session}").split(b" ")[0])
            done = sum(worker.done[session] for worker in workers)
            sent = sum(worker.sent[session] for worker in workers)
            assert done <= count <= sent
            assert client.get(f"session/{session}") == text_of(count)
