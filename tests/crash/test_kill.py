"""Kill the server process with SIGKILL under load, restart it and compare."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from support.process import ServerProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.integration, pytest.mark.slow]

CLIENTS = 4
KILLS = 3
OPERATIONS_BEFORE_KILL = 400
DEADLINE_SECONDS = 30
BROKEN: Final = (OSError, HTTPException)


def connect(url: str) -> HTTPConnection:
    """Return a connection: many requests, and `requests` takes a millisecond for each."""
    return HTTPConnection(urlsplit(url).netloc, timeout=5)


def ask(
    connection: HTTPConnection, method: str, key: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """Send one request and return the status and the body of the response."""
    connection.request(method, f"/{key}", body)
    response = connection.getresponse()
    return response.status, response.read()


class Client(threading.Thread):
    """Puts, overwrites and deletes keys of its own until the server is killed."""

    def __init__(self, number: int) -> None:
        """Begin with nothing stored."""
        super().__init__(daemon=True)
        self.number = number
        self.url = ""
        self.acknowledged: dict[str, bytes | None] = {}
        self.under_way: dict[str, bytes | None] = {}
        self.operations = 0

    def run(self) -> None:
        """Send requests until one fails."""
        with closing(connect(self.url)) as connection, suppress(*BROKEN):
            while True:
                self._operate(connection)

    def _operate(self, connection: HTTPConnection) -> None:
        self.operations += 1
        key = f"client%20{self.number}/key%20{self.operations % 50}"
        is_delete = self.operations % 7 == 0
        value = None if is_delete else f"{self.operations}.".encode() * 60
        self.under_way = {key: value}
        if value is None:
            assert ask(connection, "DELETE", key)[0] in {200, 404}
        else:
            assert ask(connection, "PUT", key, value)[0] == 200
        self.acknowledged[key] = value
        self.under_way = {}

    def next(self) -> Client:
        """Return a client that continues where this one stopped."""
        other = Client(self.number)
        other.acknowledged = self.acknowledged
        other.operations = self.operations
        return other


def wait_for_operations(clients: list[Client], count: int) -> None:
    """Wait until all clients together have begun `count` more operations."""

    def done() -> int:
        return sum(client.operations for client in clients)

    goal = done() + count
    wait_until(lambda: done() >= goal, "the server to take any load")


def verify(clients: list[Client], url: str) -> None:
    """Compare every key with what was acknowledged for it."""
    with closing(connect(url)) as connection:
        for client in clients:
            for key in client.acknowledged | client.under_way:
                allowed = [client.acknowledged.get(key)]
                allowed += [v for k, v in client.under_way.items() if k == key]
                status, body = ask(connection, "GET", key)
                got = body if status == 200 else None
                assert got in allowed, key
                # From now on the outcome of the operation under way is final.
                client.acknowledged[key] = got


@pytest.mark.parametrize("sync_mode", ["none", "periodic"])
def test_kill_9_under_load_loses_nothing_acknowledged(
    tmp_path: Path, sync_mode: str
) -> None:
    """Acknowledged puts are kept, acknowledged deletes stay deleted."""
    settings = {"volume_size": 4 << 20, "volume_num": 8, "sync_mode": sync_mode}
    clients = [Client(number) for number in range(CLIENTS)]
    with ServerProcess(tmp_path, settings=settings) as server:
        for _ in range(KILLS):
            clients = [client.next() for client in clients]
            for client in clients:
                client.url = server.url
                client.start()
            wait_for_operations(clients, OPERATIONS_BEFORE_KILL)
            server.kill()
            for client in clients:
                client.join(DEADLINE_SECONDS)
                assert not client.is_alive()
            server.restart()
            verify(clients, server.url)
