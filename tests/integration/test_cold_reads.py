"""Records that are not in memory: read by threads, so that no other client waits."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import re
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from support.extent import every
from support.machine import Machine
from support.process import MIB, SHARED, ServerProcess
from support.waiting import wait_until
from support.wire import (
    ANSWER_SECONDS,
    BY_APP,
    Talk,
    exchange,
    request_bytes,
)

pytestmark = [
    pytest.mark.disk,
    pytest.mark.sampled(3),
    pytest.mark.integration,
    pytest.mark.slow,
]

SETTINGS: Final = {**SHARED, "max_value_size": 4 * MIB}
VOLUMES: Final = "/data/"
DISK_SECONDS: Final = 1.0
# Within which a client is answered that needs no disk: less than the disk takes here, and
# as much as a busy machine may need.
SOON: Final = 0.45
COLD: Final = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Return a machine whose disk can be slow."""
    return Machine(tmp_path_factory.mktemp("machine"))


class SlowServer(ServerProcess):
    """An instance whose disk can be slow, with `/cold` and `/hot`."""

    def __init__(self, folder: Path, machine: Machine, **settings: object) -> None:
        """Prepare it."""
        super().__init__(
            folder / "store",
            settings=SETTINGS | settings,
            environment=machine.environment,
        )
        self.machine = machine
        machine.slow_down("nothing", 0)

    def fill(self) -> None:
        """Store both values, each in pages of its own."""
        for key, value in (("cold", COLD), ("apart", bytes(9000)), ("hot", b"hot")):
            assert exchange(self.port, "PUT", f"/{key}", value).status == 200
        exchange(self.port, "PUT", "/end", bytes(9000))

    def slow_down(
        self, seconds: float = DISK_SECONDS, *, is_late: bool = False
    ) -> None:
        """Take all but `/hot` out of the memory."""
        self.machine.slow_down(f"store{VOLUMES}", seconds, is_late=is_late)
        assert exchange(self.port, "GET", "/hot").body == b"hot"


@pytest.fixture(scope="module")
def _slow(machine: Machine) -> Iterator[SlowServer]:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        SlowServer(Path(folder), machine) as server,
    ):
        yield server


@pytest.fixture
def slow(_slow: SlowServer, machine: Machine) -> Iterator[SlowServer]:
    """Yield an instance with a slow disk, which still serves at the end."""
    machine.slow_down("nothing", 0)
    _slow.fill()
    _slow.slow_down()
    yield _slow
    assert exchange(_slow.port, "GET", "/hot").body == b"hot"
    machine.slow_down("nothing", 0)


def cold_reads(server: ServerProcess) -> int:
    """Return how many records were read by threads."""
    return int(server.stats()["server"]["cold_reads"])


def is_readable(connection: socket.socket, seconds: float = 0) -> bool:
    """Return whether an answer has begun to arrive."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(connection, selectors.EVENT_READ)
        return bool(waiting.select(seconds))


# --- The real page cache ---------------------------------------------------------------


def pages_in_memory(path: Path) -> int:
    """Return how many pages of a file are in memory."""
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        view = ctypes.c_char.from_buffer(mapped)
        vector = (ctypes.c_ubyte * ((size + 4095) // 4096))()
        address = ctypes.c_void_p(ctypes.addressof(view))
        failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), vector)
        del view
    assert not failed
    return sum(byte & 1 for byte in vector)


def make_cold(server: ServerProcess) -> None:
    """Drop the volumes of an instance from the memory."""
    for path in (server.mount_point / "data").iterdir():
        if not path.stat().st_size:
            continue
        fd = os.open(path, os.O_RDWR)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        if pages_in_memory(path):
            pytest.skip("the file system keeps its files in memory")


SIZES: Final = (0, 1, 4000, 5000, 70_000, 300_000, MIB, 1_300_000, 1_400_000, 4 * MIB)


@pytest.mark.parametrize("threads", [1, 4])
def test_values_on_the_disk_are_read_by_threads(tmp_path: Path, threads: int) -> None:
    """Of any size; each client gets its own bytes, and the values stay readable."""
    values = {
        f"/{size}": random.Random(size).randbytes(size)  # noqa: S311 - Any bytes.
        for size in SIZES
    }
    settings = SETTINGS | {"read_threads": threads}
    with ServerProcess(tmp_path, settings=settings) as server, ExitStack() as opened:
        for path, value in values.items():
            assert exchange(server.port, "PUT", path, value).status == 200
        for _ in range(3):
            make_cold(server)
            clients = {path: opened.enter_context(Talk(server.port)) for path in values}
            for path, client in clients.items():
                client.send(request_bytes("GET", path) * 2)
            for path, client in clients.items():
                for _ in range(2):
                    reply = client.read()
                    assert (reply.status, reply.body == values[path]) == (200, True)
        # The disk may be so fast that some are in memory at once.
        assert cold_reads(server) != 0
        hits = server.stats()["requests"]["hits"]["DISK"]
    assert hits == 2 * 3 * len(SIZES)


# --- A slow disk -----------------------------------------------------------------------


def assert_others_are_served(server: SlowServer, waiting: Talk) -> None:
    """Check that others are answered soon until one client is."""
    began = time.monotonic()
    answers = 0
    with Talk(server.port) as other:
        while not is_readable(waiting.socket):
            started = time.monotonic()
            if answers % 2:
                assert other.exchange("PUT", "/other", b"value").status == 200
            else:
                assert other.exchange("GET", "/hot").body == b"hot"
            assert time.monotonic() - started < SOON
            answers += 1
            assert time.monotonic() < began + ANSWER_SECONDS
    assert time.monotonic() - began > DISK_SECONDS * 0.8
    assert answers > 10


def test_slow_read_delays_no_other_client(slow: SlowServer) -> None:
    """A read of a second, which is logged; others are answered, as is the one after it."""
    before, shown = cold_reads(slow), len(slow.stderr)
    with Talk(slow.port) as client:
        client.send(request_bytes("GET", "/cold"))
        assert_others_are_served(slow, client)
        assert client.read().body == COLD
        # From memory.
        began = time.monotonic()
        assert client.exchange("GET", "/cold").body == COLD
        assert time.monotonic() - began < SOON
    assert cold_reads(slow) == before + 1
    pattern = re.compile(
        r"request\.slow method=GET key=cold .*seconds=(\S+) .*disk=(\S+)"
    )
    wait_until(lambda: pattern.search(slow.stderr[shown:]), "a line in the log")
    match = pattern.search(slow.stderr[shown:])
    assert match is not None
    total, disk = float(match[1]), float(match[2])
    assert DISK_SECONDS * 0.9 < disk <= total < DISK_SECONDS + 2


COLD_REQUESTS: Final = [
    ("GET", 'If-None-Match: "other"', 200, COLD),
    ("GET", "If-None-Match: *", 304, b""),
    ("GET", 'If-Match: "other"', 412, None),
    ("GET", "If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT", 200, COLD),
    ("GET", "Range: bytes=100-199", 206, COLD[100:200]),
    ("GET", "Range: bytes=-100", 206, COLD[-100:]),
    ("GET", "Range: bytes=0-1,5-6", 206, None),
    ("GET", BY_APP, 200, COLD),
    ("HEAD", "", 200, b""),
    ("HEAD", "If-None-Match: *", 304, b""),
    ("PROPFIND", "Depth: 0", 207, None),
    ("PUT", "If-None-Match: *", 412, None),
    ("DELETE", 'If-Match: "other"', 412, None),
    ("PUT", "If-Match: *", 200, b""),
    ("DELETE", "If-Match: *", 200, b""),
    ("DELETE", "", 200, b""),
    ("PUT", "", 200, b""),
]


def test_request_for_a_cold_record_delays_no_others(slow: SlowServer) -> None:
    """It is read by a thread before the application sees it, if it is read at all."""
    for number in every(3, len(COLD_REQUESTS)):
        method, headers, status, body = COLD_REQUESTS[number]
        slow.machine.slow_down("nothing", 0)
        slow.fill()
        slow.slow_down()
        with Talk(slow.port) as client, Talk(slow.port) as other:
            value = b"new" if method == "PUT" else None
            client.send(request_bytes(method, "/cold", value, headers))
            took = []
            while not is_readable(client.socket):
                began = time.monotonic()
                assert other.exchange("GET", "/hot").body == b"hot"
                found = other.exchange("PROPFIND", "/hot", None, "Depth: 0")
                assert found.status == 207
                took.append(time.monotonic() - began)
            # One that had to wait for the disk would be the only one.
            assert len(took) > 1 or sum(took) < SOON, (method, headers)
            reply = client.read(method)
            assert reply.status == status, (method, headers)
            assert body is None or reply.body == body, (method, headers)
            assert client.exchange("GET", "/hot").body == b"hot"


def test_several_cold_reads_are_made_at_once(tmp_path: Path, machine: Machine) -> None:
    """As many as there are threads; the others wait for one of them."""
    with SlowServer(tmp_path, machine, read_threads=4) as server, ExitStack() as opened:
        server.fill()
        values = {f"/{n}": bytes([n]) * 20_000 for n in range(12)}
        for path, value in values.items():
            exchange(server.port, "PUT", path, value)
        server.slow_down(0.5)
        began = time.monotonic()
        clients = {path: opened.enter_context(Talk(server.port)) for path in values}
        for path, client in clients.items():
            client.send(request_bytes("GET", path))
        assert exchange(server.port, "GET", "/hot").body == b"hot"
        assert time.monotonic() - began < SOON
        for path, client in clients.items():
            assert client.read().body == values[path]
        took = time.monotonic() - began
    assert 1.4 < took < 4


def test_limits_of_a_client_do_not_count_while_the_disk_is_slow(
    tmp_path: Path, machine: Machine
) -> None:
    """It has nothing to do meanwhile."""
    limits = dict.fromkeys(("head_timeout", "idle_timeout", "transfer_timeout"), 1)
    with SlowServer(tmp_path, machine, **limits) as server:
        server.fill()
        server.slow_down(1.5)
        for path, headers in (("/cold", ""), ("/apart", BY_APP)):
            with Talk(server.port) as client:
                reply = client.exchange("GET", path, None, headers)
                assert reply.status == 200
                # Its idle time begins with the answer.
                time.sleep(0.2)
                assert client.exchange("GET", "/hot").body == b"hot"
                assert client.has_ended()


def test_file_system_that_cannot_tell_what_is_in_memory_is_read_by_threads(
    tmp_path: Path, machine: Machine
) -> None:
    """All of its records, for whatever request; absent keys need no thread."""
    with SlowServer(tmp_path, machine) as server:
        server.fill()
        machine.hide_memory_of(f"store{VOLUMES}")
        for _ in range(20):
            with Talk(server.port) as client:
                client.send(request_bytes("GET", "/hot") * 3)
                assert [client.read().body for _ in range(3)] == [b"hot"] * 3
                assert client.exchange("GET", "/cold").body == COLD
                part = client.exchange("GET", "/cold", None, "Range: bytes=1-2")
                assert (part.status, part.body) == (206, COLD[1:3])
                assert client.exchange("HEAD", "/apart").status == 200
                assert client.exchange("GET", "/absent").status == 404
                assert client.exchange("PUT", "/new", b"new").status == 200
                assert client.exchange("GET", "/new").body == b"new"
                assert client.exchange("DELETE", "/new").status == 200
                assert client.exchange("GET", "/new").status == 404
        assert cold_reads(server) == 20 * 8


def test_store_in_memory_is_read_at_once(machine: Machine) -> None:
    """Its records need no thread."""
    memory = Path("/dev/shm")  # noqa: S108 - A file system that is in memory.
    if not memory.is_dir():
        pytest.skip("there is no /dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        SlowServer(Path(folder), machine) as server,
    ):
        machine.hide_memory_of(f"store{VOLUMES}")
        server.fill()
        for _ in range(20):
            assert exchange(server.port, "GET", "/cold").body == COLD
            assert exchange(server.port, "HEAD", "/cold").status == 200
        assert cold_reads(server) == 0


# --- What happens during a read --------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True])
def test_reading_a_record_whose_volume_is_reclaimed_gives_its_bytes_or_a_miss(
    tmp_path: Path, machine: Machine, *, is_late: bool
) -> None:
    """Never the bytes that took its place."""
    size = 100_000
    small = {"volume_size": MIB, "max_value_size": 2 * size, "volume_num": 2}
    with SlowServer(tmp_path, machine, **small) as server, ExitStack() as opened:
        for number in range(5):
            exchange(server.port, "PUT", f"/old{number}", bytes([number]) * size)
        machine.slow_down(f"store{VOLUMES}", ANSWER_SECONDS / 2, is_late=is_late)
        before = machine.slow_reads
        clients = [opened.enter_context(Talk(server.port)) for _ in range(5)]
        for number, client in enumerate(clients):
            client.send(request_bytes("GET", f"/old{number}"))
            wait_until(lambda: machine.slow_reads > before, "the first read")
        with Talk(server.port) as writer:
            for number in range(25):
                value = bytes([100 + number]) * size
                reply = writer.exchange("PUT", f"/new{number}", value)
                assert reply.status == 200
        rotations = server.stats()["store"]["rotations"]
        assert not any(is_readable(client.socket) for client in clients)
        machine.slow_down("nothing", 0)
        replies = [client.read() for client in clients]
    assert rotations >= 2
    for number, reply in enumerate(replies):
        assert reply.status in {200, 404}
        if reply.status == 200:
            assert reply.body == bytes([number]) * size


# --- The end, and failures -------------------------------------------------------------


def test_cold_reads_are_answered_at_the_end(slow: SlowServer) -> None:
    """A GET, a HEAD and a range that wait for the disk when SIGTERM arrives."""
    with ExitStack() as opened:
        clients = [opened.enter_context(Talk(slow.port)) for _ in range(4)]
        clients[0].send(request_bytes("GET", "/cold"))
        clients[1].send(request_bytes("HEAD", "/apart"))
        clients[2].send(request_bytes("GET", "/end", None, "Range: bytes=0-9"))
        assert clients[3].exchange("GET", "/hot").body == b"hot"
        began = time.monotonic()
        slow.send_signal(signal.SIGTERM)
        assert clients[0].read().body == COLD
        assert clients[1].read("HEAD").status == 200
        assert clients[2].read().status == 206
        assert all(client.has_ended() for client in clients)
        assert slow.wait() == 0
        assert time.monotonic() - began < 3
    slow.start()


def test_reads_that_outlast_the_deadline_end_with_exit_code_0(
    tmp_path: Path, machine: Machine
) -> None:
    """Their clients are disconnected; nothing is lost."""
    with SlowServer(tmp_path, machine) as server:
        server.fill()
        server.slow_down(5)
        with Talk(server.port) as client, Talk(server.port) as other:
            client.send(request_bytes("GET", "/cold"))
            other.send(request_bytes("HEAD", "/apart"))
            assert exchange(server.port, "GET", "/hot").body == b"hot"
            server.send_signal(signal.SIGTERM)
            assert server.wait() == 0
        server.machine.slow_down("nothing", 0)
        server.start()
        assert exchange(server.port, "GET", "/cold").body == COLD


def test_damaged_record_is_a_miss_whether_it_is_in_memory_or_not(
    tmp_path: Path,
) -> None:
    """It is counted, and others are served."""
    with ServerProcess(tmp_path, settings=SETTINGS) as server:
        exchange(server.port, "PUT", "/good", COLD)
        for key in ("hot", "cold"):
            reply = exchange(server.port, "PUT", f"/{key}", COLD)
            volume, offset, size = reply.headers["X-Position"].split(",")
            assert exchange(server.port, "GET", f"/{key}").body == COLD
            fd = os.open(server.mount_point / "data" / volume, os.O_RDWR)
            try:
                os.pwrite(fd, b"x", int(offset) + int(size) - 9)
            finally:
                os.close(fd)
            if key == "cold":
                make_cold(server)
            reply = exchange(server.port, "GET", f"/{key}")
            assert (reply.status, reply.headers["X-Cache"]) == (404, "MISS")
        assert exchange(server.port, "GET", "/good").body == COLD
        assert server.stats()["store"]["damaged_records"] == 2
