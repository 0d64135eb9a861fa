"""
Processes that share a directory are killed, owner and guests, while they read and write.

What all of them saw of a key could have happened one operation after the other, over all
kills: what was acknowledged is there, and no answer is older than one before it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from support.embedded import open_small
from support.extent import EXTENT, SEED
from support.linearizable import Operation, find_order
from support.process import SOURCE
from support.waiting import wait_until

pytestmark = pytest.mark.property

PROCESSES: Final = 4 if EXTENT else 8
KILLS: Final = 6 * EXTENT or 300
# Bytes of all logs between two kills, on average.
WRITTEN: Final = 20_000

# A line before each operation, and one after it. Keys change all the time, so that the
# history of each is short.
PROGRAM: Final = """
import json, os, random, sys, time
import volcache
from volcache.embedded.errors import UnknownResultError

directory, name, seed = sys.argv[1:]
log = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
chance = random.Random(int(seed))
cache = volcache.open(directory, capacity="256MiB", sync_mode="none")

def note(*words):
    os.write(log, json.dumps(words).encode() + b"\\n")

def run(number):
    key = f"{int(time.monotonic() * 20)}/{chance.randrange(3)}"
    kind = chance.choice(["get"] * 5 + ["put", "put", "add", "replace", "cas", "delete"])
    value = f"{seed}-{number}" if kind not in {"get", "delete"} else None
    data = (value or "").encode() + b"." * chance.choice([0, 1000, 5000])
    found = cache.get_item(key) if kind == "cas" else None
    if kind == "cas" and found is None:
        return
    expected = found and found.value.decode().rstrip(".")
    note("b", kind, key, value, expected, time.monotonic())
    try:
        if kind == "get":
            got = cache.get(key)
            value = got if got is None else got.decode().rstrip(".")
            done = True
        elif kind == "put":
            done = bool(cache.set(key, data))
        elif kind == "cas":
            done = cache.cas(key, data, found.stat.etag) is not None
        elif kind == "delete":
            done = cache.delete(key)
        else:
            done = getattr(cache, kind)(key, data) is not None
    except UnknownResultError:
        return
    note("e", done, value, time.monotonic())

for number in range(10**9):
    run(number)
"""


def start(directory: Path, number: int) -> subprocess.Popen[bytes]:
    """Start a process that reads and writes, with a log of its own."""
    log = directory.parent / f"log {number}"
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), str(log), str(SEED + number)],
        env={"PYTHONPATH": str(SOURCE)},
    )


def history_of(folder: Path) -> dict[str, list[Operation]]:
    """Return what the processes have done, by key."""
    found: dict[str, list[Operation]] = defaultdict(list)
    for log in folder.glob("log *"):
        begun: Operation | None = None
        key = ""
        for line in log.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):  # It was killed.
                break
            what, *words = json.loads(line)
            if what == "e":
                assert begun is not None
                done, value, ended = words
                data = value and value.encode()
                found[key].append(begun._replace(ended=ended, is_done=done, value=data))
                begun = None
                continue
            if begun is not None:
                found[key].append(begun)
            kind, key, value, expected, began = words
            begun = Operation(
                kind,
                began,
                value=value and value.encode(),
                expected=expected and expected.encode(),
            )
        if begun is not None:
            found[key].append(begun)
    return found


@pytest.mark.slow
def test_processes_that_are_killed_lose_and_confuse_nothing(tmp_path: Path) -> None:
    """A value that was acknowledged is there, unless it was replaced."""
    chance = random.Random(SEED)  # noqa: S311 - Repeatable.
    directory = tmp_path / "cache"
    running = [start(directory, number) for number in range(PROCESSES)]

    def written() -> int:
        return sum(log.stat().st_size for log in tmp_path.glob("log *"))

    def is_written(goal: int) -> bool:
        return written() > goal

    try:
        for number in range(KILLS):
            goal = written() + chance.randrange(2 * WRITTEN)
            wait_until(partial(is_written, goal), "some operations")
            victim = running.pop(chance.randrange(PROCESSES))
            assert victim.poll() is None, "it has failed"
            victim.kill()
            victim.wait()
            running.append(start(directory, PROCESSES + number))
        assert all(one.poll() is None for one in running)
    finally:
        for one in running:
            one.kill()
            one.wait()
    history = history_of(tmp_path)
    with open_small(directory, capacity="256MiB") as cache:
        for key, operations in history.items():
            value = cache.get(key)
            now = time.monotonic()
            last = value and value.rstrip(b".")
            operations.append(Operation("get", now, now + 1, last))
        assert cache.stats().damaged == 0
    wrong = [key for key, operations in history.items() if not find_order(operations)]
    assert wrong == []
    assert sum(map(len, history.values())) > KILLS * 20
