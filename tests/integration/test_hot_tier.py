"""The server with real memcached processes that are up, down, slow or full."""

from __future__ import annotations

import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.embedded import open_small
from support.memcache import RawClient
from support.memcached import FakeMemcached, MemcachedProcess
from support.process import ADMIN, ServerProcess, Servers
from support.tiers import Scripted
from support.waiting import wait_until
from support.wire import BY_APP, Reply, Talk, exchange, request_bytes

pytestmark = [pytest.mark.sampled(3), pytest.mark.integration, pytest.mark.slow]

VOLUME_SIZE = 1 << 20
FILL = b"x" * 200_000
VALUE_HEADERS = (
    *("X-Position", "ETag", "Content-Type", "Content-Length", "Content-Encoding"),
    "Last-Modified",
)


class Site:
    """An instance and a client."""

    def __init__(self, server: ServerProcess) -> None:
        """Connect for each request."""
        self.server = server

    def ask(
        self, method: str, key: str, body: bytes | None = None, headers: str = ""
    ) -> Reply:
        """Send a request."""
        return self.server.ask(method, f"/{key}", body, headers)

    def put(self, key: str, value: bytes, headers: str = "") -> None:
        """Store a value."""
        answer = self.ask("PUT", key, value, headers)
        assert answer.status == 200, answer.text

    def get(self, key: str) -> Reply:
        """Read a value."""
        return self.ask("GET", key)

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
        "threads": 2,
        "memc_on": "true",
        "memc_servers": ",".join(servers),
        # A busy machine must not look like a memcached that is down.
        "memc_timeout": 1,
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
    with servers.server(settings) as server:
        yield Site(server)


def test_key_that_is_only_in_memcached_is_read_and_deleted(site: Site) -> None:
    """After its volume was reclaimed, and after a restart of the instance."""
    site.put("k", b"value", "Content-Type: x/y")
    site.make_hot("k")
    site.age()
    for is_restarted in (False, True):
        if is_restarted:
            site.server.restart()
        answer = site.get("k")
        assert (answer.headers["X-Cache"], answer.body) == ("MEMC", b"value")
        assert answer.headers["Content-Type"] == "x/y"
        head = site.ask("HEAD", "k")
        assert (head.status, head.headers["Content-Length"]) == (200, "5")
    assert site.ask("DELETE", "k").status == 200
    assert site.ask("DELETE", "k").status == 404
    assert site.source("k") == "MISS"


@pytest.mark.parametrize("end", ["none", "kill"])
@pytest.mark.parametrize(
    "change", ["put", "delete", "flush", "__setitem__", "__delitem__", "clear"]
)
def test_old_value_does_not_return_after_put_delete_or_flush(
    site: Site, memcached: MemcachedProcess, change: str, end: str
) -> None:
    """
    Although memcached, which was unreachable meanwhile, still has it.

    The change comes from a client, or from a process that has the directory open.
    """
    site.put("k", b"old")
    site.make_hot("k")
    items = memcached.items()
    memcached.suspend()
    if "_" in change or change == "clear":
        arguments = {"__setitem__": ("k", b"new"), "__delitem__": ("k",)}
        with open_small(site.server.mount_point) as guest:
            getattr(guest, change)(*arguments.get(change, ()))
    elif change == "put":
        site.put("k", b"new")
    elif change == "delete":
        assert site.ask("DELETE", "k").status == 200
    else:
        assert site.ask("POST", "-/flush", b"", ADMIN).text == "flushed\n"
    memcached.send_signal(signal.SIGCONT)
    if end == "kill":
        site.server.kill()
        site.server.restart()
    assert memcached.items() == items

    assert site.get("k").body != b"old"
    site.age()
    for _ in range(5):
        assert site.get("k").body != b"old"


def test_memcached_that_hangs_is_bypassed(
    servers: Servers, memcached: MemcachedProcess
) -> None:
    """Requests that wait for it read the disk after the timeout, later ones at once."""
    settings = settings_for(memcached.address, memc_timeout=0.5, log_slow=0.45)
    with pooled_site(servers, settings) as site, ExitStack() as closing:
        site.put("k", b"value")
        site.make_hot("k")
        clients = [closing.enter_context(Talk(site.server.port)) for _ in range(20)]
        before = [site.server.stderr.count(event) for event in ("hot.down", "hot.up")]
        memcached.suspend()
        for client in clients:
            client.send(request_bytes("GET", "/k"))
        answers = [client.read() for client in clients]
        assert {(a.headers["X-Cache"], a.body) for a in answers} == {("DISK", b"value")}
        began = time.monotonic()
        assert [site.source("k") for _ in range(100)] == ["DISK"] * 100
        assert time.monotonic() - began < 100 * 0.5
        slow = re.compile(r"request.slow .* memcached=0\.[45]\d+")
        wait_until(lambda: slow.search(site.server.stderr), "a line in the log")
        memcached.send_signal(signal.SIGCONT)
        site.make_hot("k")
        after = [site.server.stderr.count(event) for event in ("hot.down", "hot.up")]
        assert after == [count + 1 for count in before]


def test_unix_socket_is_an_address(servers: Servers, tmp_path: Path) -> None:
    """`memc_ip` has its path."""
    with (
        MemcachedProcess(path=tmp_path / "m.sock") as memcached,
        pooled_site(servers, settings_for(memc_ip=memcached.path)) as site,
    ):
        site.put("k", b"value")
        site.make_hot("k")


def test_hot_file_in_memory_may_be_read_from_there(
    servers: Servers, memcached: MemcachedProcess
) -> None:
    """`memc_first = false`: memcached is asked for what the log has overwritten."""
    settings = settings_for(memcached.address, memc_first="false")
    with pooled_site(servers, settings) as site:
        for key in ("k", "replaced"):
            site.put(key, b"value")
            for _ in range(3):
                assert site.source(key) == "DISK"
        wait_until(lambda: memcached.items() == 2, "the copies to be stored")
        calls = memcached.calls()
        for _ in range(7):
            assert site.source("k") == "DISK"
        part = site.ask("GET", "k", None, "Range: bytes=0-0")
        assert part.headers["X-Cache"] == "DISK"
        assert memcached.calls() == calls
        site.put("replaced", b"new")
        site.age()
        answers = [site.get("k") for _ in range(3)]
        assert [(a.headers["X-Cache"], a.body) for a in answers] == [
            ("MEMC", b"value")
        ] * 3
        assert site.source("replaced") == "MISS"


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
        assert (a.get("k").body, b.get("k").body) == (b"of a", b"of b")


def test_only_requests_for_hot_keys_wait_for_a_memcached_that_hangs(
    servers: Servers, memcached: MemcachedProcess
) -> None:
    """All others are answered meanwhile, and what they change is seen afterwards."""
    settings = settings_for(memcached.address, memc_timeout=10)
    with pooled_site(servers, settings) as site, Talk(site.server.port) as waiting:
        for number in range(50):
            site.put(f"other/{number}", b"other")
        for key in ("k", "replaced"):
            site.put(key, b"value")
            site.make_hot(key)
        memcached.suspend()
        for headers in ("", "Range: bytes=0-0\n"):
            waiting.send(request_bytes("GET", "/replaced", headers=headers))
        for number in range(50):
            assert site.source(f"other/{number}") == "DISK"
            assert site.ask("HEAD", f"other/{number}").status == 200
        for method in ("PUT", "DELETE"):
            for number in range(50):
                assert site.ask(method, f"other/{number}", b"x").status == 200
        site.put("replaced", b"new")
        assert not select.select([waiting.socket], [], [], 0)[0]
        memcached.send_signal(signal.SIGCONT)
        answers = [waiting.read() for _ in range(2)]
        assert [(a.headers["X-Cache"], a.body) for a in answers] == [
            ("DISK", b"new"),
            ("DISK", b"n"),
        ]
        assert site.source("k") == "MEMC"


def test_stop_does_not_wait_for_memcached(
    servers: Servers, memcached: MemcachedProcess
) -> None:
    """A request that waits is answered from the disk before connections are closed."""
    settings = settings_for(memcached.address, memc_timeout=10)
    with pooled_site(servers, settings) as site, Talk(site.server.port) as waiting:
        site.put("k", b"value")
        site.make_hot("k")
        memcached.suspend()
        waiting.send(request_bytes("GET", "/k"))
        assert site.source("other") == "MISS"
        site.server.terminate()
        memcached.send_signal(signal.SIGCONT)
        answer = waiting.read()
        assert (answer.headers["X-Cache"], answer.body) == ("DISK", b"value")
        site.server.start()


ANY_FIELDS = [
    "",
    "Content-Type: text/html; charset=utf-8\nContent-Encoding: br",
    "Cache-Control: max-age=1000, public, immutable",
    "Cache-Control: no-transform\nContent-Type: x/" + "y" * 200,
]


@pytest.mark.parametrize("key", ["page.html", "a%20b/%C3%A9"])
@pytest.mark.parametrize("fields", ANY_FIELDS, ids=range(len(ANY_FIELDS)))
def test_answer_of_c_is_that_of_the_application(
    site: Site, key: str, fields: str
) -> None:
    """From memcached; from the disk it is the same."""
    site.put(key, b"" if "Cache-Control" in fields else b"value", fields)
    # A HEAD does not count as a read.
    wait_until(lambda: "Last-Modified" in site.ask("HEAD", key).headers, "a date")
    cold = site.get(key)
    assert cold.headers["X-Cache"] == "DISK"
    site.make_hot(key)

    def are_equal() -> bool:
        port = site.server.port
        answers = [exchange(port, "GET", f"/{key}", None, way) for way in ("", BY_APP)]
        assert [answer.headers["X-Cache"] for answer in answers] == ["MEMC"] * 2
        assert answers[0].body == answers[1].body == cold.body
        for name in VALUE_HEADERS:
            assert answers[0].headers.get(name) == cold.headers.get(name)
        return dict(answers[0].headers) == dict(answers[1].headers)

    wait_until(are_equal, "both to be answered in the same second")


def test_requests_sent_ahead_are_answered_in_order(site: Site) -> None:
    """From memcached and from the disk, of any size."""
    values = {"small": b"value", "large": bytes(range(256)) * 3000}
    for key, value in values.items():
        site.put(key, value)
        site.make_hot(key)
    site.put("other", b"other")
    keys = ["small", "large", "other", "small", "none", "large", "large", "small"]
    with Talk(site.server.port) as client:
        client.send(b"".join(request_bytes("GET", f"/{key}") for key in keys))
        for key in keys:
            answer = client.read()
            if key == "none":
                assert answer.status == 404
                continue
            assert answer.body == values.get(key, b"other")
            source = "DISK" if key == "other" else "MEMC"
            assert answer.headers["X-Cache"] == source


def test_request_for_a_key_that_only_memcached_has_is_answered(site: Site) -> None:
    """Parts, headers and conditions; those that find it, and those that do not."""
    site.put("k", b"value")
    site.make_hot("k")
    tag = site.get("k").headers["ETag"]
    site.age()
    for headers, status in (
        ("Range: bytes=1-2", 206),
        (f"If-None-Match: {tag}", 304),
        ('If-Match: "other"', 412),
        ("Cookie: a=b", 200),
    ):
        for method in ("GET", "HEAD"):
            answer = site.ask(method, "k", None, headers)
            assert answer.status == (
                200 if method == "HEAD" and status == 206 else status
            )
    assert site.ask("PUT", "k", b"x", "If-None-Match: *").status == 412
    assert site.ask("PUT", "k", b"x", f"If-Match: {tag}").status == 200
    assert site.get("k").body == b"x"


# --- A memcached that is wrong ---------------------------------------------------------


class Wrong(Scripted):
    """A memcached whose answers to `get` are changed, or end in the middle."""

    change: Callable[[bytes], bytes] | None = None
    is_cut = False

    def __call__(self, data: bytes, connection: socket.socket) -> None:
        """Answer one command."""
        change = self.change
        if change is None or not data.startswith(b"get "):
            super().__call__(data, connection)
            return
        item = self.items[data.split()[1]]
        reply = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (data.split()[1], len(item), item)
        connection.sendall(change(reply))
        if self.is_cut:
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def wrong_site(servers: Servers) -> Iterator[tuple[Site, Wrong]]:
    """An instance in front of it."""
    script = Wrong()
    with (
        FakeMemcached(script) as server,
        pooled_site(servers, settings_for(server.address)) as site,
    ):
        yield site, script


def flipped(data: bytes, at: int) -> bytes:
    """Return bytes with one bit that is wrong."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        *(lambda reply, at=at: flipped(reply, at) for at in (60, 70, 100, -10)),
        lambda reply: reply[:80],
        lambda _: b"SERVER_ERROR out of memory\r\n",
    ],
)
def test_answer_of_memcached_that_is_wrong_is_not_used(
    servers: Servers, change: Callable[[bytes], bytes]
) -> None:
    """Nor one that ends in the middle: the disk answers. hot_fuzz has all forms."""
    with wrong_site(servers) as (site, script):
        site.put("k", b"value")
        site.make_hot("k")
        script.change, script.is_cut = change, True
        answer = site.get("k")
        assert (answer.headers["X-Cache"], answer.body) == ("DISK", b"value")
        script.change, script.is_cut = None, False
        site.make_hot("k")
        assert site.get("k").body == b"value"


def test_item_of_an_earlier_version_is_not_used(servers: Servers) -> None:
    """Although it has the name of the present one."""
    with wrong_site(servers) as (site, script):
        items = []
        for value in (b"old", b"new"):
            site.put("k", value)
            site.make_hot("k")
            items.append(list(script.items.values())[-1])
        old, new = items
        assert old[:16] != new[:16]
        script.change = lambda reply: reply.replace(new, new[:16] + old[16:])
        answer = site.get("k")
        assert (answer.headers["X-Cache"], answer.body) == ("DISK", b"new")


def test_key_that_is_read_by_the_memcached_protocol_is_promoted(
    servers: Servers, memcached: MemcachedProcess, tmp_path: Path
) -> None:
    """
    As one that is read over HTTP, and no command for a key on the disk waits for memcached.

    What the log has overwritten is read from there.
    """
    listen = tmp_path / "m.sock"
    settings = settings_for(memcached.address, memcache_listen=listen)
    with pooled_site(servers, settings) as site, RawClient(str(listen)) as client:
        for key in ("a", "b", "c"):
            site.put(key, b"value")
        for _ in range(3):
            assert client.get("a") == b"value"
        wait_until(lambda: memcached.items() == 1, "the copy to be stored")
        assert site.source("a") == "MEMC"
        memcached.suspend()
        for _ in range(5):
            assert client.get("b") == b"value"
        assert site.source("c") == "DISK"
        memcached.send_signal(signal.SIGCONT)
        site.make_hot("a")
        site.age()
        assert client.get("a") == b"value"
        assert client.get("c") is None
