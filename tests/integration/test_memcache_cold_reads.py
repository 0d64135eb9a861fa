"""Records that are not in memory: other memcached clients do not wait for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from support.machine import Machine
from support.memcache import MemcacheServer, RawClient

pytestmark = [pytest.mark.disk, pytest.mark.integration, pytest.mark.slow]

DISK_SECONDS: Final = 1.0
COLD: Final = bytes(range(256)) * 100


def found(key: bytes) -> bytes:
    """Return what a get of a value answers, without its end."""
    return b"VALUE %s 0 %d\r\n%s\r\n" % (key, len(COLD), COLD)


def seconds_of(client: RawClient, sent: bytes, expected: bytes) -> float:
    """Return how long a client waits for its replies."""
    started = time.monotonic()
    client.send(sent)
    assert client.read(len(expected)) == expected
    return time.monotonic() - started


def test_only_who_asks_waits_for_the_disk(tmp_path: Path) -> None:
    """Its later commands wait, too: it gets all replies in order."""
    machine = Machine(tmp_path)
    # A read takes longer: it does not count as time of the client.
    settings = {"transfer_timeout": DISK_SECONDS / 2}
    place, environment = tmp_path / "store", machine.environment
    with (
        MemcacheServer(place, settings, environment=environment) as server,
        server.client() as waiting,
        server.client() as client,
    ):
        for key in ("cold", "other", "hot", "end"):  # Each in pages of its own.
            assert client.set(key, COLD) == b"STORED"
        machine.slow_down("store/data/", DISK_SECONDS)
        assert client.get("hot") == COLD
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
