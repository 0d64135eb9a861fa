"""Both clients against a running instance."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from support.background import in_background
from support.client_users import PATIENCE, TaskClient
from support.process import SHARED, SOURCE, ServerProcess, Servers
from support.waiting import wait_until
from volcache_client import Client, NodeError

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# One process of several: its threads ask for one key; prints what it made.
_ASK: Final = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from volcache_client import Client

url, key = sys.argv[1:]

def make():
    print("made", flush=True)
    time.sleep(0.5)
    return b"value"

with (
    Client(url, timeout=30, connect_timeout=30) as client,
    ThreadPoolExecutor(16) as threads,
):
    print("ready", flush=True)
    sys.stdin.readline()
    found = list(threads.map(lambda _: client.get_or_set(key, make), range(16)))
    assert found == [b"value"] * 16, found
"""
# The child must not use the connections of its parent.
_FORK: Final = """
import os, sys, threading
from volcache_client import Client

client = Client(sys.argv[1], timeout=30, connect_timeout=30)
client.set("parent", b"parent")
may_end, has_begun = threading.Event(), threading.Event()

def make():
    has_begun.set()
    may_end.wait(30)
    return b"made"

maker = threading.Thread(target=lambda: client.get_or_set("k", make))
maker.start()
has_begun.wait(30)
client._core.counters._lock.acquire()  # As another thread may have, at this moment.
child = os.fork()
if not child:
    ok = [client.get("parent") == b"parent" for _ in range(50)]
    ok.append(len(client.get_many(["parent", "x"])) == 1)
    ok.append(client.get_or_set("other", lambda: b"child") == b"child")
    os._exit(0 if all(ok) else 1)
client._core.counters._lock.release()
ok = [client.get("parent") == b"parent" for _ in range(50)]
_, status = os.waitpid(child, 0)
may_end.set()
maker.join()
client.close()
sys.exit(0 if all(ok) and status == 0 else 1)
"""


@pytest.fixture
def server(servers: Servers) -> Iterator[ServerProcess]:
    """One instance."""
    with servers.server() as server:
        yield server


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program that uses the client."""
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_get_or_set_by_many_processes_makes_the_value_once(
    server: ServerProcess,
) -> None:
    """One holds the lease; the others wait for the value."""
    processes = [script(_ASK, server.url, "processes") for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert "".join(outputs) == "made\n"


def test_client_after_a_fork_has_connections_and_locks_of_its_own(
    server: ServerProcess,
) -> None:
    """Answers are never mixed up, and nothing waits for a thread that is not there."""
    process = script(_FORK, server.url)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("on_error", ["raise", "miss"])
@pytest.mark.parametrize("kind", [Client, TaskClient])
def test_operations_of_an_instance_that_is_killed_get_no_wrong_answer(
    tmp_path: Path, kind: Any, on_error: str
) -> None:
    """Each is the value, a miss or an error of the node; afterwards all is as before."""
    with (
        ServerProcess(tmp_path / "store", settings=SHARED) as server,
        kind(server.url, on_error=on_error, backoff=(0.05, 0.1), **PATIENCE) as user,
    ):
        traffic = Traffic(user)
        with in_background(*(partial(traffic.run, number) for number in range(8))):
            for _ in range(2):
                traffic.wait_for("stored", "read", "made")
                server.kill()
                traffic.wait_for("error" if on_error == "raise" else "dropped")
                server.restart()
            traffic.wait_for("stored", "read", "made")
        assert not traffic.wrong
        (node,) = user.stats()["nodes"].values()
        assert (node["up"], node["in_use"]) == (1, 0)


class Traffic:
    """Reads and writes of several threads; each key has one value."""

    def __init__(self, user: Any) -> None:
        self.wrong: list[object] = []
        self._user = user
        self._outcomes: set[str] = set()

    def run(self, seed: int, is_ended: threading.Event) -> None:
        """Read and write until the end."""
        draw = random.Random(seed)  # noqa: S311 - Any numbers.
        while not is_ended.is_set():
            try:
                self._outcomes.add(self._ask(draw))
            except NodeError:
                self._outcomes.add("error")
            except Exception as error:  # noqa: BLE001 - Whatever it is.
                self.wrong.append(error)

    def _ask(self, draw: random.Random) -> str:
        key = f"key{draw.randrange(50)}"
        value = key.encode() * 100
        kind = draw.random()
        if kind < 0.3:
            return "stored" if self._user.set(key, value) else "dropped"
        is_made = kind < 0.5
        more = [lambda: value] if is_made else []
        method = self._user.get_or_set if is_made else self._user.get
        found = method(key, *more)
        if found != value and (is_made or found is not None):
            self.wrong.append((key, found))
        return "missed" if found is None else "made" if is_made else "read"

    def wait_for(self, *outcomes: str) -> None:
        """Wait until there are such outcomes from now on."""
        self._outcomes.clear()
        wait_until(lambda: self._outcomes.issuperset(outcomes), " and ".join(outcomes))
