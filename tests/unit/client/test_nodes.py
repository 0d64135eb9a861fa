"""nodes.py: addresses, and when a node is down."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.tables import each_row
from volcache_client.errors import InvalidArgumentError
from volcache_client.nodes import (
    Address,
    Events,
    HealthOptions,
    Node,
    NodeEvent,
    parse_address,
)

FAILURES, FIRST, LAST = 2, 0.5, 4.0
OPTIONS = HealthOptions(FAILURES, FIRST, LAST)
# A back-off is longer or shorter by up to a fifth.
SHORT, LONG = 0.79, 1.21


class Seconds:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def make_node(clock: Seconds, options: HealthOptions = OPTIONS) -> Node:
    """Return a node that is up."""
    return Node(parse_address("10.0.0.1:1234"), options, clock, Events(print))


# --- Addresses --------------------------------------------------------------------------


@each_row(
    ("text", "address"),
    [
        ("10.0.0.1:1234", Address("10.0.0.1:1234", "http", "10.0.0.1", 1234)),
        ("http://10.0.0.1:1", Address("10.0.0.1:1", "http", "10.0.0.1", 1)),
        ("http://10.0.0.1:1/", Address("10.0.0.1:1", "http", "10.0.0.1", 1)),
        ("http://cache", Address("cache", "http", "cache", 80)),
        ("https://cache.x", Address("cache.x", "https", "cache.x", 443)),
        ("https://Cache:65535", Address("Cache:65535", "https", "cache", 65535)),
        ("[::1]:9", Address("[::1]:9", "http", "::1", 9)),
        ("https://[::1]", Address("[::1]", "https", "::1", 443)),
        (
            "unix:/run/a:b",
            Address("unix:/run/a:b", "http", "localhost", 80, "/run/a:b"),
        ),
    ],
)
def test_parse_address_returns_name_scheme_host_and_port(
    text: str, address: Address
) -> None:
    """The name is what nginx hashes: as it is written, without the scheme."""
    assert parse_address(text) == address
    header = "localhost" if address.socket_path else address.name
    assert address.host_header == header


@each_row(
    "text",
    [
        "", "cache", "10.0.0.1", "a:", "a:b", "a:0", "a:65536", "a:-1", "a:1/path", ":1",
        "a:1?x", "a:1#x", "http://", "http://a:1/path", "http://a:1?x", "ftp://a:1",
        "a b:1", "a:1 ", "a\n:1", "::1:9", "[::1", "[x]:1", "http://a:0", "unix:",
        "unix:relative", "unix:/a\0b",
        "unix:/" + 107 * "a", "HTTP://a:1", "a,b:1", "é:1", "a:\u0661",
        "a:1:2",
    ],
)  # fmt: skip
def test_parse_address_of_another_text_is_an_error(text: str) -> None:
    """The error has the text and what is allowed."""
    with pytest.raises(InvalidArgumentError) as raised:
        parse_address(text)
    assert repr(text) in str(raised.value)
    assert 'allowed are "host:port", "http://host:port"' in str(raised.value)


def test_parse_address_with_a_password_does_not_show_it() -> None:
    """It is refused, too: it would not be sent."""
    with pytest.raises(InvalidArgumentError) as raised:
        parse_address("http://user:secret@cache:1")
    assert "secret" not in str(raised.value)
    assert "the token is an option" in str(raised.value)


# --- Health -----------------------------------------------------------------------------


def test_probe_in_a_child_process_ignores_that_of_its_parent() -> None:
    """And takes no lock that another thread of the parent had."""
    clock = Seconds()
    node = make_node(clock)
    for _ in range(FAILURES):
        node.failed("reason")
    clock.now += LONG * FIRST
    assert node.ask() == "probe"
    node._lock.acquire()
    node.after_fork()
    assert node.ask() == "probe"


# --- Events -----------------------------------------------------------------------------


def test_events_of_many_threads_come_in_the_order_of_the_changes() -> None:
    """Although many threads cause them: down and up take turns."""
    told: list[str] = []
    at_once = threading.Lock()

    def hook(event: NodeEvent) -> None:
        assert at_once.acquire(blocking=False)
        time.sleep(0)  # Let another thread run.
        told.append(event.kind)
        at_once.release()

    options = HealthOptions(1, FIRST, FIRST)
    node = Node(parse_address("a:1"), options, Seconds(), Events(hook))
    barrier = threading.Barrier(8)

    def work(number: int) -> int:
        barrier.wait(30)
        changes = 0
        for turn in range(300):
            is_failure = (number + turn) % 2
            changes += node.failed("reason") if is_failure else node.succeeded()
        return changes

    with ThreadPoolExecutor(8) as pool:
        changes = sum(pool.map(work, range(8)))
    assert told == (["down", "up"] * changes)[:changes]


def test_events_caused_by_the_hook_come_after_it() -> None:
    """They are told after it has returned."""
    told: list[str] = []

    def hook(event: NodeEvent) -> None:
        if event.kind == "down":
            node.succeeded()
        told.append(event.kind)

    options = HealthOptions(1, FIRST, FIRST)
    node = Node(parse_address("a:1"), options, Seconds(), Events(hook))
    node.failed("reason")
    assert told == ["down", "up"]


class HealthModel(RuleBasedStateMachine):
    """A node against a model of it in which all callers and requests are visible."""

    def __init__(self) -> None:
        """Begin with a node that is up."""
        super().__init__()
        self.clock = Seconds()
        self.node = make_node(self.clock)
        self.row = 0
        self.is_down = False
        self.is_probed = False
        self.has_failed = False
        self.backoff = FIRST
        self.since = 0.0

    @rule(seconds=st.sampled_from([0.1, 0.3, 0.5, 1.0, 3.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        """Nothing else happens."""
        self.clock.now += seconds

    @rule()
    def caller_asks(self) -> None:
        """Get a permission."""
        permission = self.node.ask()
        waited = self.clock.now - self.since
        if not self.is_down:
            assert permission == "yes"
        elif self.is_probed or waited < SHORT * self.backoff:
            assert permission == "no"
        elif waited > LONG * self.backoff:
            assert permission == "probe"
        else:
            assert permission in {"no", "probe"}
        if permission == "probe":
            self.is_probed = True
            self.has_failed = False

    @rule()
    def request_is_answered(self) -> None:
        """Of a probe or another one, in time or late."""
        assert self.node.succeeded() == self.is_down
        self.row = 0
        self.is_down = False
        self.backoff = FIRST

    @rule()
    def request_fails(self) -> None:
        """Of a probe or another one."""
        self.row += 1
        self.has_failed = True
        goes_down = not self.is_down and self.row >= FAILURES
        assert self.node.failed(f"reason {self.row}") == goes_down
        if goes_down:
            self.is_down = True
            self.since = self.clock.now

    @rule()
    def probe_ends(self) -> None:
        """With or without a result; nothing happens if there is none."""
        self.node.probe_ended()
        was_probed, self.is_probed = self.is_probed, False
        if was_probed and self.is_down and self.has_failed:
            self.backoff = min(2 * self.backoff, LAST)
            self.since = self.clock.now

    @invariant()
    def state_is_that_of_the_model(self) -> None:
        """At any time."""
        assert self.node.is_up != self.is_down
        assert self.node.reason == (f"reason {self.row}" if self.row else "")


TestHealthModel = HealthModel.TestCase
TestHealthModel.settings = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
