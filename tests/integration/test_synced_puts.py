"""With `sync_mode = "always"`, values that arrive together are synced together."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Final

import pytest

from support.machine import Machine
from support.memcache import MemcacheServer
from support.process import is_renewed
from support.waiting import wait_until
from support.wire import Talk, connect, exchange, request_bytes

pytestmark = pytest.mark.integration

CLIENTS: Final = 30  # For each protocol.
VALUE: Final = b"x" * 1000
# A volume whose sync has failed is not written again.
SETTINGS: Final = {"sync_mode": "always", "volume_num": 32}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Return a machine whose disk can be slow."""
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.fixture(scope="module")
def _shared(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemcacheServer]:
    folder, environment = tmp_path_factory.mktemp("store"), machine.environment
    with MemcacheServer(folder, SETTINGS, environment=environment) as started:
        yield started


@pytest.fixture
def server(_shared: MemcacheServer) -> Iterator[MemcacheServer]:
    """Yield an instance that syncs each value, and has one."""
    assert is_renewed(_shared)
    assert exchange(_shared.port, "PUT", "/before", b"before").status == 200
    yield _shared
    assert "Traceback" not in _shared.stderr


def counted(server: MemcacheServer) -> Counter[str]:
    """Count the values that were stored over HTTP, and in all."""
    found = server.stats()
    by = found["requests"]["by"]
    puts = {row["status"]: row["count"] for row in by if row["method"] == "PUT"}
    return Counter(puts=puts[200], all=sum(found["latency"]["disk_write"]["counts"]))


def put(key: str) -> bytes:
    """Return a request that stores a value."""
    return request_bytes("PUT", f"/{key}", VALUE + key.encode())


def status(server: MemcacheServer, key: str) -> int:
    """Ask for a key."""
    return exchange(server.port, "GET", f"/{key}").status


def begin_a_sync(machine: Machine, client: Talk) -> None:
    """Store a value, whose sync is held."""
    before = machine.syncs
    client.send(put("first"))
    wait_until(lambda: machine.syncs > before, "a sync")


def test_values_that_wait_for_the_disk_are_synced_together(
    machine: Machine, server: MemcacheServer
) -> None:
    """Meanwhile nobody sees them, and reads are answered."""
    counts = counted(server)
    with ExitStack() as opened:
        first, *talks = [
            opened.enter_context(Talk(server.port)) for _ in range(CLIENTS + 1)
        ]
        clients = [opened.enter_context(server.client()) for _ in range(CLIENTS)]
        with machine.held_syncs():
            begin_a_sync(machine, first)
            before = machine.syncs
            for number, talk in enumerate(talks):
                talk.send(put(f"http/{number}"))
            for number, client in enumerate(clients):
                client.send(b"set text/%d 0 0 2\r\nab\r\n" % number)
            for key in ("first", "http/0", "text/0"):
                assert status(server, key) == 404
            assert status(server, "before") == 200
            assert machine.syncs == before
        assert first.read().status == 200
        assert {talk.read().status for talk in talks} == {200}
        assert {client.line() for client in clients} == {b"STORED"}
        assert machine.syncs - before < CLIENTS / 2
        assert [talk.exchange("GET", "/http/7").status for talk in talks[:3]] == [
            200
        ] * 3
        assert clients[0].get("text/3") == b"ab"
    assert counted(server) - counts == {"puts": CLIENTS + 1, "all": 2 * CLIENTS + 1}


def test_requests_of_a_connection_are_answered_in_their_order(
    server: MemcacheServer,
) -> None:
    """Also if they are sent without waiting: a read sees the value before it."""
    values = [b"%d" % number * 3000 for number in range(20)]
    with Talk(server.port) as talk:
        for value in values:
            talk.send(request_bytes("PUT", "/same", value))
            talk.send(request_bytes("GET", "/same"))
        for value in values:
            assert talk.read("PUT").status == 200
            assert talk.read().body == value


def test_value_of_a_client_that_has_gone_is_stored(
    machine: Machine, server: MemcacheServer
) -> None:
    with Talk(server.port) as first, machine.held_syncs():
        begin_a_sync(machine, first)
        for key in ("gone", "reset"):
            with closing(connect(server.port)) as connection:
                connection.sendall(put(key))
        with server.client() as client:
            client.send(b"set gone/text 0 0 2\r\nab\r\n")
        assert status(server, "gone") == 404
    for key in ("first", "gone", "reset", "gone/text"):
        wait_until(lambda key=key: status(server, key) == 200, f"{key} to be stored")  # type: ignore[misc]


def test_put_whose_sync_fails_stores_no_value(
    machine: Machine, server: MemcacheServer
) -> None:
    """Not even after a kill, once another one is stored."""
    keys = [f"key/{number}" for number in range(5)]
    with ExitStack() as opened:
        first, *talks = [opened.enter_context(Talk(server.port)) for _ in range(6)]
        client = opened.enter_context(server.client())
        with machine.held_syncs():
            begin_a_sync(machine, first)
            for talk, key in zip(talks, keys, strict=True):
                talk.send(put(key))
            client.send(b"set text 0 0 2\r\nab\r\n")
            assert status(server, keys[-1]) == 404
            with machine.failing_syncs():
                assert first.read().status == 507
                assert {talk.read().status for talk in talks} == {507}
                assert client.line().startswith(b"SERVER_ERROR")
    assert server.stats()["store"]["sync_errors"] > 0
    assert exchange(server.port, "PUT", "/after", b"after").status == 200
    for _ in range(2):
        assert {status(server, key) for key in [*keys, "first", "text"]} == {404}
        assert exchange(server.port, "GET", "/before").body == b"before"
        assert exchange(server.port, "GET", "/after").body == b"after"
        server.kill()
        server.restart()


def test_stop_answers_what_waits_for_the_disk(
    machine: Machine, server: MemcacheServer
) -> None:
    """And it is there after the next start."""
    with Talk(server.port) as first, Talk(server.port) as other:
        with machine.held_syncs():
            begin_a_sync(machine, first)
            other.send(put("other"))
            assert status(server, "other") == 404
            server.send_signal(signal.SIGTERM)
            wait_until(lambda: "stop.started" in server.stderr, "the stop to begin")
        assert first.read().status == other.read().status == 200
        assert server.wait() == 0
    server.restart()
    assert status(server, "first") == status(server, "other") == 200
