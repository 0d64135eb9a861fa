"""The server with real memcached processes that are up, down, slow or full."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from support.memcached import MemcachedProcess
from support.process import ServerProcess, Servers
from support.waiting import wait_until

pytestmark = [pytest.mark.sampled(3), pytest.mark.integration, pytest.mark.slow]

TOKEN = "open sesame"  # noqa: S105 - Of a temporary server.
VOLUME_SIZE = 1 << 20
FILL = b"x" * 200_000
VALUE_HEADERS = (
    *("X-Position", "ETag", "Content-Type", "Content-Length", "Content-Encoding"),
    "Last-Modified",
)


class Site:
    """An instance and a client."""

    def __init__(self, server: ServerProcess, session: requests.Session) -> None:
        """Talk over one session."""
        self.server = server
        self.session = session

    def put(self, key: str, value: bytes, **headers: str) -> None:
        """Store a value."""
        answer = self.session.put(
            f"{self.server.url}/{key}", data=value, headers=headers, timeout=5
        )
        assert answer.status_code == 200, answer.text

    def get(self, key: str) -> requests.Response:
        """Read a value."""
        return self.session.get(f"{self.server.url}/{key}", timeout=5)

    def head(self, key: str) -> requests.Response:
        """Read the headers of a value."""
        return self.session.head(f"{self.server.url}/{key}", timeout=5)

    def source(self, key: str) -> str:
        """Read a value and return the tier that answered."""
        return self.get(key).headers["X-Cache"]

    def make_hot(self, key: str) -> None:
        """Read until memcached answers; it may be down at first."""
        wait_until(lambda: self.source(key) == "MEMC", f"{key} to be hot")

    def age(self) -> None:
        """Let the log overwrite everything stored so far."""
        for number in range(13):
            self.put(f"fill/{number}", FILL)


def settings_for(*servers: str, **more: object) -> dict[str, object]:
    """Return the settings of an instance with two small volumes."""
    return {
        "volume_size": VOLUME_SIZE,
        "volume_num": 2,
        "max_value_size": 900_000,
        "memc_on": "true",
        "memc_servers": ",".join(servers),
        # A busy machine must not look like a memcached that is down.
        "memc_timeout": 1,
        "admin_token": TOKEN,
        **more,
    }


@pytest.fixture
def site(servers: Servers, memcached: MemcachedProcess) -> Iterator[Site]:
    """One instance in front of it."""
    with pooled_site(servers, settings_for(memcached.address)) as found:
        yield found


@contextmanager
def pooled_site(servers: Servers, settings: dict[str, object]) -> Iterator[Site]:
    """Lend an instance that other tests have used."""
    with servers.server(settings) as server, requests.Session() as session:
        yield Site(server, session)


def test_third_read_promotes_and_fourth_is_from_memcached(site: Site) -> None:
    """Its headers are those of a disk hit, except X-Cache."""
    site.put("a b", b"value", **{"Content-Type": "x/y", "Content-Encoding": "br"})
    # A HEAD does not count as a read.
    wait_until(lambda: "Last-Modified" in site.head("a b").headers, "a date")
    answers = [site.get("a b") for _ in range(5)]

    assert [answer.headers["X-Cache"] for answer in answers] == [
        *["DISK"] * 3,
        *["MEMC"] * 2,
    ]
    for name in VALUE_HEADERS:
        assert answers[4].headers[name] == answers[0].headers[name]
    assert {answer.content for answer in answers} == {b"value"}


def test_key_that_is_only_in_memcached_is_read_and_deleted(site: Site) -> None:
    """After its volume was reclaimed, and after a restart of the instance."""
    site.put("k", b"value", **{"Content-Type": "x/y"})
    site.make_hot("k")
    site.age()
    for is_restarted in (False, True):
        if is_restarted:
            site.server.restart()
        answer = site.get("k")
        assert (answer.headers["X-Cache"], answer.content) == ("MEMC", b"value")
        assert answer.headers["Content-Type"] == "x/y"
        head = site.head("k")
        assert (head.status_code, head.headers["Content-Length"]) == (200, "5")
    url = f"{site.server.url}/k"
    assert site.session.delete(url, timeout=5).status_code == 200
    assert site.session.delete(url, timeout=5).status_code == 404
    assert site.source("k") == "MISS"


def turn_off_for_a_while(server: ServerProcess) -> None:
    """Serve without the hot tier."""
    for is_on in ("false", "true"):
        server.terminate()
        server.settings["memc_on"] = is_on
        server.start()


@pytest.mark.parametrize("end", [ServerProcess.kill, turn_off_for_a_while])
def test_start_that_does_not_know_all_changes_begins_with_no_copies(
    site: Site, end: Callable[[ServerProcess], None]
) -> None:
    """What was invalidated last is not known; keys become hot again."""
    site.put("k", b"value")
    site.make_hot("k")
    site.age()
    assert not (site.server.mount_point / "HOT.txt").exists()
    end(site.server)
    site.server.restart()
    assert not (site.server.mount_point / "HOT.txt").exists()
    for _ in range(5):
        assert site.source("k") == "MISS"
    site.put("new", b"value")
    assert [site.source("new") for _ in range(4)] == [*["DISK"] * 3, "MEMC"]


@pytest.mark.parametrize("end", ["none", "kill"])
@pytest.mark.parametrize("change", ["put", "delete", "flush"])
def test_old_value_does_not_return_after_put_delete_or_flush(
    site: Site, memcached: MemcachedProcess, change: str, end: str
) -> None:
    """Although memcached, which was unreachable meanwhile, still has it."""
    site.put("k", b"old")
    site.make_hot("k")
    items = memcached.items()
    memcached.send_signal(signal.SIGSTOP)
    if change == "put":
        site.put("k", b"new")
    elif change == "delete":
        assert site.session.delete(f"{site.server.url}/k", timeout=5).ok
    else:
        token = {"Authorization": f"Bearer {TOKEN}"}
        answer = site.session.post(
            f"{site.server.url}/-/flush", headers=token, timeout=5
        )
        assert answer.text == "flushed\n"
    memcached.send_signal(signal.SIGCONT)
    if end == "kill":
        site.server.kill()
        site.server.restart()
    assert memcached.items() == items

    assert site.get("k").content != b"old"
    site.age()
    for _ in range(5):
        assert site.source("k") == "MISS"


def test_memcached_that_restarts_empty_is_used_again(
    site: Site, memcached: MemcachedProcess
) -> None:
    """All gets are answered meanwhile; each change of state is logged once."""
    site.put("k", b"value")
    site.make_hot("k")
    before = [site.server.stderr.count(event) for event in ("hot.down", "hot.up")]
    memcached.kill()
    assert [site.source("k") for _ in range(10)] == ["DISK"] * 10
    memcached.start()
    site.make_hot("k")
    after = [site.server.stderr.count(event) for event in ("hot.down", "hot.up")]
    assert after == [count + 1 for count in before]


def test_memcached_that_hangs_is_bypassed(
    servers: Servers, memcached: MemcachedProcess
) -> None:
    """It accepts and never answers: one request waits, and it is probed later."""
    settings = settings_for(memcached.address, memc_timeout=0.05)
    with pooled_site(servers, settings) as site:
        site.put("k", b"value")
        site.make_hot("k")
        memcached.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{memcached.pid}/stat")
        wait_until(lambda: ") T " in state.read_text(), "the stop of memcached")
        began = time.monotonic()
        assert [site.source("k") for _ in range(100)] == ["DISK"] * 100
        assert time.monotonic() - began < 100 * 0.05
        memcached.send_signal(signal.SIGCONT)
        site.make_hot("k")


def test_unix_socket_is_an_address(servers: Servers, tmp_path: Path) -> None:
    """`memc_ip` has its path."""
    with (
        MemcachedProcess(path=tmp_path / "m.sock") as memcached,
        pooled_site(servers, settings_for(memc_ip=memcached.path)) as site,
    ):
        site.put("k", b"value")
        site.make_hot("k")


def test_instances_that_share_a_memcached_are_independent(
    servers: Servers, memcached: MemcachedProcess
) -> None:
    """The same key of two stores is two items."""
    settings = settings_for(memcached.address)
    with pooled_site(servers, settings) as a, pooled_site(servers, settings) as b:
        a.put("k", b"of a")
        b.put("k", b"of b")
        a.make_hot("k")
        b.make_hot("k")
        assert (a.get("k").content, b.get("k").content) == (b"of a", b"of b")
