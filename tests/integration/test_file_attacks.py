"""
A real server whose files are those of another time or store, or cannot be read.

A reader gets the bytes last stored under a key, or a miss; or the start is refused with an
error that says what does not fit and what to do. `tests/crash` and the tests of the store
try all combinations on a simulated disk.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from support.machine import ALL_FILES, Machine
from support.process import ServerProcess
from support.program import ProgramError
from support.wire import exchange

pytestmark = [pytest.mark.crash, pytest.mark.integration, pytest.mark.slow]

KEYS: Final = [f"/key/{number}" for number in range(30)]
VALUE_BYTES: Final = 60_000
SETTINGS: Final = {
    "volume_size": 1 << 20,
    "volume_num": 4,
    "max_value_size": 900_000,
    "sync_interval": 3600,
}


class Site:
    """A mount point, and what one client has stored last under each key."""

    def __init__(self, folder: Path) -> None:
        """Begin with nothing."""
        self.folder = folder
        self.values: dict[str, bytes | None] = {}  # None: deleted
        self._volumes: dict[str, int] = {}
        self._number = 0

    @contextmanager
    def serving(self) -> Iterator[ServerProcess]:
        """Start a server."""
        with ServerProcess(self.folder, settings=SETTINGS) as server:
            yield server

    def write(self, server: ServerProcess, count: int) -> None:
        """Store values under all keys in turn; each says who has stored it, and when."""
        for _ in range(count):
            self._number += 1
            key = KEYS[self._number % len(KEYS)]
            value = f"{self.folder.name} {self._number}".encode().ljust(VALUE_BYTES)
            reply = exchange(server.port, "PUT", key, value)
            assert reply.status == 200
            self.values[key] = value
            self._volumes[key] = int(reply.headers["X-Position"].split(",")[0])

    def delete(self, server: ServerProcess, number: int) -> None:
        """Delete a key."""
        assert exchange(server.port, "DELETE", KEYS[number]).status == 200
        self.values[KEYS[number]] = None

    def check(self, server: ServerProcess, replaced: Collection[int] = ()) -> None:
        """Read every key; those of volumes that were replaced may be misses."""
        faults = {}
        for key, value in self.values.items():
            status, _, body = exchange(server.port, "GET", key)
            may_be_missed = value is None or self._volumes[key] in replaced
            is_right = (
                may_be_missed if status == 404 else (status, body) == (200, value)
            )
            if not is_right:
                faults[key] = (status, body[:40].strip())
        assert not faults


def clone(source: Path, target: Path) -> Path:
    """Copy a mount point as `cp -a` does; a target is replaced."""
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(source, target)


def digest(folder: Path) -> dict[str, str]:
    """Return a digest of every file but LOCK, which has the process id."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and file.name != "LOCK"
    }


@contextmanager
def trial(
    folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[ServerProcess, str]]:
    """Start a server, yield it with the last line if it refused, and kill it."""
    server = ServerProcess(folder, settings=SETTINGS, environment=environment)
    before, refusal = digest(folder), ""
    try:
        server.start()
    except ProgramError as error:
        assert digest(folder) == before, "a refused start has changed files"
        refusal = str(error).splitlines()[-1]
    try:
        yield server, refusal
    finally:
        server.kill()
        server.__exit__()


# What is replaced by files of which mount point, what is lost, and whether this has to be
# refused. Volume 0 was active when "recent" was copied.
SWAPS: Final[list[tuple[str, list[str], list[str], bool]]] = [
    ("earlier", ["data/1"], [], False),
    ("recent", ["data/0"], [], False),
    ("other", ["data/1"], [], False),
    ("other", ["data/0", "data/1"], ["META.txt"], True),
    ("earlier", ["META.txt"], [], True),
]


@pytest.mark.parametrize("is_stopped", [False, True], ids=["killed", "stopped"])
def test_files_of_another_time_or_store_expose_no_wrong_value(
    tmp_path: Path, *, is_stopped: bool
) -> None:
    """Their records are misses, or the start is refused until they are put back."""
    ours, other = Site(tmp_path / "ours"), Site(tmp_path / "other")
    for count, copied in ((80, "earlier"), (70, "recent")):
        with ours.serving() as server:
            ours.write(server, count)
        clone(ours.folder, tmp_path / copied)
    with ours.serving() as server:
        ours.write(server, 30)
        ours.delete(server, 3)
        if not is_stopped:
            server.kill()
    with other.serving() as server:
        other.write(server, 175)
    for source, names, lost, must_be_refused in SWAPS:
        folder = clone(ours.folder, tmp_path / "trial")
        for name in names:
            shutil.copy2(tmp_path / source / name, folder / name)
        for name in lost:
            (folder / name).unlink()
        volumes = {int(name[-1]) for name in names if name.startswith("data/")}
        with trial(folder) as (server, refusal):
            if refusal:
                assert re.search(
                    r"(data/|index/|META\.txt).*(put|remove|move) ", refusal
                )
                for name in [*names, *lost]:
                    shutil.copy2(ours.folder / name, folder / name)
                server.start()
            assert must_be_refused <= bool(refusal), names
            ours.check(server, () if refusal else volumes)


def test_reads_that_fail_only_at_the_start_lose_nothing(tmp_path: Path) -> None:
    """After kill -9: refused, or nothing lost; after recovery all values are there."""
    machine, ours = Machine(tmp_path / "machine"), Site(tmp_path / "ours")
    with ours.serving() as server:
        ours.write(server, 50)
        ours.delete(server, 25)
        server.restart()
        ours.write(server, 15)  # They have no index line.
        server.kill()
    refused = 0
    for part in (ALL_FILES, "/data/", "/index/", "/data/0"):
        folder = clone(ours.folder, tmp_path / "trial")
        machine.fail_reads_of(part)
        with trial(folder, machine.environment) as (server, refusal):
            machine.recover()
            if refusal:
                refused += 1
                assert "cannot be" in refusal
                server.start()
            ours.check(server)
    assert refused
