"""
A closed loop over several connections, for what wrk cannot do.

wrk speaks no memcached, draws keys for ever and knows one address. This client takes
requests from an iterator, keeps one under way on every connection and ends with the
time or with the last request. It costs more per request than wrk, but that is the
client's time: the server's is measured apart.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from latency import Run, summarise
from load import LoadError
from processes import IP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

IsWhole = Callable[[bytes], bool]  # Tells whether an answer is there to its end.
ANSWER_SECONDS: Final = 30.0
RECEIVE_BYTES: Final = 1 << 17
OK: Final = (b"HTTP/1.1 200 ", b"HTTP/1.0 200 ")
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
VALUE: Final = re.compile(rb"VALUE \S+ \d+ (\d+)\r\n")


def is_whole_http(data: bytes) -> bool:
    """
    Tell whether an answer of HTTP is there with all its body.

    Raises:
        LoadError: Its status is not 200, or it does not say its length.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    found = LENGTH.search(data, 0, end)
    if not data.startswith(OK) or found is None:
        raise LoadError(f"a request was answered {data[:200]!r}")
    return len(data) >= end + 4 + int(found[1])


def is_whole_hit(data: bytes) -> bool:
    """
    Tell whether memcached's answer to a get is there.

    Raises:
        LoadError: It is no hit.
    """
    found = VALUE.match(data)
    if found is None:
        if b"\r\n" in data:
            raise LoadError(f"memcached answered a get with {data[:80]!r}")
        return False
    return len(data) >= found.end() + int(found[1]) + len(b"\r\nEND\r\n")


def is_whole_miss(data: bytes) -> bool:
    """
    Tell whether memcached's answer to a get of nothing is there.

    Raises:
        LoadError: It is a hit.
    """
    if not b"END\r\n".startswith(data):
        raise LoadError(f"memcached answered a get with {data[:80]!r}")
    return len(data) == len(b"END\r\n")


def is_whole_stored(data: bytes) -> bool:
    """
    Tell whether memcached's answer to a set is there.

    Raises:
        LoadError: It did not store the value.
    """
    if not b"STORED\r\n".startswith(data):
        raise LoadError(f"memcached answered a set with {data[:80]!r}")
    return len(data) == len(b"STORED\r\n")


def http_get(key: str) -> bytes:
    """Make a GET as wrk does."""
    return f"GET /{key} HTTP/1.1\r\nHost: {IP}\r\n\r\n".encode()


def http_put(key: str, value: bytes) -> bytes:
    """Make a PUT as wrk does."""
    head = f"PUT /{key} HTTP/1.1\r\nHost: {IP}\r\nContent-Length: {len(value)}\r\n\r\n"
    return head.encode() + value


def memcached_get(key: str) -> bytes:
    """Make a get of the text protocol."""
    return f"get {key}\r\n".encode()


def memcached_set(key: str, value: bytes) -> bytes:
    """Make a set of the text protocol, without end of life."""
    return f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n"


@dataclass(slots=True)
class _Connection:
    """One connection with the request that is under way on it."""

    stream: socket.socket
    began: float = 0.0
    parts: list[bytes] = field(default_factory=list)


class ClosedLoop:
    """Connections to one or several servers, one request under way on each."""

    def __init__(self, ports: Sequence[int], connections: int) -> None:
        """Connect to the servers in turn; `close` ends it."""
        self._connections = {}
        for number in range(connections):
            address = (IP, ports[number % len(ports)])
            stream = socket.create_connection(address, timeout=ANSWER_SECONDS)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[stream.fileno()] = _Connection(stream)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.stream.close()

    def run(
        self,
        requests: Iterable[bytes],
        is_whole: IsWhole,
        seconds: float = float("inf"),
    ) -> Run:
        """
        Send requests until the time is up or there are no more.

        Requests go to whichever connection is free, so with several servers each must
        be able to answer all of them.

        Raises:
            LoadError: An answer is not what was wanted, or does not come.

        """
        per_connection = iter(requests)
        return self.run_each(
            dict.fromkeys(self._connections, per_connection), is_whole, seconds
        )

    def run_parted(self, parts: Sequence[Iterable[bytes]], is_whole: IsWhole) -> Run:
        """Send to each server, in the order of the ports, its own requests, all."""
        sources = [iter(part) for part in parts]
        return self.run_each(
            {
                number: sources[place % len(sources)]
                for place, number in enumerate(self._connections)
            },
            is_whole,
            float("inf"),
        )

    def run_each(
        self,
        sources: dict[int, Iterator[bytes]],
        is_whole: IsWhole,
        seconds: float,
    ) -> Run:
        """Send from one source for each connection, by its descriptor."""
        latencies: list[float] = []
        began = time.perf_counter()
        end = began + seconds
        under_way = set()
        with select.epoll() as waiting:
            for number, connection in self._connections.items():
                if _send_next(connection, sources[number]):
                    waiting.register(number, select.EPOLLIN)
                    under_way.add(number)
            while under_way:
                for number in _ready(waiting):
                    connection = self._connections[number]
                    if not _receive(connection, is_whole):
                        continue
                    now = time.perf_counter()
                    latencies.append(now - connection.began)
                    if now >= end or not _send_next(connection, sources[number]):
                        waiting.unregister(number)
                        under_way.remove(number)
        if not latencies:
            raise LoadError("there was no request to send")
        took = time.perf_counter() - began
        return summarise(latencies, took, len(self._connections))


def _ready(waiting: select.epoll) -> list[int]:
    """
    Wait until connections have something to read.

    Raises:
        LoadError: None has for a long time.
    """
    ready = waiting.poll(ANSWER_SECONDS)
    if not ready:
        raise LoadError(f"no answer within {ANSWER_SECONDS:g} s")
    return [number for number, _ in ready]


def _send_next(connection: _Connection, source: Iterator[bytes]) -> bool:
    """Send the next request, if there is one."""
    request = next(source, None)
    if request is None:
        return False
    connection.began = time.perf_counter()
    connection.stream.sendall(request)
    return True


def _receive(connection: _Connection, is_whole: IsWhole) -> bool:
    """
    Take what has come, and tell whether the answer is there.

    Raises:
        LoadError: The server closed the connection, or the answer is not the one wanted.
    """
    data = connection.stream.recv(RECEIVE_BYTES)
    if not data:
        raise LoadError("the server closed the connection")
    if connection.parts:
        connection.parts.append(data)
        data = b"".join(connection.parts)
    if is_whole(data):
        connection.parts.clear()
        return True
    connection.parts[:] = [data]
    return False
