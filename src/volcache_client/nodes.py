"""
Nodes: their addresses and their health.

A node that fails some times in a row is *down*: it is not asked until its back-off ends.
Then one caller asks whether it is ready, at `/-/ready`, while it stays down for all others;
if it is not, the back-off doubles.

A failure is a request without an answer: no connection, a broken one, or none in time. Any
answer counts as a success and ends the row, also an error, and also one that arrives late,
when the node is down: it is up then. So a node is down when it answers nothing, and stays
up while it answers some requests. Failures of requests that were sent at the same time
count each: a pause of a node that exceeds the timeout of `failures` requests takes it down
for one back-off. That costs some misses, whereas each request to a node that hangs costs
its whole timeout.
"""

from __future__ import annotations

import random
import re
import socket
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from volcache_client.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

_UNIX: Final = "unix:"
_ALLOWED: Final = (
    'allowed are "host:port", "http://host:port", "https://host:port" and "unix:/path"'
)
_PORTS: Final = {"http": 80, "https": 443}
_PATH_BYTES_MAX: Final = 107  # Of a sockaddr_un, without the zero byte at its end.
_PORT_MAX: Final = 65535
_ADDRESS: Final = re.compile(
    r"((?P<scheme>https?)://)?"
    r"(?P<name>((?P<host>[A-Za-z0-9._-]+)|\[(?P<ip>[0-9A-Fa-f:.]+)\])"
    r"(:(?P<port>[1-9][0-9]{0,4}))?)/?"
)

Permission = Literal["yes", "probe", "no"]
EventKind = Literal[
    "down", "up", "added", "removed", "discovery failed", "discovery recovered"
]


class Address(NamedTuple):
    """
    Where a node listens.

    Attributes:
        name: What the ring hashes: "host:port" or "unix:/path", without a scheme.
        scheme: "http" or "https".
        host: A name or address; IPv6 without brackets; of a unix socket "localhost".
        port: 1 to 65535; of a unix socket 80.
        socket_path: Of a unix socket, else empty.
    """

    name: str
    scheme: str
    host: str
    port: int
    socket_path: str = ""

    @property
    def host_header(self) -> str:
        """The header `Host` of requests."""
        return "localhost" if self.socket_path else self.name


def parse_address(text: str) -> Address:
    """
    Return the address in a text.

    Raises:
        InvalidArgumentError: It is none; the text says what is allowed.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{text!r} is not the address of a node; {_ALLOWED}")
    if "@" in text:  # What is before it may be a password.
        raise InvalidArgumentError(
            f"an address of a node has an @; the token is an option; {_ALLOWED}"
        )
    if text.startswith(_UNIX):
        return Address(text, "http", "localhost", 80, _checked_path(text))
    found = _ADDRESS.fullmatch(text)
    if found and (found["scheme"] or found["port"]):
        scheme = found["scheme"] or "http"
        port, host = int(found["port"] or _PORTS[scheme]), found["host"] or found["ip"]
        if port <= _PORT_MAX and (found["host"] or _is_ip(host)):
            return Address(found["name"], scheme, host.lower(), port)
    raise InvalidArgumentError(f"{text!r} is not the address of a node; {_ALLOWED}")


def _is_ip(text: str) -> bool:
    try:
        return bool(socket.inet_pton(socket.AF_INET6, text))
    except OSError:
        return False


def _checked_path(text: str) -> str:
    path = text.removeprefix(_UNIX)
    reason = ""
    if not path.startswith("/"):
        reason = "the path is not absolute"
    elif not path.isprintable():
        reason = "the path has control characters"
    elif len(path.encode()) > _PATH_BYTES_MAX:
        reason = f"the path has more than {_PATH_BYTES_MAX} bytes"
    if reason:
        raise InvalidArgumentError(f"{text!r}: {reason}; {_ALLOWED}")
    return path


class NodeEvent(NamedTuple):
    """
    A change of a node, given to the hook `on_event`.

    Attributes:
        kind: "down" and "up", of its health; "added" and "removed", when the list of nodes
            was read again; "discovery failed", when it could not be, and the previous list
            stays, once for each reason; "discovery recovered", when it could be again.
        node: Its name; empty for those of discovery.
        reason: Why; may be empty.
    """

    kind: EventKind
    node: str
    reason: str


class Events:
    """
    Calls a hook with events, one at a time, in the order in which they happened.

    An event is put while the lock of what has changed is held, and delivered after that, so
    that the hook may use the client. The thread that calls the hook also delivers what
    others put meanwhile.
    """

    def __init__(self, hook: Callable[[NodeEvent], object]) -> None:
        """Take the hook, which does not raise."""
        self._hook: Final = hook
        self._waiting: deque[NodeEvent] = deque()
        self._turn = Lock()

    def put(self, kind: EventKind, node: str = "", *, reason: str = "") -> None:
        """Add an event; `deliver` must follow."""
        self._waiting.append(NodeEvent(kind, node, reason))

    def deliver(self) -> None:
        """Call the hook with what was put, unless another thread does."""
        while self._waiting and self._turn.acquire(blocking=False):
            try:
                while self._waiting:
                    self._hook(self._waiting.popleft())
            finally:
                self._turn.release()

    def after_fork(self) -> None:
        """Replace the lock, in a child process; who delivers is not there."""
        self._turn = Lock()


class HealthOptions(NamedTuple):
    """
    When a node is down, and for how long.

    Attributes:
        failures: In a row, until it is down.
        first_seconds: The first back-off.
        last_seconds: The longest back-off. Each is longer or shorter by up to a fifth, at
            random, so that clients which saw the same failure do not return together.
    """

    failures: int
    first_seconds: float
    last_seconds: float


class Node:
    """
    One node; used by all threads.

    Attributes:
        address: Where it listens.
        name: Of the address.
        requests: How many have ended.
        unanswered: How many of them without an answer.

    Invariants:
        - From an `ask` that returns "probe" until `probe_ended` is called, no other caller
          gets "probe".
        - A node that is up has fewer failures in a row than `HealthOptions.failures`.
    """

    def __init__(
        self,
        address: Address,
        options: HealthOptions,
        clock: Callable[[], float],
        events: Events,
    ) -> None:
        """
        Begin as a node that is up.

        Args:
            address: Where it listens.
            options: When it is down.
            clock: Seconds, monotonic.
            events: Gets "down" and "up".
        """
        self.address: Final = address
        self.name: Final = address.name
        self.requests = self.unanswered = 0
        self._options: Final = options
        self._clock: Final = clock
        self._events: Final = events
        self._lock = Lock()
        self._failures = 0
        self._is_down = False
        self._is_probed = False
        self._has_probe_failed = False
        self._backoff = options.first_seconds
        self._until = 0.0
        self._reason = ""

    @property
    def is_up(self) -> bool:
        """Whether it is asked."""
        return not self._is_down

    @property
    def reason(self) -> str:
        """The last failure; empty if the last request was answered."""
        return self._reason

    def ask(self) -> Permission:
        """
        Return whether a request may be sent.

        "probe" is returned to one caller when the back-off is over: it must call
        `probe_ended` afterwards, whatever happens, and before that `succeeded` or `failed`
        if there is a result.
        """
        with self._lock:
            if not self._is_down:
                return "yes"
            if self._is_probed or self._clock() < self._until:
                return "no"
            self._is_probed = True
            self._has_probe_failed = False
            return "probe"

    def succeeded(self, count: int = 1) -> bool:
        """Count answers; return whether the node was down and is up now."""
        with self._lock:
            self.requests += count
            if not self._failures:  # Nor is it down.
                return False
            was_down = self._is_down
            if was_down:
                self._events.put("up", self.name)
            self._failures = 0
            self._is_down = False
            self._backoff = self._options.first_seconds
            self._reason = ""
        self._events.deliver()
        return was_down

    def failed(self, reason: str, count: int = 1) -> bool:
        """Count a failure of so many requests; return whether the node is down just now."""
        with self._lock:
            self.requests += count
            self.unanswered += count
            self._failures += 1
            self._reason = reason
            # Also set by a request that was sent before the node was down: what it says is
            # no older than the start of the probe.
            self._has_probe_failed = True
            if self._is_down or self._failures < self._options.failures:
                return False
            self._is_down = True
            self._wait()
            self._events.put("down", self.name, reason=reason)
        self._events.deliver()
        return True

    def probe_ended(self) -> None:
        """
        Let another caller probe: after a failure when a longer back-off is over.

        A probe without a result, such as one that was cancelled, may be repeated at once.
        """
        with self._lock:
            if not self._is_probed:
                return
            self._is_probed = False
            if self._is_down and self._has_probe_failed:
                self._backoff = min(2 * self._backoff, self._options.last_seconds)
                self._wait()

    def after_fork(self) -> None:
        """Replace the lock, in a child process; who probes is not there."""
        self._lock = Lock()
        self._is_probed = False

    def _wait(self) -> None:
        spread = random.uniform(0.8, 1.2)  # noqa: S311 - Not a secret.
        self._until = self._clock() + spread * self._backoff
