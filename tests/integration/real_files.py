"""
Every file of the Python installation through a real server that is killed half way.

In the scenario "fits", whatever was acknowledged, before or after a `kill -9` and a
restart, must come back byte for byte. In "overflows" the cache is much smaller than the
data: the newest files must be there, none may be wrong, and the volumes keep to their room.

    .venv/bin/python tests/integration/real_files.py [--limit 2000]

The exit code is 0 only if there is no fault.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

if not __package__:  # Run as a script: the helpers are in the folder above.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.background import in_background
from support.process import ServerProcess
from support.waiting import comes_true

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

MIB: Final = 1 << 20
FILE_BYTES_MAX: Final = 1 << 20  # The default of `max_value_size`.
SECONDS: Final = 60.0

Files = list[tuple[str, Path]]  # key, not percent-encoded, and path


class Ack(NamedTuple):
    """A PUT that was answered with 200; `record_bytes` is from its X-Position."""

    key: str
    path: Path
    digest: bytes
    record_bytes: int


@dataclass
class Outcome:
    """What a run has found; it is good if there are no faults."""

    files: int = 0
    value_bytes: int = 0
    data_bytes_peak: int = 0
    put_seconds: float = 0.0  # kill and restart included
    get_seconds: float = 0.0
    must_be_there: int = 0
    found: int = 0
    interrupted: list[int] = field(default_factory=list)  # bytes of each attempt
    unreadable: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Run:
    """Files, and the server that they are sent to over several connections."""

    def __init__(self, server: ServerProcess, connections: int) -> None:
        """Send nothing yet."""
        self.outcome = Outcome()
        self.acks: list[Ack] = []  # in the order of the answers
        self._server = server
        self._connections = connections
        self._missing: set[str] = set()

    def store(self, files: Files, kill_at: int) -> None:
        """Store all files; kill the server after some of them, and start another."""
        began = time.monotonic()
        with ThreadPoolExecutor(self._connections) as pool:
            workers = [
                pool.submit(self._store, files[number :: self._connections])
                for number in range(self._connections)
            ]
            comes_true(
                lambda: len(self.acks) >= kill_at or all(one.done() for one in workers),
                10 * SECONDS,
            )
            self._server.kill()
            self._server.restart()
        for worker in workers:
            worker.result()
        self.outcome.put_seconds = time.monotonic() - began

    def _store(self, files: Files) -> None:
        client = http.client.HTTPConnection("127.0.0.1", self._server.port, SECONDS)
        for key, path in files:
            try:
                value = path.read_bytes()
            except OSError:
                self.outcome.unreadable.append(key)
                continue
            answer = self._put(client, key, value)
            if answer.status != http.HTTPStatus.OK:
                self.outcome.faults.append(f"PUT {key} was answered {answer.status}")
                continue
            size = int(answer.headers["X-Position"].rpartition(",")[2])
            digest = hashlib.sha256(value).digest()
            self.acks.append(Ack(key, path, digest, size))
        client.close()

    def _put(
        self, client: http.client.HTTPConnection, key: str, value: bytes
    ) -> http.client.HTTPResponse:
        """Repeat a PUT until it is answered."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                client.request("PUT", "/" + quote(key), value)
                answer = client.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                client.close()
                if time.monotonic() > deadline:
                    raise
                self.outcome.interrupted.append(len(value))
                comes_true(self._server.answers)
            else:
                return answer

    def read_back(self) -> None:
        """Read every file that was acknowledged, and compare it."""
        began = time.monotonic()
        with ThreadPoolExecutor(self._connections) as pool:
            parts = [
                self.acks[i :: self._connections] for i in range(self._connections)
            ]
            self.outcome.value_bytes = sum(pool.map(self._read, parts))
        self.outcome.get_seconds = time.monotonic() - began

    def _read(self, acks: list[Ack]) -> int:
        """Return how many bytes were read."""
        total = 0
        client = http.client.HTTPConnection("127.0.0.1", self._server.port, SECONDS)
        for ack in acks:
            client.request("GET", "/" + quote(ack.key))
            answer = client.getresponse()
            value = answer.read()
            digest = hashlib.sha256(value).digest()
            total += len(value)
            if answer.status == http.HTTPStatus.NOT_FOUND:
                self._missing.add(ack.key)
            elif answer.status != http.HTTPStatus.OK or digest != ack.digest:
                self.outcome.faults.append(f"{ack.key} differs ({answer.status})")
        client.close()
        return total

    def judge(self, volume_size: int, volume_num: int) -> None:
        """
        Check that the volumes kept to their room, and what rotation cannot have reclaimed.

        All volumes but one hold the newest records. PUTs that got no answer may have been
        written too. The order of the answers is nearly that of the writes.
        """
        outcome = self.outcome
        if outcome.data_bytes_peak > volume_num * volume_size:
            outcome.faults.append("the volumes took more than their room")
        # Twice the largest record: what is unused at the end, and the volume's own header.
        largest = max((ack.record_bytes for ack in self.acks), default=0)
        room = (volume_num - 1) * (volume_size - 2 * largest)
        room -= sum(outcome.interrupted)
        required = set()
        for ack in reversed(self.acks):
            room -= ack.record_bytes
            if room < 0:
                break
            required.add(ack.key)
        outcome.files = len(self.acks)
        outcome.must_be_there = len(required)
        outcome.found = outcome.files - len(self._missing)
        outcome.faults += [f"{key} is missing" for key in required & self._missing]


def run(
    files: Files,
    folder: Path,
    *,
    volume_size: int,
    volume_num: int = 0,
    connections: int = 4,
) -> Outcome:
    """
    Store, kill, restart, store the rest, restart, read back.

    Args:
        files: What to store.
        folder: The mount point.
        volume_size: A setting.
        volume_num: Likewise; 0 gives every file room.
        connections: How many are used at the same time.
    """
    settings: dict[str, object] = {"volume_size": volume_size}
    if volume_num:
        settings["eviction"] = "fifo"  # Only with it, the newest files must be there.
    else:
        needed = sum(p.stat().st_size + len(key.encode()) + 256 for key, p in files)
        # What is unused at the end of a volume is less than one record of the largest.
        volume_num = needed // (volume_size - FILE_BYTES_MAX - 8192) + 3
    server = ServerProcess(folder, settings={**settings, "volume_num": volume_num})
    trial = Run(server, connections)
    outcome = trial.outcome

    def measure(is_ended: threading.Event) -> None:
        while not is_ended.wait(0.01):
            size = folder_bytes(folder / "data")
            outcome.data_bytes_peak = max(outcome.data_bytes_peak, size)

    with server, in_background(measure):
        trial.store(files, kill_at=len(files) // 2)
        exit_code = server.terminate()
        server.restart()
        trial.read_back()
        if exit_code or "Traceback" in server.stderr:
            outcome.faults.append(f"exit code {exit_code}: {server.stderr[-500:]}")
    trial.judge(volume_size, volume_num)
    return outcome


def python_files(limit: int | None = None) -> Files:
    """Return the files of at most 1 MiB of Python's library, or so many of them."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {
        path.relative_to(path.anchor).as_posix(): path
        for folder in {Path(sysconfig.get_path(name)) for name in names}
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size <= FILE_BYTES_MAX
    }
    files = sorted(found.items())
    number = min(limit or len(files), len(files))
    return [files[at * len(files) // number] for at in range(number)]


def repeated(files: Iterable[tuple[str, Path]], total_bytes: int) -> Files:
    """Return files repeatedly, under other keys, until they have so many bytes."""
    some, chosen = list(files), Files()
    while total_bytes > 0:
        for key, path in some:
            chosen.append((f"{len(chosen)}/{key}", path))
            total_bytes -= path.stat().st_size
    return chosen


def folder_bytes(folder: Path) -> int:
    """Return the size of the files in a folder, which may change meanwhile."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def main() -> int:
    """Run both scenarios; 0 if all are good."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--limit", type=int, help="files to take, spread over all")
    files = python_files(parser.parse_args().limit)
    is_good = True
    for name, sizes in (("fits", (64 * MIB, 0)), ("overflows", (8 * MIB, 4))):
        with tempfile.TemporaryDirectory() as folder:
            size, number = sizes
            outcome = run(files, Path(folder), volume_size=size, volume_num=number)
        outcome.interrupted = [len(outcome.interrupted)]
        is_good = is_good and not outcome.faults
        sys.stdout.write(f"{name}: {asdict(outcome)}\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
