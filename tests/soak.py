"""
Run a mixed load with kills and restarts, and check every response.

    make soak MINUTES=10 SEED=3

Each client has keys of its own and records what was acknowledged for each; a get must
return that value, or a miss if its volume may have been reclaimed since. Memory and
descriptors of the server are measured before each restart. The exit code is 0 only if no
response was wrong and neither grew.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

if not __package__:  # Run as a script: the helpers are beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.process import ServerProcess

CLIENTS: Final = 4
KEYS: Final = 400  # of each client
ROUND_SECONDS: Final = 6.0
VOLUME_BYTES: Final = 4 << 20
VOLUME_NUM: Final = 6
# Never reclaimed: all volumes but the active one and the one before it.
KEPT_BYTES: Final = (VOLUME_NUM - 2) * VOLUME_BYTES
GROWTH_MAX: Final = 1.5  # of memory, from the first round to the last
_FAILURES: Final = (OSError, http.client.HTTPException)


@dataclass(slots=True)
class Load:
    """What all clients have done."""

    written: int = 0  # bytes, also of PUTs without a response
    operations: int = 0
    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client(threading.Thread):
    """One connection, and the values allowed for its keys."""

    def __init__(self, number: int, load: Load, seed: int) -> None:
        """Begin with nothing stored."""
        super().__init__(daemon=True)
        self.number = number
        self.load = load
        self.seed = seed
        self.dice = random.Random(f"{seed}/{number}")  # noqa: S311 - Repeatable.
        self.port = 0
        # By key: its allowed values, and the bytes written by all clients when it was put.
        self.allowed: dict[str, tuple[list[bytes | None], int]] = {}
        self.counter = 0

    def next(self) -> Client:
        """Return a client that continues after a restart."""
        other = Client(self.number, self.load, self.seed)
        other.dice, other.allowed, other.counter = self.dice, self.allowed, self.counter
        return other

    def run(self) -> None:
        """Send requests until one fails."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, 10)
        try:
            while True:
                self._operate(connection)
        except _FAILURES:
            return
        finally:
            connection.close()

    def _operate(self, connection: http.client.HTTPConnection) -> None:
        key = f"client-{self.number}/{self.dice.randrange(KEYS)}"
        kind = self.dice.random()
        self.load.operations += 1
        if kind < 0.6:
            self._get(connection, key)
        elif kind < 0.92:
            self.counter += 1
            length = self.dice.choice([0, 10, 1000, 8000, 60000])
            value = (b"%d of %s." % (self.counter, key.encode())).ljust(length, b"*")
            self._change(connection, "PUT", key, value)
        else:
            self._change(connection, "DELETE", key, None)

    def _change(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        key: str,
        value: bytes | None,
    ) -> None:
        with self.load.lock:
            self.load.written += len(value or b"") + len(key) + 64
        allowed, at = self.allowed.get(key, ([None], 0))
        # Until the response, a get may return either.
        self.allowed[key] = ([*allowed, value], at)
        connection.request(method, f"/{key}", value)
        answer = connection.getresponse()
        answer.read()
        if answer.status not in {200, 404}:
            self._complain(f"{method} {key}: {answer.status}")
        self.allowed[key] = ([value], self.load.written)

    def _get(self, connection: http.client.HTTPConnection, key: str) -> None:
        connection.request("GET", f"/{key}")
        answer = connection.getresponse()
        body = answer.read()
        found = body if answer.status == 200 else None
        allowed, at = self.allowed.get(key, ([None], 0))
        self.load.checked += 1
        is_old = self.load.written - at > KEPT_BYTES
        if answer.status not in {200, 404} or (
            found not in allowed and not (found is None and is_old)
        ):
            self._complain(f"GET {key}: {answer.status} {body[:60]!r}")
        elif len(allowed) > 1:
            self.allowed[key] = ([found], at)

    def _complain(self, what: str) -> None:
        with self.load.lock:
            self.load.wrong.append(what)


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def descriptors_of(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def end_round(server: ServerProcess, *, kill: bool) -> None:
    """End the server with SIGKILL or SIGTERM."""
    if kill:
        server.kill()
    else:
        server.terminate()


def soak(minutes: float, seed: int, directory: Path) -> int:
    """Run; return the exit code."""
    dice = random.Random(seed)  # noqa: S311 - Repeatable on purpose.
    load = Load()
    clients = [Client(number, load, seed) for number in range(CLIENTS)]
    memory: list[int] = []
    descriptors: list[int] = []
    kills = 0
    end = time.monotonic() + minutes * 60
    settings = {"volume_size": VOLUME_BYTES, "volume_num": VOLUME_NUM}
    with ServerProcess(directory, settings=settings | {"sync_interval": 0.2}) as server:
        while time.monotonic() < end and not load.wrong:
            clients = [client.next() for client in clients]
            for client in clients:
                client.port = server.port
                client.start()
            left = max(0.1, end - time.monotonic())
            time.sleep(min(left, ROUND_SECONDS * dice.uniform(0.3, 1.2)))
            memory.append(memory_of(server.pid))
            descriptors.append(descriptors_of(server.pid))
            kill = dice.random() < 0.6
            kills += kill
            end_round(server, kill=kill)
            for client in clients:
                client.join(30)
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
