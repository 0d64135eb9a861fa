"""What was acknowledged to a client is there after `kill -9`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.memcache import MemcacheServer
from support.memcache_clients import DRIVERS, Driver
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemcacheServer]:
    """Run an instance to kill."""
    with MemcacheServer(tmp_path / "data") as running:
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


def test_get_after_a_kill_returns_the_values(server: MemcacheServer) -> None:
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
