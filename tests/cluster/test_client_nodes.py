"""Both clients and three real instances, one of which is killed or hangs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from support.client_users import TaskUser, ThreadUser
from support.process import ServerProcess, Servers
from support.scripted_server import Peer, ScriptedServer
from support.waiting import wait_until
from volcache_client import NodeConnectionError, NodeDownError, NodeTimeoutError
from volcache_client.ring import HashRing

pytestmark = pytest.mark.integration

FAILURES: Final = 3
# A node that is down stays so for the rest of a test, or is probed again and again.
LONG: Final = (1000.0, 1000.0)
SHORT: Final = (0.02, 0.1)
GENEROUS: Final = 30.0  # A timeout that only a node which hangs exceeds.


@pytest.fixture(params=[ThreadUser, TaskUser])
def user(request: pytest.FixtureRequest) -> Iterator[Callable[..., ThreadUser]]:
    """Return a function that opens a client; all are closed at the end."""
    with ExitStack() as stack:

        def open_one(nodes: Any, **options: Any) -> ThreadUser:
            opened: ThreadUser = request.param(nodes, **options)
            stack.callback(opened.close)
            return opened

        yield open_one


class Instances:
    """Three instances, and keys whose values are stored in them."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self.servers = {f"127.0.0.1:{server.port}": server for server in servers}
        self.nodes = [(name, 10) for name in self.servers]
        self.failing = next(iter(self.servers))
        self.values: dict[str, bytes] = {}

    @property
    def server(self) -> ServerProcess:
        """The one that is killed or hangs."""
        return self.servers[self.failing]

    def store(self, user: ThreadUser, prefix: str) -> tuple[list[str], list[str]]:
        """Store values; return the keys of the failing instance, and the others."""
        ring = HashRing(self.nodes)
        self.values = {f"{prefix}/{n}": b"%d" % n for n in range(90)}
        for key, value in self.values.items():
            assert user.call("put", key, value)
        lost = [key for key in self.values if ring.node(key) == self.failing]
        kept = [key for key in self.values if ring.node(key) != self.failing]
        assert len(lost) > 3 * FAILURES
        return lost, kept

    def are_found(self, user: ThreadUser, keys: list[str]) -> bool:
        """Whether all values are read as they were stored."""
        return all(user.call("get", key) == self.values[key] for key in keys)

    def requests(self, user: ThreadUser) -> int:
        """Return how many requests were sent to the failing instance."""
        sent: int = user.metrics().nodes[self.failing].requests
        return sent


@pytest.fixture
def instances(servers: Servers) -> Iterator[Instances]:
    """Lend three empty instances."""
    with ExitStack() as stack:
        lent = [stack.enter_context(servers.server()) for _ in range(3)]
        yield Instances(lent)


def fail_until_down(user: ThreadUser, keys: list[str], error: type[Exception]) -> None:
    """Read keys of a node that fails: each is an error until it is down."""
    for key in keys[:FAILURES]:
        assert user.events == []
        with pytest.raises(error):
            user.call("get", key)
    (event,) = user.events
    assert event.kind == "down"
    assert event.reason


def test_keys_of_a_killed_instance_are_misses_and_the_others_are_served(
    instances: Instances, user: Callable[..., ThreadUser]
) -> None:
    """No request is sent to it; a write is an error. Its values are there afterwards."""
    options = {"timeout": GENEROUS, "connect_timeout": GENEROUS}
    strict = user(instances.nodes, backoff=LONG, **options)
    lenient = user(instances.nodes, backoff=SHORT, on_error="miss", **options)
    lost, kept = instances.store(strict, f"kill/{user.__name__}/{id(strict)}")
    instances.server.kill()
    fail_until_down(strict, lost, NodeConnectionError)
    sent = instances.requests(strict)
    for key in lost:
        assert strict.call("get", key) is None
        assert strict.call("head", key) is None
        for method, arguments in (("put", [key, b"new"]), ("delete", [key])):
            with pytest.raises(NodeDownError, match=f"{instances.failing}: down"):
                strict.call(method, *arguments)
    assert instances.requests(strict) == sent
    assert instances.are_found(strict, kept)
    assert strict.call("put", kept[0], instances.values[kept[0]])
    assert [event[:2] for event in strict.events] == [("down", instances.failing)]
    numbers = strict.metrics().nodes
    assert {name for name, node in numbers.items() if not node.is_up} == {
        instances.failing
    }
    assert numbers[instances.failing].failures == FAILURES

    for key in lost:
        assert lenient.call("get", key) is None
        assert lenient.call("put", key, b"dropped") is None
        assert lenient.call("get_or_set", key, lambda: b"made") == b"made"
    assert instances.are_found(lenient, kept)
    instances.server.restart()
    wait_until(lambda: instances.are_found(lenient, lost[:1]), "the node to be up")
    assert instances.are_found(lenient, lost + kept)
    changes = [event[:2] for event in lenient.events]
    assert changes == [("down", instances.failing), ("up", instances.failing)]
    assert lenient.metrics().nodes[instances.failing].is_up


def test_instance_that_hangs_is_down_after_its_timeouts(
    instances: Instances, user: Callable[..., ThreadUser]
) -> None:
    """No further request waits for it; it is up again when it answers a probe."""
    patient = user(instances.nodes, timeout=GENEROUS, connect_timeout=GENEROUS)
    lost, kept = instances.store(patient, f"stop/{id(patient)}")
    hasty = user(instances.nodes, backoff=LONG, timeout=0.5, connect_timeout=0.5)
    returning = user(
        instances.nodes, backoff=SHORT, timeout=0.5, probe_timeout=0.2, on_error="miss"
    )
    instances.server.send_signal(signal.SIGSTOP)
    try:
        fail_until_down(hasty, lost, NodeTimeoutError)
        sent = instances.requests(hasty)
        assert [hasty.call("get", key) for key in lost] == [None] * len(lost)
        assert instances.requests(hasty) == sent
        assert returning.call("get_many", lost) == {}
        assert [event.kind for event in returning.events] == ["down"]
    finally:
        instances.server.send_signal(signal.SIGCONT)
    wait_until(lambda: instances.are_found(returning, lost), "the node to be up")
    assert returning.events[1][:2] == ("up", instances.failing)
    assert instances.are_found(patient, lost + kept)


def test_instance_that_is_not_ready_stays_down(user: Callable[..., ThreadUser]) -> None:
    """It gets nothing but probes, of which each fails."""
    paths: list[str] = []
    is_ready = threading.Event()

    def serve(peer: Peer) -> None:
        while request := peer.request():
            paths.append(request.split()[1].decode())
            if paths[-1] != "/-/ready" and not is_ready.is_set():
                return  # Without an answer.
            status = (503, 200)[is_ready.is_set()] if paths[-1] == "/-/ready" else 404
            peer.send(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)

    with ScriptedServer(serve) as server:
        options = dict.fromkeys(
            ("timeout", "connect_timeout", "probe_timeout"), GENEROUS
        )
        waiting = user([server.name], backoff=SHORT, **options)
        fail_until_down(waiting, ["a", "b", "c"], NodeConnectionError)
        wait_until(
            lambda: waiting.call("get", "key") or paths.count("/-/ready") > 5, "probes"
        )
        assert set(paths) == {"/a", "/b", "/c", "/-/ready"}
        assert len(waiting.events) == 1
        numbers = waiting.metrics().nodes[server.name]
        assert numbers.failures == FAILURES + paths.count("/-/ready")
        is_ready.set()
        wait_until(
            lambda: waiting.call("get", "key") or len(waiting.events) > 1, "it is up"
        )
        assert [event.kind for event in waiting.events] == ["down", "up"]
        assert paths[-2:] == ["/-/ready", "/key"]
