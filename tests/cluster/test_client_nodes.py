"""Both clients and three real instances, one of which is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import pytest

from support.client_users import TaskClient
from support.process import ServerProcess, Servers
from support.scripted_server import Peer, ScriptedServer
from support.waiting import wait_until
from volcache_client import Client, NodeConnectionError, NodeDownError, NodeEvent
from volcache_client.ring import HashRing

pytestmark = pytest.mark.integration

FAILURES: Final = 3
# A node that is down stays so for the rest of a test, or is probed again and again.
LONG: Final = (1000.0, 1000.0)
SHORT: Final = (0.02, 0.1)
GENEROUS: Final = 30.0  # A timeout that only a node which hangs exceeds.


class User(NamedTuple):
    """A client of either kind, and the events that it was told."""

    client: Any
    events: list[NodeEvent]


@pytest.fixture(params=[Client, TaskClient])
def user(request: pytest.FixtureRequest) -> Iterator[Callable[..., User]]:
    """Return a function that opens a client; all are closed at the end."""
    with ExitStack() as stack:

        def open_one(nodes: Any, **options: Any) -> User:
            events: list[NodeEvent] = []
            client = request.param(nodes, on_event=events.append, **options)
            return User(stack.enter_context(client), events)

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
        """The one that is killed."""
        return self.servers[self.failing]

    def store(self, user: User, prefix: str) -> tuple[list[str], list[str]]:
        """Store values; return the keys of the failing instance, and the others."""
        ring = HashRing(self.nodes)
        self.values = {f"{prefix}/{n}": b"%d" % n for n in range(90)}
        for key, value in self.values.items():
            assert user.client.set(key, value)
        lost = [key for key in self.values if ring.node(key) == self.failing]
        kept = [key for key in self.values if ring.node(key) != self.failing]
        assert len(lost) > 3 * FAILURES
        return lost, kept

    def are_found(self, user: User, keys: list[str]) -> bool:
        """Whether all values are read as they were stored."""
        return all(user.client.get(key) == self.values[key] for key in keys)

    def requests(self, user: User) -> int:
        """Return how many requests were sent to the failing instance."""
        sent: int = user.client.stats().nodes[self.failing].requests
        return sent


@pytest.fixture
def instances(servers: Servers) -> Iterator[Instances]:
    """Lend three empty instances."""
    with ExitStack() as stack:
        lent = [stack.enter_context(servers.server()) for _ in range(3)]
        yield Instances(lent)


def fail_until_down(user: User, keys: list[str], error: type[Exception]) -> None:
    """Read keys of a node that fails: each is an error until it is down."""
    for key in keys[:FAILURES]:
        assert user.events == []
        with pytest.raises(error):
            user.client.get(key)
    (event,) = user.events
    assert event.kind == "down"
    assert event.reason


def test_keys_of_a_killed_instance_are_misses_and_the_others_are_served(
    instances: Instances, user: Callable[..., User]
) -> None:
    """No request is sent to it; a write is an error. Its values are there afterwards."""
    options = {"timeout": GENEROUS, "connect_timeout": GENEROUS}
    strict = user(instances.nodes, backoff=LONG, **options)
    lenient = user(instances.nodes, backoff=SHORT, on_error="miss", **options)
    lost, kept = instances.store(strict, f"kill/{id(strict)}")
    instances.server.kill()
    fail_until_down(strict, lost, NodeConnectionError)
    sent = instances.requests(strict)
    for key in lost:
        assert strict.client.get(key) is None
        assert strict.client.stat(key) is None
        for method, arguments in (("set", [key, b"new"]), ("delete", [key])):
            with pytest.raises(NodeDownError, match=f"{instances.failing}: down"):
                getattr(strict.client, method)(*arguments)
    assert instances.requests(strict) == sent
    assert instances.are_found(strict, kept)
    assert strict.client.set(kept[0], instances.values[kept[0]])
    assert [event[:2] for event in strict.events] == [("down", instances.failing)]
    numbers = strict.client.stats().nodes
    assert {name for name, node in numbers.items() if not node.is_up} == {
        instances.failing
    }
    assert numbers[instances.failing].failures == FAILURES

    for key in lost:
        assert lenient.client.get(key) is None
        assert lenient.client.set(key, b"dropped") is None
        assert lenient.client.get_or_set(key, lambda: b"made") == b"made"
    assert instances.are_found(lenient, kept)
    instances.server.restart()
    wait_until(lambda: instances.are_found(lenient, lost[:1]), "the node to be up")
    assert instances.are_found(lenient, lost + kept)
    changes = [event[:2] for event in lenient.events]
    assert changes == [("down", instances.failing), ("up", instances.failing)]
    assert lenient.client.stats().nodes[instances.failing].is_up


def test_instance_that_is_not_ready_stays_down(user: Callable[..., User]) -> None:
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
            lambda: waiting.client.get("key") or paths.count("/-/ready") > 5, "probes"
        )
        assert set(paths) == {"/a", "/b", "/c", "/-/ready"}
        assert len(waiting.events) == 1
        numbers = waiting.client.stats().nodes[server.name]
        assert numbers.failures == FAILURES + paths.count("/-/ready")
        is_ready.set()
        wait_until(
            lambda: waiting.client.get("key") or len(waiting.events) > 1, "it is up"
        )
        assert [event.kind for event in waiting.events] == ["down", "up"]
        assert paths[-2:] == ["/-/ready", "/key"]
