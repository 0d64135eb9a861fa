"""
A closed-loop client for what wrk cannot do: memcached, and each key exactly once.

Each connection has one request under way and sends the next one when the answer is
complete. The client needs more CPU per request than wrk; that limits the rate, but not
what is measured of the server, whose CPU is read from the kernel.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

IsComplete = Callable[[bytes], bool]  # Whether these bytes are a whole answer.
IP: Final = "127.0.0.1"
ANSWER_SECONDS: Final = 30.0
RECEIVE_BYTES: Final = 1 << 17
OK: Final = (b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
VALUE: Final = re.compile(rb"VALUE \S+ \d+ (\d+)\r\n")


class LoadError(RuntimeError):
    """Requests failed, so the figures would mean nothing; the text holds the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The requests answered within some seconds; latencies are in milliseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    p999: float
    max: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.requests / self.seconds


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of at least one figure in ascending order."""
    rank = -(-len(ordered) * percent // 100)  # Rounded up.
    return ordered[max(0, int(rank) - 1)]


def corrected(latencies: Sequence[float], interval: float) -> list[float]:
    """
    Add the latencies of requests that a pause kept from being sent.

    A client that waits for each answer sends nothing while the server pauses, so a
    pause of a second counts as one slow request. wrk adds, for a latency of n times the
    usual interval, n - 2 more that decrease by the interval. The same is done here, so
    that the two clients can be compared.

    Args:
        latencies: As measured.
        interval: The mean time between two requests of a connection; 0 adds nothing.
    """
    result = list(latencies)
    if interval > 0:
        for latency in latencies:
            waited = latency - interval
            while waited > interval:
                result.append(waited)
                waited -= interval
    return result


def summarise(latencies: Sequence[float], seconds: float, connections: int) -> Run:
    """
    Summarise a closed loop.

    Args:
        latencies: Of each request, in seconds; at least one.
        seconds: From the first request to the last answer.
        connections: How many had a request under way; 0 for no correction of pauses.
    """
    interval = seconds * connections / len(latencies)
    ordered = sorted(corrected(latencies, interval))
    p50, p99, p999 = (1000 * percentile(ordered, p) for p in (50, 99, 99.9))
    return Run(
        requests=len(latencies),
        seconds=seconds,
        p50=p50,
        p99=p99,
        p999=p999,
        max=1000 * ordered[-1],
    )


def is_complete_http(data: bytes) -> bool:
    """
    Whether an HTTP answer is complete.

    Raises:
        LoadError: Its status is not 200, or it has no Content-Length.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    found = LENGTH.search(data, 0, end)
    if not data.startswith(OK) or found is None:
        raise LoadError(f"a request was answered {data[:200]!r}")
    return len(data) >= end + 4 + int(found[1])


def is_complete_hit(data: bytes) -> bool:
    """
    Whether memcached's answer to a `get` of a stored key is complete.

    Raises:
        LoadError: It is a miss or an error.
    """
    found = VALUE.match(data)
    if found is None:
        if b"\r\n" in data:
            raise LoadError(f"memcached answered a get with {data[:80]!r}")
        return False
    return len(data) >= found.end() + int(found[1]) + len(b"\r\nEND\r\n")


def is_complete_line(data: bytes, line: bytes) -> bool:
    """
    Whether memcached's answer is complete, when it must be this line.

    Raises:
        LoadError: It is another one.
    """
    if not line.startswith(data):
        raise LoadError(f"memcached answered {data[:80]!r} instead of {line!r}")
    return len(data) == len(line)


is_complete_miss: IsComplete = partial(is_complete_line, line=b"END\r\n")
is_complete_stored: IsComplete = partial(is_complete_line, line=b"STORED\r\n")


def http_get(key: str) -> bytes:
    """Build a GET as wrk builds it."""
    return f"GET /{key} HTTP/1.1\r\nHost: {IP}\r\n\r\n".encode()


def http_put(key: str, value: bytes) -> bytes:
    """Build a PUT as wrk builds it."""
    head = f"PUT /{key} HTTP/1.1\r\nHost: {IP}\r\nContent-Length: {len(value)}\r\n\r\n"
    return head.encode() + value


def memcached_get(key: str) -> bytes:
    """Build a `get` of memcached's text protocol."""
    return f"get {key}\r\n".encode()


def memcached_set(key: str, value: bytes) -> bytes:
    """Build a `set` of memcached's text protocol, without expiry."""
    return f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n"


def closed_loop(
    sources: Mapping[int, Iterable[bytes]],
    is_complete: IsComplete,
    *,
    connections: int,
    seconds: float = float("inf"),
) -> Run:
    """
    Send requests until the time is up or there are none left.

    Args:
        sources: The requests for each port; a port's connections share its requests.
        is_complete: Recognises the end of an answer; raises LoadError for a wrong one.
        connections: How many, spread evenly over the ports.
        seconds: How long.

    Raises:
        LoadError: An answer is wrong, incomplete, or missing for 30 s, or there was no
            request to send.
    """
    ports = list(sources)
    shared = {port: iter(source) for port, source in sources.items()}
    with ExitStack() as stack:
        opened = []
        for number in range(connections):
            port = ports[number % len(ports)]
            opened.append(_Connection(port, shared[port], is_complete))
            stack.callback(opened[-1].stream.close)
        began = time.perf_counter()
        latencies = _exchange(opened, began + seconds)
        took = time.perf_counter() - began
    if not latencies:
        raise LoadError("there was no request to send")
    return summarise(latencies, took, connections)


def _exchange(connections: Iterable[_Connection], end: float) -> list[float]:
    """Send and receive until the time `end`, and return the latencies in seconds."""
    latencies = []
    with select.epoll() as poll:
        busy = {c.stream.fileno(): c for c in connections if c.send_next()}
        for number in busy:
            poll.register(number, select.EPOLLIN)
        while busy:
            ready = poll.poll(ANSWER_SECONDS)
            if not ready:
                raise LoadError(f"no answer within {ANSWER_SECONDS:g} s")
            for number, _ in ready:
                connection = busy[number]
                if not connection.receive():
                    continue
                now = time.perf_counter()
                latencies.append(now - connection.sent)
                if now >= end or not connection.send_next():
                    poll.unregister(number)
                    del busy[number]
    return latencies


@dataclass(slots=True)
class _Connection:
    """One connection, with at most one request under way."""

    port: int
    source: Iterator[bytes]
    is_complete: IsComplete
    sent: float = 0.0
    parts: list[bytes] = field(default_factory=list)
    stream: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.stream = socket.create_connection((IP, self.port), timeout=ANSWER_SECONDS)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send_next(self) -> bool:
        """Send the next request; False if there is none."""
        request = next(self.source, None)
        if request is None:
            return False
        self.sent = time.perf_counter()
        self.stream.sendall(request)
        return True

    def receive(self) -> bool:
        """
        Read what has arrived; True if the answer is now complete.

        Raises:
            LoadError: The server closed the connection, or the answer is wrong.
        """
        data = self.stream.recv(RECEIVE_BYTES)
        if not data:
            raise LoadError("the server closed the connection")
        if self.parts:
            self.parts.append(data)
            data = b"".join(self.parts)
        if self.is_complete(data):
            self.parts.clear()
            return True
        self.parts[:] = [data]
        return False
