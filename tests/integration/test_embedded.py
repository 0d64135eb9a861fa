"""A directory that is used by the server and from Python, also at once."""

from __future__ import annotations

import multiprocessing
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import requests

import volcache
from support.embedded import check_history, make_history, open_small
from support.extent import EXTENT, SEED, Count
from support.process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_server_and_python_read_what_the_other_has_stored(tmp_path: Path) -> None:
    """While the other is stopped, or both at once."""
    settings = {"volume_size": 2 << 20, "volume_num": 16}
    with ServerProcess(tmp_path, settings=settings) as server:
        for key, body in (("a/b c.txt", b"1"), ("%C3%A9", b"2"), ("gone", b"3")):
            assert requests.put(f"{server.url}/{key}", body, timeout=30).ok
        with open_small(tmp_path) as guest:
            assert guest["a/b c.txt"] == b"1"
            guest.set("guest", b"4", ttl=1000)
            found = guest.stat("é")
            assert found is not None
            assert guest.cas("é", b"5", found.etag)
        assert requests.get(f"{server.url}/guest", timeout=30).content == b"4"
        assert requests.delete(f"{server.url}/guest", timeout=30).ok
        assert requests.put(f"{server.url}/%C3%A9", b"2", timeout=30).ok
        assert server.terminate() == 0
        with volcache.open(tmp_path, capacity="32MiB", serializer="json") as cache:
            assert cache.volume_size == 2 << 20
            assert cache["a/b c.txt"] == 1
            assert cache["é"] == 2
            assert set(cache.keys()) == {b"a/b c.txt", "é".encode(), b"gone"}
            cache.set("list", [1, 2], ttl=1000)
            del cache["gone"]
        server.restart()
        answer = requests.get(f"{server.url}/list", timeout=30)
        assert answer.content == b"[1,2]"
        assert answer.headers["Content-Type"] == "application/json"
        assert "max-age" in answer.headers["Cache-Control"]
        assert requests.get(f"{server.url}/gone", timeout=30).status_code == 404
        assert requests.get(f"{server.url}/a/b%20c.txt", timeout=30).content == b"1"


@pytest.mark.slow
def test_changes_of_killed_processes_are_not_lost(
    tmp_path: Path, record_property: Count
) -> None:
    """Every other time it is the owner: no value is lost, outdated or not whole."""
    processes, kills, chance = 8, 10 * EXTENT or 600, random.Random(SEED)  # noqa: S311
    marks = tmp_path / "marks"
    marks.write_bytes(bytes(processes * 8 * 16))
    context = multiprocessing.get_context("spawn")

    def count() -> int:
        return sum(memoryview(marks.read_bytes()).cast("Q")[::2])

    def wait_for(changes: int) -> None:
        end = count() + changes
        wait_until(lambda: count() >= end, f"{changes} changes")

    def begin(number: int) -> Any:
        arguments = (tmp_path / "cache", marks, 8 * number, 8 * processes)
        process = context.Process(target=make_history, args=arguments, daemon=True)
        process.start()
        return process

    open_small(tmp_path / "cache", capacity="64MiB").close()
    users = [begin(number) for number in range(processes)]
    for kill in range(kills):
        wait_for(chance.choice((0, 10, 100, 1000, 3000)))
        owner = (tmp_path / "cache" / "LOCK").read_text().split("\n")[0]
        owners = [n for n, user in enumerate(users) if str(user.pid) == owner.strip()]
        number = owners[0] if owners and kill % 2 else chance.randrange(processes)
        users[number].kill()
        users[number].join()
        assert users[number].exitcode == -signal.SIGKILL
        users[number] = begin(number)
    for user in users:
        user.kill()
        user.join()
        assert user.exitcode == -signal.SIGKILL
    found = memoryview(marks.read_bytes()).cast("Q")
    with open_small(tmp_path / "cache", capacity="64MiB") as cache:
        for number in range(8 * processes):
            check_history(cache, found, number)
    record_property("changes by processes that are killed", count())
