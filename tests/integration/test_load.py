"""`volcache load`: files reach the instances of their keys, with types and lifetimes."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from support.cachefs import CacheFs
from support.cluster import ringed
from support.command_line import VOLCACHE, run_volcache
from support.process import SOURCE, ServerProcess, Servers
from support.scripted_server import Peer, ScriptedServer
from support.stores import open_store
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SMALL = {"volume_size": 1 << 20, "volume_num": 4, "max_value_size": 8000}
EXPIRES_MS = time.time_ns() // 1_000_000 + 10**12
FILES = {f"{n % 7}/{n}.txt": os.urandom(n % 3000) for n in range(1500)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Start three instances behind nginx; return their list, and the URL of nginx."""
    folder = tmp_path_factory.mktemp("cluster")
    with ringed(folder) as running:
        yield folder / "list0", running.nginx.url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write files, a link and a pipe."""
    for name, value in FILES.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    os.mkfifo(tmp_path / "files" / "pipe")
    return tmp_path / "files"


def load(*words: object, data: bytes = b"", **environ: str) -> tuple[int, list[str]]:
    """Run the command; return its exit code and its output."""
    done = run_volcache("load", *map(str, words), data=data, **environ)
    assert not done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode().splitlines()


def values_at(url: str, prefix: str, keys: object) -> dict[str, bytes]:
    """Return what is stored under names."""
    with requests.Session() as session:
        found = {
            key: session.get(f"{url}/{quote(prefix + key)}", timeout=20)
            for key in map(str, keys)  # type: ignore[call-overload]
        }
    return {key: one.content for key, one in found.items() if one.ok}


def test_load_of_a_folder_stores_through_the_ring(
    cluster: tuple[Path, str], folder: Path
) -> None:
    """By the list, and by nginx; what is no file is left out."""
    for prefix, target in (
        ("a b/", cluster[0]),
        ("n/", cluster[1]),
    ):
        code, lines = load(folder, target, "--prefix", prefix, "--max-age", "3600")
        assert (code, lines[0]) == (1, "left out pipe: is not a regular file")
        assert lines[1].startswith(f"{folder}: 1,500 files, 1.1 MiB; left out: 1; ")
        assert values_at(cluster[1], prefix, FILES) == FILES
        shown = requests.head(f"{cluster[1]}/{prefix}1/1.txt", timeout=20).headers
        assert shown["Content-Type"] == "text/plain"
        assert shown["Cache-Control"].startswith("max-age=3")


def test_load_from_standard_input_reads_archive_or_list(
    cluster: tuple[Path, str], tmp_path: Path, folder: Path
) -> None:
    """An archive may also be a file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, ".", filter=lambda one: None if one.isfifo() else one)
    (tmp_path / "a.tar").write_bytes(packed.getvalue())
    names = "".join(f"./{folder.name}/{name}\n" for name in FILES)
    for prefix, source, data in (
        ("file/", tmp_path / "a.tar", b""),
        ("tar/", "-", packed.getvalue()),
    ):
        code, lines = load(source, cluster[0], "--prefix", prefix, data=data)
        assert (code, len(lines)) == (0, 1)
        assert values_at(cluster[1], prefix, FILES) == FILES
    words = "load", "-", str(cluster[0])
    done = run_volcache(*words, data=names.encode(), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert values_at(cluster[1], f"{folder.name}/", FILES) == FILES


def test_load_of_an_export_restores_everything(tmp_path: Path) -> None:
    """Any key, type, encoding, directives, flags and lifetime; through the pipe."""
    dice = random.Random(3)  # noqa: S311 - Of values.
    keys = [
        *(
            b"\xff\xfe",
            b"a b%20c",
            b'"quoted"',
            "gr\xfcn".encode(),
            b"\\",
            b"/a",
            b"a/",
        ),
        *(b"a", b"a//b", b"-", b"%2F", b"x" * 255, b"x/" * 400, b"=" * 100),
    ]
    store = open_store(tmp_path / "before", volume_size=1 << 20)
    for number, key in enumerate(keys):
        store.put(
            key,
            dice.randbytes(dice.randrange(400)),
            content_type=dice.choice((b"", b"text/x", b"a/\xe9; b=c", b"t" * 255)),
            content_encoding=dice.choice((b"", b"gzip", b"e" * 64)),
            cache_control=dice.choice((b"", b"immutable", b'a="b", c')),
            expires_ms=dice.choice((0, EXPIRES_MS)),
            flags=dice.choice((0, 1, (1 << 32) - 1)) if number else 7,
        )
    store.close()
    done = run_volcache("export", str(tmp_path / "before"))
    with ServerProcess(tmp_path / "after", settings=SMALL) as server:
        code, lines = load("-", server.url, data=done.stdout)
        assert (code, len(lines)) == (0, 1)

    def records(folder: str) -> dict[bytes, tuple[object, ...]]:
        store = open_store(tmp_path / folder, volume_size=1 << 20)
        found = {key: store.get(key) for key in keys}
        store.close()
        return {
            key: (
                *(one.value, one.content_type, one.content_encoding),
                *(one.cache_control, one.flags, round(one.expires_ms / 1e5)),
            )
            for key, one in found.items()
            if one
        }

    assert len(records("before")) == len(keys)
    assert records("after") == records("before")


def test_load_of_refused_files_leaves_them_out(
    servers: Servers, tmp_path: Path
) -> None:
    """The others are stored."""
    for name, length in (("small", 10), ("large", 3 << 20), ("-\n", 1)):
        (tmp_path / name).write_bytes(bytes(length))
    with servers.server(write_token="secret") as server:  # noqa: S106
        done = run_volcache("load", str(tmp_path), server.url)
        assert done.returncode == 1
        assert b"401" in done.stderr
        assert b"--token-file" in done.stderr
        done = run_volcache("load", str(tmp_path), server.url, write_token="secret")  # noqa: S106
        shown = done.stdout.decode().splitlines()
        assert done.returncode == 1
        assert shown[0].startswith("left out -%0A: bad key")
        assert shown[1].startswith("left out large: ")
        assert " 413 " in shown[1]
        assert "1 file, 10 B; left out: 2" in shown[2]


# Whoever starts the tests in the background lets them ignore it.
HEEDING = "import signal; signal.signal(2, signal.default_int_handler); "


def test_load_after_ctrl_c_resumes(folder: Path, tmp_path: Path) -> None:
    """
    It ends while it waits for a name; what it has read is stored.

    With --resume, nothing is sent twice, and nothing is missing.
    """
    state = tmp_path / "state"
    names = [f"{name}\n".encode() for name in FILES]
    stored: list[bytes] = []

    def serve(peer: Peer) -> None:
        while request := peer.request():
            stored.append(request.split(b" ", 2)[1])
            peer.send(b"HTTP/1.1 201 x\r\nContent-Length: 0\r\n\r\n")

    with ScriptedServer(serve) as server:
        words = ["load", "-", server.name, "--resume", str(state), "--json"]
        process = subprocess.Popen(
            [sys.executable, "-c", HEEDING + VOLCACHE, *words],
            env={"PYTHONPATH": str(SOURCE)},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin
        process.stdin.write(b"".join(names[:800]))
        process.stdin.flush()
        # It waits for the next name, with less than a row of 64 that is not sent.
        wait_until(lambda: len(stored) > 800 - 64, "most of the files")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)  # The pipe stays open.
        process.communicate()
        assert (process.returncode, state.read_text()) == (130, "800\n")
        found = run_volcache(*words, data=b"".join(names), folder=folder)
        assert found.returncode == 0
        summary = json.loads(found.stdout.splitlines()[-1])["summary"]
        assert (summary["skipped"], summary["files"]) == (800, 700)
        assert sorted(stored) == sorted(f"/{name}".encode() for name in FILES)
        assert state.read_text() == "1500\n"
    state.write_text("x")
    assert run_volcache(*words).returncode == 2


def test_load_over_broken_connections_loses_nothing(folder: Path) -> None:
    """Requests without an answer are sent again, and those with a 503."""
    dice = random.Random(5)  # noqa: S311 - Of failures.
    stored: set[bytes] = set()

    def serve(peer: Peer) -> None:
        for _ in range(dice.randrange(1, 200)):
            request = peer.request()
            if not request:
                return
            if dice.random() < 0.02:
                peer.send(b"HTTP/1.1 503 x\r\nContent-Length: 5\r\n\r\nbusy\n")
                continue
            stored.add(request.split(b" ", 2)[1])
            peer.send(b"HTTP/1.1 201 x\r\nContent-Length: 0\r\n\r\n")

    with ScriptedServer(serve) as server:
        code, lines = load(folder, server.name)
    assert (code, len(lines)) == (1, 2)  # The pipe.
    assert stored == {f"/{name}".encode() for name in FILES}


def test_load_with_an_instance_down_names_its_files(
    folder: Path, tmp_path: Path, servers: Servers
) -> None:
    """Those of the others are stored; --resume goes on with the first that is not."""
    state = tmp_path / "state"
    with ExitStack() as stack:
        server = stack.enter_context(servers.server())
        target = f"127.0.0.1:{server.port}"
        done = run_volcache(
            "load", str(folder), target, "127.0.0.1:1", "--resume", str(state)
        )
        lines = done.stdout.decode().splitlines()
        assert done.returncode == 1
        why = "127.0.0.1:1: cannot connect: Connection refused"
        assert sum(why in line for line in lines) == 99
        assert lines[-2].startswith("left out ")
        assert int(state.read_text()) < 20
        assert (
            run_volcache("load", str(folder), target, "--resume", str(state)).returncode
            == 0
        )
        assert values_at(server.url, "", FILES) == FILES


def test_load_of_cachefs_finds_all_values(servers: Servers, tmp_path: Path) -> None:
    """10,000 keys, with deletions, other values for a key and volumes written again."""
    dice = random.Random(7)  # noqa: S311 - Of a workload.
    store = CacheFs(tmp_path / "old", volumes=8, size=128 << 10)
    keys = [f"k/{n}{' 0' if n % 50 == 0 else ''}".encode() for n in range(10_000)]
    for number in range(60_000):
        key = keys[dice.randrange(len(keys))]
        if number % 9 == 0 and key in store:
            store.delete(key)
        elif number % 2:
            store.put(key, dice.randbytes(dice.randrange(1, 200)))
    expected = {key: value for key, (_, value) in store.live.items()}
    assert len(expected) > 3000
    with servers.server() as server:
        code, lines = load(tmp_path / "old", server.url)
        assert code == 0, lines[:3]
        found = values_at(server.url, "", [key.decode() for key in keys])
    assert {key.encode(): value for key, value in found.items()} == expected


def test_load_of_a_mount_point_says_what_to_do(tmp_path: Path) -> None:
    """It is named what to do."""
    with ServerProcess(tmp_path / "store"):
        pass
    done = run_volcache("load", str(tmp_path / "store"), "127.0.0.1:1")
    assert done.returncode == 2
    assert b"load what volcache export writes" in done.stderr
