"""Both clients and three real instances, one of which is killed or hangs."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from support.background import in_background
from support.cluster import SETTINGS
from support.nginx import instances_text
from support.process import ServerProcess
from support.waiting import wait_until
from volcache_client import (
    AsyncClient,
    Client,
    NodeConnectionError,
    NodeDownError,
    NodeEvent,
    NodeTimeoutError,
)
from volcache_client.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from volcache_client.metrics import Metrics

pytestmark = pytest.mark.integration

FAILURES: Final = 3
# A node that is down stays so for the rest of a test, or is probed again and again.
LONG: Final = (1000.0, 1000.0)
SHORT: Final = (0.02, 0.1)
GENEROUS: Final = 30.0  # A timeout that only a node which hangs exceeds.


class User(Protocol):
    """A client, whichever it is, with its events."""

    events: list[NodeEvent]

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of an operation."""

    def metrics(self) -> Metrics:
        """Return the numbers."""

    def close(self) -> None:
        """Close all connections."""


class ThreadUser:
    """A `Client`."""

    def __init__(self, nodes: Any, **options: Any) -> None:
        self.events: list[NodeEvent] = []
        self._client = Client(nodes, on_event=self.events.append, **options)
        self.metrics = self._client.metrics
        self.close = self._client.close

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of an operation."""
        return getattr(self._client, method)(*arguments)


class TaskUser:
    """An `AsyncClient`, and its event loop."""

    def __init__(self, nodes: Any, **options: Any) -> None:
        self.events: list[NodeEvent] = []
        self._runner = asyncio.Runner()
        self._client = AsyncClient(nodes, on_event=self.events.append, **options)
        self.metrics = self._client.metrics

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of an operation."""

        async def run() -> Any:
            return await getattr(self._client, method)(*arguments)

        return self._runner.run(run())

    def close(self) -> None:
        """Close all connections and the loop."""
        self.call("close")
        self._runner.close()


@pytest.fixture(params=[ThreadUser, TaskUser])
def user(request: pytest.FixtureRequest) -> Iterator[Callable[..., User]]:
    """Return a function that opens a client; all are closed at the end."""
    with ExitStack() as stack:

        def open_one(nodes: Any, **options: Any) -> User:
            opened: User = request.param(nodes, **options)
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

    def store(self, user: User, prefix: str) -> tuple[list[str], list[str]]:
        """Store values; return the keys of the failing instance, and the others."""
        ring = Ring(self.nodes)
        self.values = {f"{prefix}/{n}": b"%d" % n for n in range(90)}
        for key, value in self.values.items():
            assert user.call("put", key, value)
        lost = [key for key in self.values if ring.node(key) == self.failing]
        kept = [key for key in self.values if ring.node(key) != self.failing]
        assert len(lost) > 3 * FAILURES
        return lost, kept

    def are_found(self, user: User, keys: list[str]) -> bool:
        """Whether all values are read as they were stored."""
        return all(user.call("get", key) == self.values[key] for key in keys)

    def requests(self, user: User) -> int:
        """Return how many requests were sent to the failing instance."""
        return user.metrics().nodes[self.failing].requests


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instances]:
    """Run three instances."""
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        servers = [
            ServerProcess(folder / f"disk{n}", settings=SETTINGS) for n in range(3)
        ]
        for server in servers:
            server.launch()
            stack.push(server.__exit__)
        for server in servers:
            server.wait_answering()
        yield Instances(servers)


@pytest.fixture
def instances(running: Instances) -> Iterator[Instances]:
    """Start the failing one again after the test."""
    yield running
    running.server.send_signal(signal.SIGCONT)
    if not running.server.is_running:
        running.server.start()


def fail_until_down(user: User, keys: list[str], error: type[Exception]) -> None:
    """Read keys of a node that fails: each is an error until it is down."""
    for key in keys[:FAILURES]:
        assert user.events == []
        with pytest.raises(error):
            user.call("get", key)
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


def test_writes_to_a_killed_instance_are_dropped_by_choice(
    instances: Instances, user: Callable[..., User]
) -> None:
    """Once it is down; until then they are errors."""
    dropping = user(
        instances.nodes,
        backoff=LONG,
        timeout=GENEROUS,
        connect_timeout=GENEROUS,
        writes_when_down="drop",
    )
    lost, kept = instances.store(dropping, f"drop/{id(dropping)}")
    instances.server.kill()
    fail_until_down(dropping, lost, NodeConnectionError)
    sent = instances.requests(dropping)
    for key in lost:
        assert dropping.call("put", key, b"new") is None
        assert not dropping.call("delete", key)
    assert instances.requests(dropping) == sent
    assert dropping.metrics().operations["put", "dropped"] == len(lost)
    assert instances.are_found(dropping, kept)


def test_instance_that_hangs_is_down_after_its_timeouts(
    instances: Instances, user: Callable[..., User]
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


def test_added_instances_are_used_by_the_next_operation(
    instances: Instances, user: Callable[..., User], tmp_path: Path
) -> None:
    """From nginx's file; the nodes that stay keep their connections."""
    names = list(instances.servers)
    file = tmp_path / "instances.conf"
    file.write_text(instances_text(names[:1]))
    growing = user(
        file, refresh_seconds=0.01, timeout=GENEROUS, connect_timeout=GENEROUS
    )
    assert growing.call("put", "grow/key", b"value")
    file.write_text(instances_text(names)[:-9])  # It ends within a line.
    failed = "discovery failed"
    wait_until(
        lambda: growing.call("get", "grow/key") and growing.events, "the file is read"
    )
    assert [event.kind for event in growing.events] == [failed]
    assert list(growing.metrics().nodes) == names[:1]
    other = tmp_path / "other"
    other.write_text(instances_text(names))
    other.rename(file)
    wait_until(
        lambda: growing.call("head", "x") or len(growing.events) > 1, "the file is read"
    )
    assert sorted(event[:2] for event in growing.events[1:]) == sorted(
        [("discovery recovered", ""), *(("added", name) for name in names[1:])]
    )
    instances.store(growing, f"grow/{id(growing)}")
    numbers = growing.metrics().nodes
    assert list(numbers) == names
    assert all(node.connections == 1 for node in numbers.values())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Unready

    def do_GET(self) -> None:
        is_probe = self.path == "/-/ready"
        self.server.paths.append(self.path)
        if not is_probe and not self.server.is_ready:
            self.close_connection = True  # Without an answer.
            return
        ready = 200 if self.server.is_ready else 503
        self.send_response(ready if is_probe else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Unready(ThreadingHTTPServer):
    """Answers only probes, with 503, until it is ready."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.is_ready = False


@contextmanager
def unready_node() -> Iterator[Unready]:
    """Run one until the context ends."""
    with Unready() as server, in_background(lambda _: server.serve_forever(0.01)):
        try:
            yield server
        finally:
            server.shutdown()


def test_instance_that_is_not_ready_stays_down(user: Callable[..., User]) -> None:
    """It gets nothing but probes, of which each fails."""
    with unready_node() as server:
        name = f"127.0.0.1:{server.server_port}"
        waiting = user(
            [name],
            backoff=SHORT,
            timeout=GENEROUS,
            connect_timeout=GENEROUS,
            probe_timeout=GENEROUS,
        )
        fail_until_down(waiting, ["a", "b", "c"], NodeConnectionError)
        wait_until(
            lambda: waiting.call("get", "key") or server.paths.count("/-/ready") > 5,
            "some probes",
        )
        assert set(server.paths) == {"/a", "/b", "/c", "/-/ready"}
        assert len(waiting.events) == 1
        numbers = waiting.metrics().nodes[name]
        assert numbers.failures == FAILURES + server.paths.count("/-/ready")
        server.is_ready = True
        wait_until(
            lambda: waiting.call("get", "key") or len(waiting.events) > 1, "it is up"
        )
        assert [event.kind for event in waiting.events] == ["down", "up"]
        assert server.paths[-2:] == ["/-/ready", "/key"]
