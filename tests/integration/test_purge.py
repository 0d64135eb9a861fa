"""Purges of a running instance: over HTTP, by the command, and with memcached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

from support.command_line import run_volcache
from support.memcached import MemcachedProcess
from support.process import ADMIN, ADMIN_TOKEN, ServerProcess, Servers
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SETTINGS: Final = {
    "volume_size": 1 << 20,
    "volume_num": 2,
    "max_value_size": 900_000,
    "sync_mode": "none",
}


@pytest.fixture
def server(servers: Servers) -> Iterator[ServerProcess]:
    """One instance."""
    with servers.server(SETTINGS) as server:
        yield server


def ask(server: ServerProcess, method: str, path: str, body: bytes = b"") -> int:
    """Return the status of an answer."""
    return server.ask(method, path, body).status


def test_copies_in_memcached_are_purged(
    servers: Servers, memcached: MemcachedProcess
) -> None:
    """Also when the entry was dropped, and after a stop."""
    tier = {"memc_on": "true", "memc_servers": memcached.address, "memc_timeout": 1}
    with servers.server(SETTINGS | tier) as server:
        assert ask(server, "PUT", "/a/1", b"old") == 200
        wait_until(
            lambda: server.ask("GET", "/a/1").headers["X-Cache"] == "MEMC",
            "a/1 to be hot",
        )
        assert server.ask("POST", "/-/purge?prefix=a/", b"", ADMIN).status == 200
        assert ask(server, "GET", "/a/1") == 404
        assert ask(server, "DELETE", "/a/1") == 404
        for number in range(13):
            assert ask(server, "PUT", f"/{number}", bytes(200_000)) == 200
        assert server.stats()["store"]["purge_entries"] == 0
        assert ask(server, "GET", "/a/1") == 404
        server.restart()
        assert ask(server, "GET", "/a/1") == 404


def run(*arguments: str, token: str = ADMIN_TOKEN) -> tuple[int, str]:
    """Run the command; return its exit code and output."""
    done = run_volcache("purge", *arguments, admin_token=token)
    assert done.stderr == b""
    return done.returncode, done.stdout.decode()


def test_purge_command_asks_every_instance(
    server: ServerProcess, servers: Servers
) -> None:
    """Failures and the sum are printed; the exit code says whether all have done it."""
    key = "/a%20+%C3%BC%2525"
    with servers.server(SETTINGS) as other:
        for one in (server, other):
            assert ask(one, "PUT", key, b"") == 200
        names = [one.url.removeprefix("http://") for one in (server, other)]
        code, out = run("a +ü%", *names)
        *lines, last = out.splitlines()
        assert (code, last) == (0, "purged a +ü% on 2 of 2 instances")
        assert [line.split(": ")[0] for line in lines] == names
        shown = run("a", *names, "--dry-run")[1].splitlines()
        assert shown[0].startswith(f"{names[0]}: would purge a")
        assert shown[2:] == ["would purge a on 2 of 2 instances"]
        for one in (server, other):
            assert ask(one, "GET", key) == 404
        other.kill()
    code, out = run("b", names[1], names[0])
    assert code == 1
    assert out.splitlines()[1:] == [
        f"failed: {names[1]}: Connection refused",
        "purged b on 1 of 2 instances; run it again for the others",
    ]
    found = json.loads(run("b", names[1], server.url, "--json")[1])
    assert [row["done"] for row in found["instances"]] == [False, True]
    assert found["instances"][0] == {
        "url": other.url,
        "done": False,
        "answer": "Connection refused",
    }
    assert "401 the token is wrong: purge needs" in run("b", server.url, token="x")[1]  # noqa: S106
