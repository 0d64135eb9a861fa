"""Records that are not in memory: other memcached clients do not wait for them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.machine import Machine
from support.memcache import MemcacheServer, RawClient
from support.process import SHARED

pytestmark = [pytest.mark.disk, pytest.mark.integration, pytest.mark.slow]

DISK_SECONDS: Final = 1.0
COLD: Final = bytes(range(256)) * 100


class Slow(MemcacheServer):
    """An instance whose disk is slow, with "cold", "other" and "hot"."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        """Prepare it."""
        machine.slow_down("nothing", 0)
        super().__init__(
            folder / "store",
            # A read takes longer: it does not count as time of the client.
            settings={**SHARED, "transfer_timeout": DISK_SECONDS / 2},
            environment=machine.environment,
        )
        self.machine = machine

    def slow_down(self) -> None:
        """Store the values, and take all but "hot" out of the memory."""
        with self.client() as client:
            for key in ("cold", "other", "hot", "end"):
                # Each in pages of its own.
                assert client.set(key, COLD) == b"STORED"
            self.machine.slow_down("store/data/", DISK_SECONDS)
            assert client.get("hot") == COLD


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    """Run an instance whose files are on the disk."""
    machine = Machine(tmp_path)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        Slow(Path(folder), machine) as server,
    ):
        server.slow_down()
        yield server
        machine.slow_down("nothing", 0)


def found(key: bytes) -> bytes:
    """Return what a get of a value answers, without its end."""
    return b"VALUE %s 0 %d\r\n%s\r\n" % (key, len(COLD), COLD)


def seconds_of(client: RawClient, sent: bytes, expected: bytes) -> float:
    """Return how long a client waits for its replies."""
    started = time.monotonic()
    client.send(sent)
    assert client.read(len(expected)) == expected
    return time.monotonic() - started


def test_only_who_asks_waits_for_the_disk(slow: Slow) -> None:
    """Its later commands wait, too: it gets all replies in order."""
    with slow.client() as waiting, slow.client() as client:
        started = time.monotonic()
        waiting.send(b"get hot cold other\r\nmn\r\nget hot\r\nincr hot 1\r\n")
        assert waiting.read(len(found(b"hot"))) == found(b"hot")
        answers = 0
        while time.monotonic() < started + DISK_SECONDS / 2:
            took = seconds_of(client, b"get hot\r\n", found(b"hot") + b"END\r\n")
            assert took < DISK_SECONDS / 2
            answers += 1
        assert answers > 10
        expected = found(b"cold") + found(b"other") + b"END\r\nMN\r\n"
        assert waiting.read(len(expected)) == expected
        assert time.monotonic() - started > DISK_SECONDS * 0.8
        assert waiting.read(len(found(b"hot")) + 5) == found(b"hot") + b"END\r\n"
        assert waiting.line().startswith(b"CLIENT_ERROR")
