"""
Clients of HTTP and of memcached's protocols write the same keys; the instance is killed.

What all of them saw of a key could have happened one operation after the other, over all
kills: what was acknowledged is there, and no answer is older than one before it.
"""

from __future__ import annotations

import random
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import ClassVar, Final

import pytest

from support.extent import EXTENT, SEED
from support.linearizable import Kind, Operation, State, find_order
from support.memcache import MemcacheServer, RawClient
from support.memcached import MemcachedProcess
from support.tables import each_row
from support.wire import connect, read_reply, request_bytes

pytestmark = [pytest.mark.integration, pytest.mark.property]

KEYS: Final = [f"key/{number}" for number in range(6)]
COUNTER: Final = "counter"
GENERATIONS: Final = 3 * EXTENT or 60
OPERATIONS: Final = 1200  # Of all clients, before a kill.
NUMBERS: Final = count(1)  # Of values, over all clients.
WRITES: Final[tuple[Kind, ...]] = ("put", "put", "add", "replace", "cas", "delete")

Answer = tuple[bool, State, str]  # Done, the value, and what names its version.


class Client(ABC):
    """One connection. `kinds` are the writes of its protocol."""

    kinds: ClassVar[tuple[Kind, ...]] = WRITES

    @abstractmethod
    def get(self, key: str) -> Answer:
        """Return a value, and what names its version."""

    @abstractmethod
    def write(self, kind: Kind, key: str, value: bytes, version: str) -> bool:
        """Write; return whether the condition held."""

    def increment(self) -> None:
        """Add 1 to a number, by compare and swap."""
        is_done = False
        while not is_done:
            _, before, version = self.get(COUNTER)
            number = b"%d" % (int(before or 0) + 1)
            is_done = self.write("cas" if before else "add", COUNTER, number, version)

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class Http(Client):
    """HTTP; conditions are headers."""

    kinds = ("put", "put", "add", "cas", "delete")
    headers: ClassVar = {"add": "If-None-Match: *", "cas": "If-Match: {}"}

    def __init__(self, server: MemcacheServer) -> None:
        """Connect."""
        self._socket = connect(server.port)

    def get(self, key: str) -> Answer:
        """Send a GET."""
        self._socket.sendall(request_bytes("GET", f"/{key}"))
        status, headers, body = read_reply(self._socket)
        assert status in {200, 404}, status
        return True, body if status == 200 else None, headers.get("ETag", "")

    def write(self, kind: Kind, key: str, value: bytes, version: str) -> bool:
        """Send a PUT or DELETE."""
        if kind == "delete":
            self._socket.sendall(request_bytes("DELETE", f"/{key}"))
        else:
            header = self.headers.get(kind, "").format(version)
            self._socket.sendall(request_bytes("PUT", f"/{key}", value, header))
        status = read_reply(self._socket).status
        assert status in {200, 404, 412}, status
        return status == 200

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Text(Client):
    """The text protocol."""

    done: ClassVar = {b"STORED", b"DELETED", b"HD"}
    refused: ClassVar = {b"NOT_STORED", b"EXISTS", b"NOT_FOUND", b"NS", b"EX", b"NF"}

    def __init__(self, server: MemcacheServer) -> None:
        """Connect."""
        self.client: RawClient = server.client()

    def get(self, key: str) -> Answer:
        """Send a gets."""
        head = self.client.ask(b"gets %s\r\n" % key.encode())
        if head == b"END":
            return True, None, ""
        _, _, _, size, version = head.split()
        value = self.client.read(int(size))
        assert self.client.read(7) == b"\r\nEND\r\n"
        return True, value, version.decode()

    def write(self, kind: Kind, key: str, value: bytes, version: str) -> bool:
        """Send a command."""
        reply = self.client.ask(self.command(kind, key, value, version))
        assert reply in self.done | self.refused, reply
        return reply in self.done

    def command(self, kind: Kind, key: str, value: bytes, version: str) -> bytes:
        """Return the command of a write."""
        if kind == "delete":
            return f"delete {key}\r\n".encode()
        name = "set" if kind == "put" else kind
        words = f"{name} {key} 0 0 {len(value)} {version if kind == 'cas' else ''}"
        return words.rstrip().encode() + b"\r\n" + value + b"\r\n"

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


class Meta(Text):
    """The meta commands; numbers are counted by the server."""

    modes: ClassVar = {"put": "", "add": " ME", "replace": " MR"}

    def get(self, key: str) -> Answer:
        """Send an mg."""
        head = self.client.ask(f"mg {key} v c\r\n".encode())
        if head == b"EN":
            return True, None, ""
        found = re.fullmatch(rb"VA (\d+) c(\d+)", head)
        assert found, head
        value = self.client.read(int(found[1]) + 2)
        return True, value[:-2], found[2].decode()

    def increment(self) -> None:
        """Send an ma."""
        assert self.client.ask(f"ma {COUNTER} N0 J1\r\n".encode()) == b"HD"

    def command(self, kind: Kind, key: str, value: bytes, version: str) -> bytes:
        """Return an ms or md."""
        if kind == "delete":
            return f"md {key}\r\n".encode()
        mode = f" C{version}" if kind == "cas" else self.modes[kind]
        return f"ms {key} {len(value)}{mode}\r\n".encode() + value + b"\r\n"


class Player(threading.Thread):
    """A client that reads and writes random keys until the instance is gone."""

    def __init__(
        self, client: Client, seed: int, answered: threading.Semaphore
    ) -> None:
        """Begin; `answered` is released for each answer."""
        super().__init__()
        self.history: list[tuple[str, Operation]] = []
        self.error: BaseException | None = None
        self.counts = [0, 0]  # Increments that were sent, and answered.
        self._client = client
        self._dice = random.Random(seed)  # noqa: S311 - What to do.
        self._answered = answered
        self._seen: dict[str, tuple[State, str]] = {}
        self.start()

    def run(self) -> None:
        """Play."""
        try:
            with closing(self._client):
                while True:
                    self._play(self._dice.choice(KEYS))
                    self._answered.release()
        except (OSError, HTTPException):
            pass  # The instance was killed.
        except AssertionError as error:
            # A connection that is closed in the middle of an answer.
            self.error = None if str(error).startswith("closed") else error
        except BaseException as error:  # noqa: BLE001 - Raised by the test.
            self.error = error

    def _play(self, key: str) -> None:
        if self._dice.random() < 0.05:
            self.counts[0] += 1
            self._client.increment()
            self.counts[1] += 1
            return
        if self._dice.random() < 0.5:
            began = time.monotonic()
            _, value, version = self._client.get(key)
            self._note(key, Operation("get", began, time.monotonic(), value))
            self._seen[key] = value, version
            return
        kind = self._dice.choice(self._client.kinds)
        expected, version = self._seen.get(key, (None, ""))
        if kind == "cas" and expected is None:
            kind = "put"
        size = self._dice.choice((10, 300, 5000, 70_000))
        value = b"%d " % next(NUMBERS) + b"x" * size
        kept = None if kind == "delete" else value[:20]
        before = None if expected is None else expected[:20]
        began = time.monotonic()
        unknown = Operation(kind, began, value=kept, expected=before)
        self._note(key, unknown)
        is_done = self._client.write(kind, key, value, version)
        self.history.pop()
        self._note(key, unknown._replace(ended=time.monotonic(), is_done=is_done))

    def _note(self, key: str, operation: Operation) -> None:
        if operation.value is not None:
            operation = operation._replace(value=operation.value[:20])
        self.history.append((key, operation))


@contextmanager
def playing(server: MemcacheServer, seed: int) -> Iterator[list[Player]]:
    """Play until the block ends, which kills the instance."""
    answered = threading.Semaphore(0)
    clients = [kind(server) for kind in (Http, Text, Meta) for _ in range(2)]
    players = [
        Player(client, seed * 10 + number, answered)
        for number, client in enumerate(clients)
    ]
    for _ in range(OPERATIONS):
        assert answered.acquire(timeout=30), [player.error for player in players]
    yield players
    for player in players:
        player.join(30)
        assert not player.is_alive()
        if player.error:
            raise player.error


# Volumes that are reclaimed all the time. No value is as old as they are.
SMALL: Final = {"volume_size": "2MiB", "eviction": "fifo"}


@pytest.mark.parametrize(
    ("is_hot", "more"),
    [
        (False, {"sync_mode": "none"}),
        (True, {"sync_mode": "periodic"}),
        (False, {"sync_mode": "always"}),
        (False, SMALL),
    ],
    ids=["none", "hot", "always", "small"],
)
def test_operations_before_and_after_kills_have_one_order(
    tmp_path: Path, memcached: MemcachedProcess, more: dict[str, str], *, is_hot: bool
) -> None:
    """
    Of HTTP, text and meta clients at once; with the hot tier, copies are promoted.

    Every other time the instance is stopped. Each one has about as many descriptors.
    """
    histories: dict[str, list[Operation]] = {key: [] for key in KEYS}
    hits = 0  # Copies that were read.
    sent = answered = 0  # Increments.
    settings = {
        "volume_size": "64MiB",
        "volume_num": 8,
        "threads": 2,
        "memc_on": is_hot,
        "memc_servers": memcached.address,
        "memc_timeout": 1,
        "cache_after_miss_count": 1,
        **more,
    }
    descriptors = []
    with MemcacheServer(tmp_path / "data", settings=settings) as server:
        for generation in range(GENERATIONS):
            with playing(server, SEED + generation) as players:
                hits += server.stats()["hot"]["hits"] if is_hot else 1
                descriptors.append(server.descriptors())
                (server.terminate if generation % 2 else server.kill)()
            for player in players:
                sent, answered = sent + player.counts[0], answered + player.counts[1]
                for key, operation in player.history:
                    histories[key].append(operation)
            server.restart()
            with closing(Text(server)) as client:
                for key, history in histories.items():
                    began = time.monotonic()
                    _, value, _ = client.get(key)
                    seen = None if value is None else value[:20]
                    history.append(Operation("get", began, time.monotonic(), seen))
                    assert find_order(history), key
                    # Only what is there now counts for what follows.
                    put = Operation("put", began, time.monotonic(), seen)
                    history[:] = [put] if seen else []
                assert answered <= int(client.get(COUNTER)[1] or 0) <= sent
        assert "Traceback" not in server.stderr
        assert set(re.findall(r"damaged=(\d+)", server.stderr)) == {"0"}
    assert hits
    assert max(descriptors) - min(descriptors) < 10


@each_row(
    ("operations", "is_possible"),
    [
        ([("put", 0, 1, b"a"), ("get", 2, 3, b"a")], True),
        ([("put", 0, 1, b"a"), ("get", 2, 3, None)], False),
        ([("put", 0, 5, b"a"), ("get", 1, 2, b"a"), ("get", 3, 4, None)], False),
        ([("put", 0, 5, b"a"), ("get", 1, 2, None), ("get", 3, 4, b"a")], True),
        ([("put", 0, 9e9, b"a"), ("get", 2, 3, None)], True),
        ([("add", 0, 5, b"a"), ("add", 1, 4, b"b")], False),
        ([("put", 0, 1, b"a"), ("delete", 2, 3, None), ("add", 4, 5, b"b")], True),
        ([("delete", 0, 1, None)], False),
    ],
)
def test_find_order_of_any_history_finds_one_if_there_is_one(
    operations: list[tuple[Kind, float, float, State]], *, is_possible: bool
) -> None:
    """The checker itself; 9e9 stands for an operation without an answer."""
    history = [
        Operation(kind, began, ended if ended < 9e9 else float("inf"), value)
        for kind, began, ended, value in operations
    ]
    assert find_order(history) == is_possible
