"""
A real server whose files are swapped, whose disk fails and whose clock is set back.

A reader gets exactly the bytes last stored under a key, or a miss; or the start is refused
with an error that says what does not fit and what to do. Each test counts its trials and
what went wrong in them (`Tally`), and fails at the end.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from support.attacks import (
    Memory,
    Site,
    Tally,
    attempt,
    clone,
    flip,
    replace,
    serving,
)
from support.extent import EXTENT
from support.machine import ALL_FILES, Machine
from support.memcached import FakeMemcached, MemcachedProcess
from support.process import ServerProcess
from support.program import ProgramError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.integration, pytest.mark.slow]

KEYS: Final = [f"key/{number}" for number in range(30)]
# Mount points that files come from, and which volumes. Volume 0 was active when "recent"
# was copied, 2 is active in both states.
ELSEWHERE: Final = [
    ("earlier", 1),
    ("recent", 0),
    ("diverged", 1),
    ("diverged", 2),
    ("other", 1),
]
# `make test` takes one of each pair, and leaves out what the crash tests try on a simulated
# disk.
STATES: Final = ["killed"] if EXTENT == 1 else ["stopped", "killed"]
IN_FULL: Final = pytest.mark.skipif(EXTENT == 1, reason="only in `make crash`")
ENDS: Final = ["kill"] if EXTENT == 1 else ["stop", "kill"]
HOUR: Final = 3600
SMALL: Final = 300  # bytes of a value


def end_server(site: Site, how: str) -> None:
    """Kill the server with SIGKILL, or stop it, or neither."""
    if how == "kill":
        site.server.kill()
    elif how == "stop":
        site.server.terminate()


# --- Files of another time or of another store --------------------------------------


class History(NamedTuple):
    """Mount points: two states of ours with what they hold, and others."""

    folder: Path
    memories: dict[str, Memory]

    def path(self, name: str) -> Path:
        """Return a mount point."""
        return self.folder / name


def write(site: Site, count: int) -> None:
    """Store values under all keys in turn: always the same keys at the same places."""
    for _ in range(count):
        site.put(KEYS[site.memory.number % len(KEYS)])


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """
    Write one mount point, and keep copies of it.

    "earlier": a turn of the volumes ago. "recent": in one of the volumes that still are
    there. "diverged": "recent", then served on its own. "other": another store.
    """
    folder = tmp_path_factory.mktemp("history")
    ours, memories = Memory("ours"), {}
    with serving(folder / "ours", ours) as site:
        write(site, 80)
    clone(folder / "ours", folder / "earlier")
    with serving(folder / "ours", ours) as site:
        write(site, 70)
    clone(folder / "ours", folder / "recent")
    clone(folder / "recent", folder / "diverged")
    with serving(folder / "diverged", Memory("diverged", number=150)) as site:
        write(site, 25)
    with serving(folder / "other", Memory("other")) as site:
        write(site, 175)
    with serving(folder / "ours", ours) as site:
        write(site, 25)
        site.delete(KEYS[3])
        site.delete(KEYS[20])
    memories["stopped"] = ours.copy()
    clone(folder / "ours", folder / "stopped")
    with serving(folder / "ours", ours) as site:
        write(site, 5)
        site.delete(KEYS[9])
        site.wait_synced()
        memories["killed"] = ours.copy()
        site.server.kill()
    clone(folder / "ours", folder / "killed")
    return History(folder, memories)


class Swap:
    """Replaces files of one state by others, starts, and counts."""

    def __init__(self, history: History, folder: Path, state: str) -> None:
        """Begin with no trials."""
        self.history = history
        self.folder = folder / "store"
        self.state = state
        self.memory = history.memories[state]
        self.tally = Tally()
        self._is_repair_tried = False
        self._is_second_start_tried = False

    def run(
        self,
        source: str,
        names: list[str],
        *,
        lost: tuple[str, ...] = (),
        promised: set[str] | None = None,
    ) -> None:
        """Start with files of `source`, and without those that are `lost`."""
        what = f"{self.state}: {names} of {source}, without {lost}"
        original = self.history.path(self.state)
        clone(original, self.folder)
        if not replace(self.folder, self.history.path(source), names):
            return
        for name in lost:
            (self.folder / name).unlink()
        self.tally.trials += 1
        memory = self.memory.copy()
        with attempt(self.folder, memory) as (site, refusal):
            if site is not None:
                self.tally.check(what, site, memory, promised or ())
                write(site, 3)
        if site is None:
            self.tally.refuse(what, refusal)
            self._put_back(what, [*names, *lost])
        elif not self._is_second_start_tried:
            self._is_second_start_tried = True
            with attempt(self.folder, memory) as again:
                found = again.served()
                keys = memory_keys(found, 3)
                self.tally.check(f"{what}, started again", found, memory, keys)

    def _put_back(self, what: str, names: list[str]) -> None:
        """Do what the refusal asks for, once: nothing is lost."""
        if self._is_repair_tried:
            return
        self._is_repair_tried = True
        replace(self.folder, self.history.path(self.state), names)
        with attempt(self.folder, self.memory) as trial:
            site = trial.served()
            keys = self.memory.except_in(())
            self.tally.check(f"{what}, put back", site, self.memory, keys)


def files_of(*volumes: int) -> list[str]:
    """Return the names of the files of volumes."""
    return [f"{kind}/{volume}" for kind in ("data", "index") for volume in volumes]


def memory_keys(site: Site, count: int) -> set[str]:
    """Return the keys that were put last."""
    numbers = range(site.memory.number - count, site.memory.number)
    return {KEYS[number % len(KEYS)] for number in numbers}


@pytest.fixture(params=STATES)
def swap(
    history: History, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Swap]:
    """Swap files after a stop or a kill; fail at the end if anything was wrong."""
    found = Swap(history, tmp_path, str(request.param))
    yield found
    found.tally.finish()


def test_data_file_of_elsewhere_exposes_no_wrong_value(swap: Swap) -> None:
    """Index and META.txt untouched: its records are misses, the others are there."""
    for source, volume in ELSEWHERE:
        promised = swap.memory.except_in([volume])
        swap.run(source, [f"data/{volume}"], promised=promised)


def test_volumes_of_another_store_are_refused_if_meta_is_lost(swap: Swap) -> None:
    """Two of four, with and without their index files, and with LOCK lost as well."""
    swap.run("other", ["data/0", "data/1"], lost=("META.txt",))
    swap.run("other", files_of(2, 3), lost=("META.txt",))
    swap.run("other", files_of(1, 2), lost=("META.txt", "LOCK"))


@IN_FULL
def test_meta_of_elsewhere_is_refused(swap: Swap) -> None:
    """An older one, one of a copy, one of another store."""
    for source in ("earlier", "recent", "diverged", "other"):
        swap.run(source, ["META.txt"])


@IN_FULL
def test_data_and_index_of_a_snapshot_expose_no_old_value(swap: Swap) -> None:
    """Both files of a volume fit each other, but not META.txt."""
    for source, volume in ELSEWHERE[:4]:
        promised = swap.memory.except_in([volume])
        swap.run(source, files_of(volume), promised=promised)


# --- A disk that cannot be read -----------------------------------------------------


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The clock and the disk of a server."""
    return Machine(tmp_path_factory.mktemp("machine"))


def test_reads_that_fail_only_at_the_start_lose_nothing(
    tmp_path: Path, machine: Machine
) -> None:
    """After kill -9: refused, or nothing lost; after recovery all values are there."""
    tally, memory = Tally(), Memory("ours")
    disk = Machine(tmp_path / "shim")
    with serving(tmp_path / "store", memory, sync_interval=HOUR) as site:
        write(site, 50)
        site.delete(KEYS[25])
        site.server.restart()
        write(site, 35)  # The last ones have no index line.
        site.server.kill()
    promised = memory.except_in(())
    for part in ("", "/data/", "/index/", "/data/0"):
        folder = clone(tmp_path / "store", tmp_path / "trial")
        environment = machine.environment if part else disk.environment
        what = f"reads of {part or 'all files'} failed"
        tally.trials += 1
        if part:
            machine.fail_reads_of(part)
        else:
            disk.fail_reads_of(ALL_FILES)
        with attempt(folder, memory, environment=environment) as (found, refusal):
            (machine if part else disk).recover()
            if found is not None:
                tally.check(what, found, memory, promised)
        if found is None:
            tally.refused += 1
            assert "cannot be" in refusal, refusal
            assert str(folder) in refusal
            with attempt(folder, memory) as trial:
                tally.check(f"after {what}", trial.served(), memory, promised)
    tally.finish()


def test_condition_on_an_unreadable_record_is_503_and_changes_nothing(
    tmp_path: Path, machine: Machine
) -> None:
    """503, and nothing is changed: it is unknown whether the condition is true."""
    tally, memory = Tally(), Memory("ours")
    conditions: list[tuple[str, dict[str, str]]] = [
        ("PUT", {"If_None_Match": "*"}),
        ("PUT", {"If_Unmodified_Since": "Thu, 01 Jan 2015 00:00:00 GMT"}),
        ("PUT", {"If_Match": '"1-00000000"'}),
        ("PUT", {"If_None_Match": '"1-00000000"'}),
        ("DELETE", {"If_Match": '"1-00000000"'}),
        ("DELETE", {"If_Unmodified_Since": "Thu, 01 Jan 2015 00:00:00 GMT"}),
        ("GET", {"If_None_Match": "*"}),
        ("HEAD", {"If_Modified_Since": "Fri, 01 Jan 2100 00:00:00 GMT"}),
    ]
    with serving(tmp_path, memory, environment=machine.environment) as site:
        for size in (SMALL, 700_000):
            site.put("k", size)
            for method, headers in conditions:
                tally.trials += 1
                body = b"never" if method == "PUT" else None
                machine.fail_reads_of("/data/")
                answer = site.ask(method, "k", body, **headers)
                machine.recover()
                if answer.status != 503:
                    tally.errors.append(f"{method} {headers}: {answer.status}")
                tally.check(f"after {method} {headers}", site, memory, ["k"])
        site.server.kill()
        site.server.restart()
        tally.check("after kill -9", site, memory, ["k"])
    tally.finish()


@IN_FULL
def test_bit_flips_without_an_index_line_expose_no_old_value(tmp_path: Path) -> None:
    """After kill -9: never the older value; one flipped bit affects no other record."""
    tally, memory = Tally(), Memory("ours")
    positions: dict[str, tuple[str, int, int]] = {}
    with serving(tmp_path / "store", memory, sync_interval=HOUR) as site:
        for key in KEYS:
            site.put(key, SMALL)
        site.server.restart()
        for key in KEYS[:20]:
            position = site.put(key, SMALL).headers["X-Position"]
            volume, offset, size = position.split(",")
            positions[key] = (f"data/{volume}", int(offset), int(size))
        site.server.kill()
    choose = random.Random(1)  # noqa: S311 - Not for security.
    for number in range(8):
        folder = clone(tmp_path / "store", tmp_path / "trial")
        key = choose.choice(sorted(positions))
        name, at, length = positions[key]
        # Alternately in the header with the key, in the value, and two in the header.
        header = 64 + len(key)
        start, end = (header, length) if number % 3 == 1 else (0, header)
        number_of_bits = 1 + (number % 3 == 2)
        for bit in choose.sample(range(start * 8, end * 8), number_of_bits):
            flip(folder / name, at * 8 + bit)
        what = f"{number_of_bits} bits of {key} from {start} to {end}"
        promised = memory.except_in(()) - {key} if number_of_bits == 1 else set()
        tally.trials += 1
        with attempt(folder, memory) as (found, refusal):
            if found is None:
                tally.refuse(what, refusal)
            else:
                tally.check(what, found, memory, promised)
    tally.finish()


# --- Copies in memcached ------------------------------------------------------------


@pytest.fixture(scope="module")
def memcached() -> Iterator[MemcachedProcess]:
    """One memcached."""
    with MemcachedProcess() as process:
        yield process


def hot_settings(address: str) -> dict[str, Any]:
    """Return the settings of an instance with two volumes and a hot tier."""
    return {
        "volume_num": 2,
        "memc_on": "true",
        "memc_servers": address,
        "memc_timeout": 1,
    }


@contextmanager
def hot_site(folder: Path, memory: Memory, address: str) -> Iterator[Site]:
    """Start an instance with a hot tier."""
    with serving(folder, memory, **hot_settings(address)) as site:
        yield site


def make_copies(site: Site, *keys: str) -> None:
    """Let only memcached have these keys."""
    for key in keys:
        site.put(key, SMALL)
        site.make_hot(key)
    site.age()
    for key in keys:
        assert site.get(key).headers["X-Cache"] == "MEMC"


@pytest.mark.parametrize("end", ENDS)
def test_changes_without_the_hot_tier_expose_no_old_copy(
    tmp_path: Path, memcached: MemcachedProcess, end: str
) -> None:
    """A copy from before must not answer, also if HOT.txt is put back."""
    tally, memory = Tally(), Memory("ours")
    hot, kept = tmp_path / "store/HOT.txt", tmp_path / "HOT.txt"
    with hot_site(tmp_path / "store", memory, memcached.address) as site:
        make_copies(site, "deleted", "replaced", "untouched")
        site.server.terminate()
        shutil.copy2(hot, kept)
        site.server.settings["memc_on"] = "false"
        site.server.start()
        for key in ("deleted", "replaced"):
            site.put(key, SMALL)
        site.delete("deleted")
        site.age()
        site.put("new", SMALL)
        end_server(site, end)
        site.server.settings["memc_on"] = "true"
        for is_put_back in (False, True):
            if is_put_back:
                site.server.terminate()
                shutil.copy2(kept, hot)
            site.server.restart()
            tally.trials += 1
            for _ in range(3):
                tally.check(f"HOT.txt back: {is_put_back}", site, memory, ["new"])
            if site.get("deleted").status != 404:
                tally.errors.append("the deleted key is no 404")
    tally.finish()


class HotFile:
    """HOT.txt of a stopped instance, and what is done to it."""

    def __init__(self, folder: Path) -> None:
        """Keep older files beside the mount point."""
        self._hot = folder / "store/HOT.txt"
        self._meta = folder / "store/META.txt"
        self._kept = folder / "HOT.txt"
        self._kept_meta = folder / "META.txt"
        self._choose = random.Random(1)  # noqa: S311 - Not for security.

    def keep(self, *, is_moved: bool) -> None:
        """Keep it for later; the same file, not a copy, if it is moved."""
        shutil.copy2(self._meta, self._kept_meta)
        if is_moved:
            self._hot.rename(self._kept)
            shutil.copy2(self._kept, self._hot)
        else:
            shutil.copy2(self._hot, self._kept)

    def harm(self, how: str) -> None:
        """Damage or replace it."""
        size = self._hot.stat().st_size
        if how == "flip":
            flip(self._hot, self._choose.randrange(8 * size))
        elif how == "truncate":
            os.truncate(self._hot, self._choose.randrange(size))
        elif how != "none":
            self._kept.rename(self._hot)
        if how == "older, with META.txt":
            shutil.copy2(self._kept_meta, self._meta)


HARMS: Final = [
    *("none", "flip", "flip", "truncate"),
    *("older, moved", "older, with META.txt"),
]


def test_damaged_or_older_hot_file_exposes_no_old_copy(
    tmp_path: Path, memcached: MemcachedProcess
) -> None:
    """Bits flipped, truncated, an older one: never a deleted or replaced copy."""
    tally, memory, file = Tally(), Memory("ours"), HotFile(tmp_path)
    with hot_site(tmp_path / "store", memory, memcached.address) as site:
        for number, harm in enumerate(HARMS):
            deleted, replaced, kept = (f"{name}/{number}" for name in "drk")
            make_copies(site, deleted, replaced, kept)
            if "older" in harm:
                site.server.terminate()
                file.keep(is_moved="moved" in harm)
                site.server.restart()
            site.delete(deleted)
            site.put(replaced, SMALL)
            site.age()
            site.server.terminate()
            file.harm(harm)
            tally.trials += 1
            try:
                site.server.restart()
            except ProgramError as error:  # Only with another META.txt, the last one.
                tally.refuse(harm, str(error))
                break
            promised = [kept] if harm == "none" else []
            tally.check(harm, site, memory, promised)
    tally.finish()


def test_clone_on_the_same_memcached_gets_no_foreign_copy(
    tmp_path: Path, memcached: MemcachedProcess
) -> None:
    """Neither gets a copy that the other has made, nor one that it has deleted."""
    tally, memory = Tally(), Memory("ours")
    address = memcached.address
    with hot_site(tmp_path / "a", memory, address) as site:
        make_copies(site, "deleted", "replaced", "kept")
        site.server.terminate()
        clone(tmp_path / "a", tmp_path / "b")
        site.server.restart()
        tally.trials += 2
        tally.check("the original", site, memory, ["deleted", "replaced", "kept"])
        theirs = memory.copy()
        theirs.name = "clone"
        with hot_site(tmp_path / "b", theirs, address) as twin:
            twin.delete("deleted")
            for key in ("replaced", "new"):
                twin.put(key, SMALL)
                twin.make_hot(key)
                site.put(key, SMALL)
            site.make_hot("replaced")
            twin.make_hot("replaced")
            for _ in range(4):
                tally.check("the clone", twin, theirs, ["replaced", "new"])
                tally.check("the original", site, memory, ["replaced", "new", "kept"])
            site.put("deleted", SMALL)
            site.make_hot("deleted")
            for _ in range(4):
                tally.check("the clone", twin, theirs)
    # "kept" in the clone is a value of the original: it may be served, or be a miss.
    tally.wrong = [fault for fault in tally.wrong if ": kept is 'ours" not in fault]
    tally.finish()


class Liar:
    """A memcached that answers a get with whatever the test wants."""

    def __init__(self) -> None:
        """Be honest at first."""
        self.items: dict[bytes, bytes] = {}
        self.mode = "honest"

    def answer(self, data: bytes, connection: socket.socket) -> None:
        """Answer one command."""
        if data.startswith(b"version"):
            connection.sendall(b"VERSION 1.6.18\r\n")
        elif data.startswith(b"set"):
            line, _, rest = data.partition(b"\r\n")
            self.items[line.split(b" ")[1]] = rest[:-2]
            connection.sendall(b"STORED\r\n")
        else:
            name = data.split()[1]
            if self.mode != "honest":
                connection.sendall(self.lie(name))
            elif name in self.items:
                connection.sendall(self.value(name, self.items[name]) + b"END\r\n")
            else:
                connection.sendall(b"END\r\n")

    def value(self, name: bytes, item: bytes) -> bytes:
        """Return an item as memcached sends it."""
        return b"VALUE %b 0 %d\r\n%b\r\n" % (name, len(item), item)

    def lie(self, name: bytes) -> bytes:
        """Return what was not requested."""
        item = self.items.get(name, b"x")
        others = [other for other in self.items if other != name] or [b"other"]
        other, end = others[0], b"END\r\n"
        return {
            "unrequested": self.value(other, item) + end,
            "non-ascii": self.value("clé".encode(), item) + end,
            "two": self.value(name, item) + self.value(b"\xff", item) + end,
            "swapped": self.value(name, self.items.get(other, b"x")) + end,
        }[self.mode]


LIES: Final = ["unrequested", "non-ascii", "two", "swapped"]


def test_memcached_that_answers_another_key_is_bypassed(tmp_path: Path) -> None:
    """A key on the disk is a 200, one that only memcached has a 404: never a 500."""
    tally = Tally()
    for number, lie in enumerate(LIES):
        memory, liar = Memory("ours"), Liar()
        with (
            FakeMemcached(liar.answer) as server,
            hot_site(tmp_path / str(number), memory, server.address) as site,
        ):
            make_copies(site, "gone", "other")
            site.put("stored", SMALL)
            site.make_hot("stored")
            liar.mode = lie
            tally.trials += 1
            for key in ("gone", "stored", "other") * 2:
                answers = [site.get(key), site.get(key, If_None_Match='"x"')]
                for answer in answers:
                    tally.judge(lie, key, answer, memory)
                    if key == "stored" and answer.status == 404:
                        tally.lost.append(f"{lie}: a stored key is a miss")
            assert "request.failed" not in site.server.stderr or tally.errors
    tally.finish()


# --- Clocks -------------------------------------------------------------------------


def test_the_clock_of_the_server_is_set(machine: Machine) -> None:
    """The control of the tests below: Python reads the clock of the library."""
    times = []
    for seconds in (0, HOUR, -HOUR):
        machine.set_clock(seconds)
        times.append(machine.python_time() - seconds)
    machine.set_clock(0)
    assert max(times) - min(times) < 60


def assert_not_taken_for(tally: Tally, what: str, site: Site, old: Any) -> None:
    """Check that no validator of an old answer fits the value stored now."""
    tally.trials += 1
    value = site.memory.values["k"]
    date, tag = old.headers["Date"], old.headers["ETag"]
    dates = {date, old.headers.get("Last-Modified", date)}
    reads = [{"If_None_Match": tag}]
    reads += [{"If_Range": tag, "Range": "bytes=100-"}]
    for one in dates:
        reads += [{"If_Modified_Since": one}, {"If_Range": one, "Range": "bytes=100-"}]
    for headers in reads:
        answer = site.get("k", **headers)
        if (answer.status, answer.body) != (200, value):
            tally.stale.append(f"{what}: {headers} is answered {answer.status}")
    changes = [{"If_Match": tag}, *({"If_Unmodified_Since": one} for one in dates)]
    for method in ("PUT", "DELETE"):
        for headers in changes:
            answer = site.ask(method, "k", b"lost update", **headers)
            if answer.status != 412:
                tally.lost.append(f"{what}: {method} {headers}: {answer.status}")
            if site.get("k").body != value:
                site.ask("PUT", "k", value)


def test_value_replaced_within_a_second_is_never_taken_for_the_old_one(
    tmp_path: Path, machine: Machine
) -> None:
    """No 304, no 206 of two values, no lost update."""
    tally, memory = Tally(), Memory("ours")
    with serving(tmp_path, memory, environment=machine.environment) as site:
        for later in (0, -1, -2, -HOUR, +5, -HOUR):
            site.put("k", SMALL)
            old = site.get("k")
            machine.set_clock(later)
            site.put("k", SMALL)
            assert_not_taken_for(tally, f"clock set to {later}", site, old)
        for end in ("kill", "stop"):
            machine.set_clock(0)
            site.put("k", SMALL)
            old = site.get("k")
            end_server(site, end)
            machine.set_clock(-HOUR)
            site.server.start()
            tally.check(end, site, memory, ["k"])
            site.put("k", SMALL)
            assert_not_taken_for(tally, f"clock set back, {end}", site, old)
    machine.set_clock(0)
    tally.finish()


def test_expired_value_stays_expired_when_the_clock_is_set_back(
    tmp_path: Path, machine: Machine
) -> None:
    """It stays expired, also across kill -9 and stop; others stay."""
    tally, memory = Tally(), Memory("ours")
    machine.set_clock(0)
    cases = [("GET", "none"), ("GET", "kill"), ("HEAD", "kill"), ("PUT", "kill")]
    cases += [("sync", "kill"), ("GET", "stop"), ("PUT", "stop")]
    with serving(tmp_path, memory, environment=machine.environment) as site:
        assert abs(site.now() - machine.python_time()) < 30
        for number, (seen, end) in enumerate(cases):
            machine.set_clock(0)
            key = f"brief/{number}"
            site.put(key, SMALL, Cache_Control="max-age=60")
            site.put("long", SMALL, Cache_Control=f"max-age={9 * HOUR}")
            tally.check("not expired", site, memory, [key, "long"])
            # Another request, or no request at all, is enough to remember the time.
            machine.set_clock(HOUR * (number + 1))
            if seen == "PUT":
                site.put("another", SMALL)
            elif seen == "sync":
                site.wait_synced()
            else:
                assert site.ask(seen, key).status == 404
            memory.values[key] = None
            end_server(site, end)
            machine.set_clock(0)
            if end != "none":
                site.server.start()
            tally.trials += 1
            tally.check(f"{seen}, {end}", site, memory, ["long"])
            if site.ask("HEAD", key).status != 404:
                tally.stale.append(f"{seen}, {end}: HEAD of an expired value")
    tally.finish()


# --- Locks and numbers of volumes ---------------------------------------------------


def test_second_process_is_refused_without_the_lock_file(
    tmp_path: Path,
) -> None:
    """It is refused, and the first one goes on."""
    tally, memory = Tally(), Memory("ours")
    folder = tmp_path / "store"
    (tmp_path / "link").symlink_to(folder)
    with serving(folder, memory) as site:
        write(site, 3)
        lock = folder / "LOCK"
        for harm in ("nothing", "removed", "replaced"):
            if harm == "removed":
                lock.unlink()
            elif harm == "replaced":
                (folder / "META.txt.new").write_text("1\n")
                (folder / "META.txt.new").rename(lock)
            name = "link" if harm == "nothing" else "store"
            tally.trials += 1
            second = ServerProcess(tmp_path / name, settings=site.server.settings)
            try:
                with second:
                    tally.errors.append(f"{harm}: a second process serves")
                    other = Memory("other")
                    write(Site(second, other), 2)
            except ProgramError as error:
                tally.refused += 1
                if "is in use by another process" not in str(error):
                    tally.errors.append(f"{harm}: {error}")
            tally.check(harm, site, memory, KEYS[:3])
            write(site, 1)
        site.server.kill()
        site.server.restart()
        tally.check("started again", site, memory, set(memory.values))
    tally.finish()


@IN_FULL
@pytest.mark.parametrize("end", ENDS)
def test_stale_files_do_not_return_when_volume_num_grows_again(
    tmp_path: Path, end: str
) -> None:
    """Nothing of the stale files returns, whenever they are copied back."""
    tally, memory = Tally(), Memory("ours")
    folder, stale = tmp_path / "store", tmp_path / "stale"
    names = files_of(2, 3)
    with serving(folder, memory) as site:
        write(site, 68)
        site.delete(KEYS[1])
    clone(folder, stale)

    steps = [
        (2, "lowered", False),
        (2, "copied back", True),
        (4, "raised", True),
        (3, "lowered again", True),
        (4, "at the end", True),
    ]
    for volume_num, step, is_copied_back in steps:
        clone(folder, tmp_path / "good")
        if is_copied_back:
            replace(folder, stale, names)
        tally.trials += 1
        what = f"{step}, volume_num {volume_num}, {end}"
        with attempt(folder, memory, volume_num=volume_num, sync_interval=0.05) as (
            found,
            refusal,
        ):
            if found is None:
                tally.refuse(what, refusal)
                replace(folder, tmp_path / "good", names)
                continue
            tally.check(what, found, memory)
            write(found, 9)
            found.delete(KEYS[4])
            found.put(KEYS[7], SMALL)
            tally.check(f"{what}, put", found, memory, [KEYS[7]])
            if end == "kill":
                found.wait_synced()
            else:
                assert found.server.terminate() == 0
    tally.finish()
