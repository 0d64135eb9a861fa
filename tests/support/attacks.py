"""
Attacks on a real server: its files are replaced, its disk fails, its clock is set back.

Every value says who stored it, under which key, and when: the bytes of an answer alone
tell whether it is the last value, an older one or one of another store.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Final, NamedTuple

from support.process import ServerProcess
from support.program import ProgramError
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

VALUE_BYTES: Final = 60_000
SETTINGS: Final[Mapping[str, object]] = {
    "volume_size": 1 << 20,
    "volume_num": 4,
    "max_value_size": 900_000,
    "sync_interval": 0.05,
}
# What the text of a refusal must have: a file, what it should be, what it is instead, and
# what to do now.
_FILES: Final = ("data/", "index/", "META.txt", "LOCK", "HOT.txt")
_EXPECTED: Final = (
    "expected",
    "do not belong together",
    "older than",
    "newer",
    "stores",
)
_REMEDY: Final = ("put back", "put it back", "remove", "move away", "start again")


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def start(self) -> str:
        """What a value says about itself, for the text of a failure."""
        return self.body[:40].decode("latin-1").partition(";")[0]


@dataclass
class Memory:
    """What one client has stored last under each key."""

    name: str
    values: dict[str, bytes | None] = field(default_factory=dict)  # None: deleted
    volumes: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def next_value(self, key: str, size: int = VALUE_BYTES) -> bytes:
        """Return a value that was never stored before."""
        self.number += 1
        start = f"{self.name} {self.number} {key};".encode()
        return start + start[:1] * (size - len(start))

    def copy(self) -> Memory:
        """Return what is stored now."""
        return Memory(self.name, dict(self.values), dict(self.volumes), self.number)

    def except_in(self, volumes: Iterable[int]) -> set[str]:
        """Return the keys that have a value outside some volumes."""
        ids = set(volumes)
        return {
            key
            for key, value in self.values.items()
            if value is not None and self.volumes[key] not in ids
        }


@dataclass
class Tally:
    """What the trials of a test have shown."""

    trials: int = 0
    refused: int = 0
    hits: int = 0
    wrong: list[str] = field(default_factory=list)  # of another key, client or state
    stale: list[str] = field(default_factory=list)  # an older value, or a deleted one
    lost: list[str] = field(default_factory=list)  # promised, and a miss
    errors: list[str] = field(default_factory=list)  # any other answer or refusal

    @property
    def faults(self) -> list[str]:
        """All that must not be."""
        return [*self.wrong, *self.stale, *self.lost, *self.errors]

    def __str__(self) -> str:
        """Return the numbers in one line."""
        return (
            f"TALLY trials={self.trials} refused={self.refused} hits={self.hits}"
            f" wrong={len(self.wrong)} stale={len(self.stale)} lost={len(self.lost)}"
            f" errors={len(self.errors)}"
        )

    def finish(self) -> None:
        """Print the numbers; fail if there is any fault."""
        print(self)  # noqa: T201 - Shown with -rP, or if the test fails.
        assert self.trials
        assert not self.faults, f"{self}: {self.faults[:6]}"

    def judge(self, what: str, key: str, answer: Answer, memory: Memory) -> None:
        """Count one answer to a GET, apart from losses."""
        value = memory.values.get(key)
        if answer.status == 200 and answer.body == value:
            self.hits += 1
        elif answer.status == 200:
            is_ours = answer.body.startswith(f"{memory.name} ".encode())
            is_of_key = answer.start.endswith(f" {key}")
            faults = self.stale if is_ours and is_of_key else self.wrong
            faults.append(f"{what}: {key} is {answer.start!r}")
        elif answer.status != 404:
            self.errors.append(f"{what}: {key} is answered {answer.status}")

    def check(
        self, what: str, site: Site, memory: Memory, promised: Iterable[str] = ()
    ) -> None:
        """Read every key; those promised must be there."""
        must = set(promised)
        for key in memory.values:
            answer = site.get(key)
            self.judge(what, key, answer, memory)
            if key in must and answer.status == 404:
                self.lost.append(f"{what}: {key} is a miss")

    def refuse(self, what: str, text: str) -> None:
        """Count a refused start, whose text must explain it."""
        self.refused += 1
        line = next((one for one in text.splitlines() if "mount point" in one), "")
        for words in (_FILES, _EXPECTED, _REMEDY):
            if not any(word in line for word in words):
                self.errors.append(
                    f"{what}: none of {words} in {line or text[-500:]!r}"
                )


class Site:
    """One running server and a client."""

    def __init__(self, server: ServerProcess, memory: Memory) -> None:
        """Put and delete for one memory."""
        self.server = server
        self.memory = memory

    def ask(
        self, method: str, key: str, body: bytes | None = None, **headers: str
    ) -> Answer:
        """Send one request; `If_Range` is the header If-Range."""
        connection = HTTPConnection(self.server.ip, self.server.port, timeout=10)
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        with closing(connection):
            connection.request(method, f"/{key}", body, sent)
            found = connection.getresponse()
            return Answer(found.status, dict(found.getheaders()), found.read())

    def get(self, key: str, **headers: str) -> Answer:
        """Read a value."""
        return self.ask("GET", key, None, **headers)

    def put(self, key: str, size: int = VALUE_BYTES, **headers: str) -> Answer:
        """Store a new value, which must be acknowledged."""
        value = self.memory.next_value(key, size)
        answer = self.ask("PUT", key, value, **headers)
        assert answer.status == 200, answer
        self.memory.values[key] = value
        self.memory.volumes[key] = int(answer.headers["X-Position"].split(",")[0])
        return answer

    def delete(self, key: str) -> None:
        """Delete a key, which must be acknowledged."""
        assert self.ask("DELETE", key).status in {200, 404}
        self.memory.values[key] = None

    def make_hot(self, key: str) -> None:
        """Read until memcached answers."""
        wait_until(
            lambda: self.get(key).headers.get("X-Cache") == "MEMC", f"{key} to be hot"
        )

    def age(self) -> None:
        """Store other values until the disk has overwritten all that was stored."""
        until = self.stat("rotations") + self.stat("volume_num")
        while self.stat("rotations") < until:
            assert self.ask("PUT", "fill", b"x" * 700_000).status == 200

    def stat(self, name: str) -> int:
        """Return a number of `/-/stats` about the store."""
        return int(json.loads(self.get("-/stats").body)["store"][name])

    def now(self) -> float:
        """Return the time of the server."""
        return float(json.loads(self.get("-/stats").body)["now"])

    def wait_synced(self) -> None:
        """Wait until a sync has ended that began after the last request."""

        def syncs() -> int:
            return sum(
                json.loads(self.get("-/stats").body)["latency"]["sync"]["counts"]
            )

        until = syncs() + 2
        wait_until(lambda: syncs() >= until, "two syncs")


@contextmanager
def serving(
    folder: Path,
    memory: Memory,
    *,
    environment: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Site]:
    """Start a server, stop it with the context."""
    server = ServerProcess(
        folder, settings={**SETTINGS, **settings}, environment=environment
    )
    with server:
        yield Site(server, memory)


class Trial(NamedTuple):
    """A start that may have been refused."""

    site: Site | None
    refusal: str

    def served(self) -> Site:
        """Return the server, which must have started."""
        assert self.site is not None, self.refusal
        return self.site


@contextmanager
def attempt(
    folder: Path,
    memory: Memory,
    *,
    environment: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Trial]:
    """Start a server; it is killed with the context, or was refused."""
    # The files were just copied: without a sync, the disk has nothing to do.
    server = ServerProcess(
        folder,
        settings={**SETTINGS, "sync_interval": 3600, **settings},
        environment=environment,
    )
    before = digest(folder)
    try:
        server.start()
    except ProgramError as error:
        server.__exit__()
        assert digest(folder) == before, "a refused start has changed files"
        yield Trial(None, str(error))
        return
    try:
        yield Trial(Site(server, memory), "")
    finally:
        server.kill()
        server.__exit__()


def digest(folder: Path) -> dict[str, str]:
    """Return a digest of every file but LOCK, which has the process id."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "LOCK"
    }


def clone(source: Path, target: Path) -> Path:
    """Copy a mount point as `cp -a` does; a target is replaced."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target, symlinks=True)
    return target


def replace(target: Path, source: Path, names: Iterable[str]) -> bool:
    """Replace files by those of another mount point; return whether any is different."""
    is_changed = False
    for name in names:
        old, new = target / name, source / name
        before = old.read_bytes() if old.exists() else None
        old.unlink(missing_ok=True)
        if new.exists():
            shutil.copy2(new, old)
        is_changed |= before != (old.read_bytes() if old.exists() else None)
    return is_changed


def flip(file: Path, bit: int) -> None:
    """Change one bit, in place."""
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))
