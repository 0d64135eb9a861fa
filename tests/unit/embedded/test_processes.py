"""embedded/links.py: several processes that use one directory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest

from support.embedded import Cache, count_up, open_small, owner_of, write_versions
from support.extent import SEED
from support.process import SOURCE
from support.waiting import wait_until
from volcache.embedded import links, session
from volcache.embedded.errors import StorageLockedError, UnknownResultError
from volcache.embedded.links import Guest
from volcache.sharing.wire import REQUEST
from volcache.store.format import Ring

PROCESSES: Final = 4
# Python 3.12 and later warn of a fork with threads, which is what is tested.
forking: Final = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def is_guest(cache: Cache) -> bool:
    """Whether another process has the store."""
    return isinstance(cache._session.link, Guest)


def in_a_child(act: Callable[[], object]) -> int:
    """Begin to do something in a forked child; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        act()
    except BaseException:  # noqa: BLE001 - The child must end here.
        os._exit(1)
    os._exit(0)


def exit_code(child: int) -> int:
    """Return the exit code of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Program:
    """A process that has a cache, and executes lines of Python that it gets."""

    def __init__(self, directory: Path, **how: Any) -> None:
        """Open the cache."""
        text = (
            "import sys, volcache\n"
            "cache = volcache.open(sys.argv[1], capacity='8MiB', sync_mode='none')\n"
            "for line in sys.stdin:\n"
            "    print(eval(line), flush=True)\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", text, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(SOURCE)},
            **how,
        )
        assert self.does("cache.closed") == "False"

    def send(self, text: str) -> None:
        """Let it begin to evaluate an expression."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def receive(self) -> str:
        """Return what the value looks like."""
        assert self.process.stdout is not None
        return str(self.process.stdout.readline().strip())

    def does(self, text: str) -> str:
        """Return what the value of an expression looks like."""
        self.send(text)
        return self.receive()

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


# --- What a guest does ---------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 900_000])
def test_value_of_any_size_is_the_same_for_owner_and_guest(
    tmp_path: Path, size: int
) -> None:
    """Also one that is longer than what is received at a time."""
    value = os.urandom(size)
    with open_small(tmp_path) as owner, open_small(tmp_path) as guest:
        guest["a"] = value
        owner["b"] = value
        assert owner["a"] == guest["b"] == guest["a"] == value


def test_set_by_a_guest_rotates_full_volumes(tmp_path: Path) -> None:
    """What the loop cannot do is done by the thread."""
    with open_small(tmp_path, capacity="4MiB") as owner, open_small(tmp_path) as guest:
        for number in range(300):
            guest[f"{number}"] = bytes([number % 256]) * 50_000
            assert guest[f"{number}"] == bytes([number % 256]) * 50_000
        assert owner.stats().evicted > 100
        assert all(len(set(value)) == 1 for value in owner.values())


def test_exclusive_blocks_changes_of_other_processes(
    tmp_path: Path,
) -> None:
    """Whoever holds, reads and changes; the end of a holder releases."""
    order: list[str] = []

    def change(cache: Cache, name: str) -> threading.Thread:
        def run() -> None:
            cache[name] = b""
            order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with open_small(tmp_path) as owner, open_small(tmp_path) as guest:
        for holder, other in ((owner, guest), (guest, owner), (guest, guest)):
            with holder.exclusive(), holder.exclusive():
                thread = change(other, "other")
                for number in range(30):
                    holder[f"{number}"] = b""
                    assert holder.incr("n", initial=1)
                assert other.get("1") == b""
                order.append("holder")
            thread.join()
            assert order == ["holder", "other"]
            order.clear()
        with guest.exclusive():
            link = guest._session.link
            assert isinstance(link, Guest)
            link._held[threading.get_ident()].close()
            owner["a"] = b"released"


# --- Processes -----------------------------------------------------------------------


@pytest.mark.slow
@forking
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_incr_of_many_processes_loses_no_change(tmp_path: Path, method: str) -> None:
    """No change is lost, whoever owns the directory and closes it meanwhile."""
    context: Any = multiprocessing.get_context(method)
    users = [
        context.Process(target=count_up, args=(tmp_path, 200)) for _ in range(PROCESSES)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join()
        assert user.exitcode == 0
    with open_small(tmp_path, capacity="64MiB") as cache:
        assert cache["n"] == b"%d" % (200 * PROCESSES)


@forking
def test_forked_children_become_guests_of_their_parent(tmp_path: Path) -> None:
    """As workers of a server that has opened the cache before it forks them."""
    begun, begin = os.pipe()

    def work() -> None:
        for _ in range(100):
            cache.incr("n", initial=1)
        assert is_guest(cache)
        if os.fork() == 0:
            cache.incr("n")
            os._exit(0)
        os.wait()
        os.write(begin, b"!")

    with open_small(tmp_path) as cache:
        children = [in_a_child(work) for _ in range(PROCESSES)]
        assert [exit_code(child) for child in children] == [0] * PROCESSES
        assert cache["n"] == b"%d" % (101 * PROCESSES)
        assert not is_guest(cache)
    assert len(os.read(begun, 100)) == PROCESSES


@forking
def test_forked_child_collects_a_closed_cache_without_waiting(tmp_path: Path) -> None:
    """The threads of a cache that was closed are not waited for there."""
    cache: Cache | None = open_small(tmp_path)
    assert cache is not None
    garbage: list[object] = [owner_of(cache)]
    garbage.append(garbage)
    cache.close()
    cache = None
    garbage = []
    assert exit_code(in_a_child(gc.collect)) == 0


@forking
def test_forked_child_becomes_owner_after_its_parent_has_closed(
    tmp_path: Path,
) -> None:
    """Locks and connections end with the parent, although the child has inherited them."""
    reading, writing = os.pipe()

    def work() -> None:
        os.close(writing)
        os.read(reading, 1)  # The parent has closed it.
        cache["b"] = b"2"
        assert not is_guest(cache)
        cache.close()

    cache = open_small(tmp_path)
    with open_small(tmp_path) as other:
        cache["a"] = b"1"
        child = in_a_child(work)
        wait_until(lambda: other.get("a") == b"1", "a guest")
    cache.close()
    os.close(writing)
    assert exit_code(child) == 0
    with open_small(tmp_path) as again:
        assert dict(again.items()) == {b"a": b"1", b"b": b"2"}


@pytest.mark.slow
def test_guests_of_a_killed_owner_go_on_and_one_becomes_owner(tmp_path: Path) -> None:
    """What was acknowledged is there; one of them is the owner from then on."""
    programs = [Program(tmp_path) for _ in range(3)]
    assert programs[1].does("cache.set('a', b'1', ttl=1000) != ''") == "True"
    assert programs[2].does("cache.get('a')") == "b'1'"
    programs[0].kill()
    assert programs[2].does("cache.get('a')") == "b'1'"
    assert programs[1].does("cache.incr('a')") == "2"
    assert programs[1].does("type(cache._session.link).__name__") == "'Guest'"[1:-1]
    programs[2].kill()
    assert programs[1].does("cache.get('a')") == "b'2'"
    assert programs[1].does("round(cache.ttl('a'), -2)") == "1000.0"
    programs[1].kill()


@pytest.mark.slow
def test_get_by_a_guest_while_the_owner_is_stopped_returns_values(
    tmp_path: Path,
) -> None:
    """By itself, from the index that is shared; also what is new, large, or not there."""
    owner = Program(tmp_path)
    with open_small(tmp_path) as guest:
        guest["a"] = b"1"
        guest.set("b", bytes(100_000), ttl=1000)
        guest["gone"] = b""
        del guest["gone"]
        owner.process.send_signal(signal.SIGSTOP)
        assert guest["a"] == b"1"
        assert guest["b"] == bytes(100_000)
        assert guest.stat("b") is not None
        assert "gone" not in guest
        assert guest.get("c") is None
        owner.process.send_signal(signal.SIGCONT)
        guest.purge("a")
        assert guest.get("a") is None  # The owner says so.
        assert guest["b"] == bytes(100_000)
        guest["a"] = b"2"
        assert guest["a"] == b"2"
    owner.kill()


@pytest.mark.slow
def test_get_by_guests_while_the_owner_writes_returns_nothing_older(
    tmp_path: Path,
) -> None:
    """While segments grow, volumes are reused, and values are copied and deleted."""
    with open_small(tmp_path, capacity="16MiB") as owner:
        write_versions(owner, 4000, 1)
        guests = [Program(tmp_path) for _ in range(3)]
        for guest in guests:
            guest.does("sys.path.insert(0, 'tests')")
            guest.does(
                "globals().update(vars(__import__('support.embedded').embedded))"
            )
            guest.send("read_versions(cache, 4000, 100_000)")
        for version in range(2, 30):
            write_versions(owner, 4000, version)
        for guest in guests:
            assert int(guest.receive()) > 1000
            assert guest.does("type(cache._session.link._reader).__name__") == (
                "SharedReader"
            )
            guest.kill()


@pytest.mark.slow
def test_reads_of_a_guest_reach_the_eviction_policy_of_the_owner(
    tmp_path: Path,
) -> None:
    """Some at a time; here those of a key that was not there."""
    with open_small(tmp_path) as owner:
        index = owner_of(owner).store.index
        assert index.ring_for(b"missed") is Ring.MAIN
        guest = Program(tmp_path)
        assert guest.does("[cache.get('missed') for _ in range(1000)].count(None)") == (
            "1000"
        )
        assert index.ring_for(b"missed") is Ring.PROBATION
        guest.kill()


# --- The end of an owner during a call -----------------------------------------------


def lose_reply(guest: Cache, then: Callable[[], object] = bool) -> None:
    """Let one or two requests of a guest be done without a reply, and then something."""
    link = guest._session.link
    assert isinstance(link, Guest)

    def forward(theirs: socket.socket) -> None:
        with theirs, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{guest.directory}/socket")
            if request := theirs.recv(65536):
                connection.sendall(request)
                connection.recv(65536)
                then()

    while link._client.idle:
        link._client.idle.pop().close()
    for _ in range(2):
        ours, theirs = socket.socketpair()
        link._client.idle.append(ours)
        threading.Thread(target=forward, args=(theirs,)).start()


def test_call_without_a_reply_is_repeated_if_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an error says that it may have been made."""
    with open_small(tmp_path) as owner:
        monkeypatch.setattr(links, "SharedReader", Mock(side_effect=MemoryError))
        with open_small(tmp_path) as asking:
            for call, found in (
                (lambda: bool(asking.set("a", b"1")), True),
                (lambda: bool(asking.set("a", b"1", 1000)), True),
                (lambda: asking.get("a"), b"1"),
                (lambda: asking.exists("a"), True),
                (lambda: len(asking), 1),
            ):
                lose_reply(asking)
                assert call() == found
        monkeypatch.undo()
        with open_small(tmp_path) as guest:
            for change in (
                lambda: guest.incr("n", initial=1),
                lambda: guest.append("n", b"1"),
                lambda: guest.delete("a"),
                lambda: guest.add("a", b"2"),
                lambda: guest.pop("a"),
            ):
                lose_reply(guest)
                with pytest.raises(UnknownResultError, match="made or not"):
                    change()
        assert list(owner) == [b"n"]


@pytest.mark.parametrize("ttl", [None, 1000])
@pytest.mark.parametrize("newer", [b"newer", None])
def test_set_without_a_reply_keeps_a_newer_change(
    tmp_path: Path, newer: bytes | None, ttl: int | None
) -> None:
    """Nobody knows whether it was made before that."""

    def overtake() -> None:
        if newer is None:
            owner.delete("a")
        else:
            owner["a"] = newer

    with open_small(tmp_path) as owner, open_small(tmp_path) as guest:
        lose_reply(guest, overtake)
        with pytest.raises(UnknownResultError, match="made or not"):
            guest.set("a", b"1", ttl)
        assert owner.get("a") == guest.get("a") == newer


# --- Who may use it ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "allowed"),
    [(0o700, 0o200), (0o755, 0o200), (0o775, 0o220), (0o1777, 0o200)],
)
def test_socket_has_the_write_permissions_of_the_directory(
    tmp_path: Path, mode: int, allowed: int
) -> None:
    """And nobody else."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with open_small(tmp_path / "cache"):
        found = (tmp_path / "cache" / "socket").stat()
        assert found.st_mode & 0o777 == allowed
        assert found.st_gid == (tmp_path / "cache").stat().st_gid
    assert not (tmp_path / "cache" / "socket").exists()


def test_open_of_a_long_path_is_shared(tmp_path: Path) -> None:
    """The kernel takes 107 bytes for the name of a socket."""
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    with open_small(directory) as owner, open_small(directory) as guest:
        guest["a"] = b"1"
        assert owner["a"] == b"1"


def test_open_without_sockets_is_used_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on file systems that have none."""

    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("volcache.sharing.owner._listen", refuse)
    with open_small(tmp_path) as cache:
        cache["a"] = b"1"
        assert cache["a"] == b"1"
        assert not (tmp_path / "socket").exists()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Return a folder that all users may go into; each start of pytest closes its own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_users_of_the_group_share_and_a_stranger_is_refused(
    public_folder: Path,
) -> None:
    """Each of them can go on without the others; all can go into the directory."""
    directory = public_folder / "cache"
    directory.mkdir()
    os.chown(directory, 1234, 4321)
    directory.chmod(0o775)
    first = Program(directory, user=1234, group=1234, extra_groups=[4321])
    second = Program(directory, user=1236, group=4321, extra_groups=[])
    assert first.does("cache.set('a', b'1') != ''") == "True"
    assert second.does("cache._session.value('a')") == "b'1'"  # It reads by itself.
    assert second.does("cache.set('a', b'2') != ''") == "True"
    first.kill()
    assert second.does("cache.set('b', b'3') != ''") == "True"
    assert second.does("type(cache._session.link).__name__") == "Owner"
    third = Program(directory, user=1234, group=1234, extra_groups=[4321])
    second.kill()
    assert third.does("[*map(bytes, cache.values())]") == "[b'2', b'3']"
    assert third.does("type(cache._session.link).__name__") == "Owner"
    text = (
        "import os, socket, sys\n"
        "names = [os.path.join(*found) for root, folders, files in os.walk(sys.argv[1])"
        " for found in [(root, name) for name in files]]\n"
        "for name in [*names, *(f'{sys.argv[1]}/{one}/0' for one in ('data', 'index'))]:\n"
        "    for attempt in (socket.socket(socket.AF_UNIX).connect, open, os.remove):\n"
        "        try: attempt(name)\n"
        "        except PermissionError: continue\n"
        "        print(attempt, name)\n"
        "print(*map(os.path.basename, sorted(names)))\n"
    )
    stranger = subprocess.run(
        [sys.executable, "-c", text, str(directory)],
        user=1235,
        group=1235,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
    )
    assert stranger.stdout == "LOCK META.txt socket\n"
    third.kill()


def test_nonsense_on_the_socket_leaves_the_owner_serving(tmp_path: Path) -> None:
    """Whatever it is, the owner and its other guests go on."""
    chance = random.Random(SEED)  # noqa: S311 - Repeatable.
    with open_small(tmp_path) as owner:
        for _ in range(200):
            head = bytearray(chance.randbytes(REQUEST.size))
            head[:4] = chance.randrange(300).to_bytes(4, "little")
            head[8:10] = chance.randrange(40).to_bytes(2, "little")
            head[10] = chance.randrange(26)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(tmp_path / "socket"))
                connection.settimeout(30)
                connection.sendall(head + chance.randbytes(2000))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        owner["a"] = b"1"
        with open_small(tmp_path) as guest:
            assert guest["a"] == b"1"


def test_open_by_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they may not understand each other."""
    monkeypatch.setattr(session, "_WAIT_SECONDS", 0.01)
    with open_small(tmp_path):
        monkeypatch.setattr("volcache.sharing.owner.VERSION", 0)
        with pytest.raises(StorageLockedError, match="another version of volcache"):
            open_small(tmp_path)


@pytest.mark.slow
def test_killed_owner_leaves_no_connection_in_its_children(tmp_path: Path) -> None:
    """A guest of it goes on although a child of it lives on."""
    program = Program(tmp_path)
    with open_small(tmp_path) as guest:
        guest["a"] = b"1"
        assert is_guest(guest)
        child = int(
            program.does("__import__('os').fork() or __import__('time').sleep(60)")
        )
        program.kill()
        assert guest["a"] == b"1"
        assert not is_guest(guest)
        os.kill(child, signal.SIGKILL)
