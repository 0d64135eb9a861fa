"""
Run a mixed load with kills and restarts, and check every response.

    make soak MINUTES=10 SEED=3

Each client has keys of its own and records what was acknowledged for each; a get must
return that value, or a miss if its volume may have been reclaimed since. Memory and
descriptors of the server are measured before each restart. The exit code is 0 only if no
response was wrong and neither grew. Half of the commands use the memcached protocol.
"""

from __future__ import annotations

import argparse
import http.client
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pymemcache.client.base import Client as Memcache  # noqa: TID251 - Under test.
from pymemcache.exceptions import (  # noqa: TID251
    MemcacheError,
    MemcacheUnexpectedCloseError,
)

if not __package__:  # Run as a script: the helpers are beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.memcache_ends import MemcacheInstance

CLIENTS: Final = 4
KEYS: Final = 400  # of each client
ROUND_SECONDS: Final = 6.0
VOLUME_BYTES: Final = 4 << 20
VOLUME_NUM: Final = 6
# Never reclaimed: all volumes but the active one and the one before it.
KEPT_BYTES: Final = (VOLUME_NUM - 2) * VOLUME_BYTES
GROWTH_MAX: Final = 1.5  # of memory, from the first round to the last
_FAILURES: Final = (OSError, http.client.HTTPException, MemcacheUnexpectedCloseError)


@dataclass(slots=True)
class Load:
    """What all clients have done."""

    written: int = 0  # bytes, also of PUTs without a response
    operations: int = 0
    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class WrongAnswerError(Exception):
    """What no client may be answered."""


class Connection:
    """The two ways to the server."""

    def __init__(self, server: MemcacheInstance, dice: random.Random) -> None:
        """Connect with the first requests."""
        self._http = http.client.HTTPConnection("127.0.0.1", server.port, 10)
        self._memcache = Memcache(
            ("127.0.0.1", server.memcache_port), timeout=10, default_noreply=False
        )
        self._dice = dice

    def get(self, key: str) -> bytes | None:
        """Return the value."""
        if self._is_http():
            return self._request("GET", key, None)
        found: bytes | None = self._memcache.get(key)
        return found

    def change(self, key: str, value: bytes | None) -> None:
        """Store a value, or delete."""
        if self._is_http():
            self._request("DELETE" if value is None else "PUT", key, value)
        elif value is None:
            self._memcache.delete(key)
        elif self._memcache.set(key, value) is not True:
            raise WrongAnswerError("not stored")

    def close(self) -> None:
        """Close both."""
        self._http.close()
        self._memcache.close()

    def _is_http(self) -> bool:
        return self._dice.random() < 0.5

    def _request(self, method: str, key: str, body: bytes | None) -> bytes | None:
        self._http.request(method, f"/{key}", body)
        answer = self._http.getresponse()
        data = answer.read()
        if answer.status not in {200, 404} or (method, answer.status) == ("PUT", 404):
            raise WrongAnswerError(f"{answer.status} {data[:60]!r}")
        return data if answer.status == 200 else None


class Client:
    """One connection of each protocol, and the values allowed for its keys."""

    def __init__(self, number: int, load: Load, seed: int) -> None:
        """Begin with nothing stored."""
        self.number = number
        self.load = load
        self.dice = random.Random(f"{seed}/{number}")  # noqa: S311 - Repeatable.
        # By key: its allowed values, and the bytes written by all clients when it was put.
        self.allowed: dict[str, tuple[list[bytes | None], int]] = {}
        self.counter = 0

    def start(self, server: MemcacheInstance) -> threading.Thread:
        """Send requests in the background."""
        thread = threading.Thread(target=self._run, args=[server], daemon=True)
        thread.start()
        return thread

    def _run(self, server: MemcacheInstance) -> None:
        """Send requests until one fails."""
        with suppress(*_FAILURES), closing(Connection(server, self.dice)) as connection:
            while True:
                key = f"client-{self.number}/{self.dice.randrange(KEYS)}"
                try:
                    self._operate(connection, key)
                except MemcacheUnexpectedCloseError:
                    raise
                except (MemcacheError, WrongAnswerError) as error:
                    self._complain(f"{key}: {error!r}")

    def _operate(self, connection: Connection, key: str) -> None:
        kind = self.dice.random()
        self.load.operations += 1
        if kind < 0.6:
            self._get(connection, key)
        elif kind < 0.92:
            self.counter += 1
            length = self.dice.choice([0, 10, 1000, 8000, 60000])
            value = (b"%d of %s." % (self.counter, key.encode())).ljust(length, b"*")
            self._change(connection, key, value)
        else:
            self._change(connection, key, None)

    def _change(self, connection: Connection, key: str, value: bytes | None) -> None:
        with self.load.lock:
            self.load.written += len(value or b"") + len(key) + 64
        allowed, at = self.allowed.get(key, ([None], 0))
        # Until the response, a get may return either.
        self.allowed[key] = ([*allowed, value], at)
        connection.change(key, value)
        self.allowed[key] = ([value], self.load.written)

    def _get(self, connection: Connection, key: str) -> None:
        found = connection.get(key)
        allowed, at = self.allowed.get(key, ([None], 0))
        self.load.checked += 1
        is_old = self.load.written - at > KEPT_BYTES
        if found not in allowed and not (found is None and is_old):
            self._complain(f"get {key}: {(found or b'miss')[:60]!r}")
        elif len(allowed) > 1:
            self.allowed[key] = ([found], at)

    def _complain(self, what: str) -> None:
        with self.load.lock:
            self.load.wrong.append(what)


def soak(minutes: float, seed: int, directory: Path) -> int:
    """Run; return the exit code."""
    dice = random.Random(seed)  # noqa: S311 - Repeatable on purpose.
    load = Load()
    clients = [Client(number, load, seed) for number in range(CLIENTS)]
    memory: list[int] = []
    descriptors: list[int] = []
    kills = 0
    end = time.monotonic() + minutes * 60
    settings = {
        "volume_size": VOLUME_BYTES,
        "volume_num": VOLUME_NUM,
        "sync_interval": 0.2,
        "eviction": "fifo",  # With two rings any unread value may be reclaimed.
    }
    with MemcacheInstance(directory, settings) as server:
        while time.monotonic() < end and not load.wrong:
            threads = [client.start(server) for client in clients]
            left = max(0.1, end - time.monotonic())
            time.sleep(min(left, ROUND_SECONDS * dice.uniform(0.3, 1.2)))
            memory.append(server.memory())
            descriptors.append(server.descriptors())
            kill = dice.random() < 0.6
            kills += kill
            (server.kill if kill else server.terminate)()
            for thread in threads:
                thread.join(30)
            server.restart()
        is_clean = "Traceback" not in server.stderr
        is_clean &= set(re.findall(r"damaged=(\d+)", server.stderr)) == {"0"}
    flat = max(descriptors) - min(descriptors) <= CLIENTS + 2
    half = max(1, len(memory) // 2)
    flat &= statistics.mean(memory[half:] or memory) < GROWTH_MAX * max(memory[:half])
    sys.stdout.write(
        f"seed {seed}: {load.operations} operations, {load.checked} responses checked,"
        f" {len(load.wrong)} wrong {load.wrong[:3]}\n"
        f"{kills} kills, {len(memory) - kills} stops, {load.written >> 20} MiB written over"
        f" {VOLUME_NUM * VOLUME_BYTES >> 20} MiB of volumes\n"
        f"memory {min(memory) >> 20} to {max(memory) >> 20} MiB,"
        f" descriptors {min(descriptors)} to {max(descriptors)}\n"
    )
    return 0 if flat and is_clean and not load.wrong else 1


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return soak(options.minutes, options.seed, Path(directory))


if __name__ == "__main__":
    sys.exit(main())
