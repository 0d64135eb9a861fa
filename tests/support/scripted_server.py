"""A server that answers what a test says, on each of its connections."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, Self

OK: Final = b"HTTP/1.1 200 OK\r\n"


def value(body: bytes, more: bytes = b"") -> bytes:
    """Return an answer with a value."""
    return OK + more + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Peer:
    """A connection of a client, and its place among all connections, from 0."""

    def __init__(
        self, connection: socket.socket, number: int, requests: list[bytes]
    ) -> None:
        """Take over the connection; its requests are added to those of the server."""
        self.socket: Final = connection
        self.number: Final = number
        self._requests = requests
        self._received = b""

    def request(self) -> bytes:
        """Return the next request with its body; empty: the client has closed."""
        while b"\r\n\r\n" not in self._received:
            if not self._more():
                return b""
        head, _, _ = self._received.partition(b"\r\n\r\n")
        size = len(head) + 4
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size += int(line.partition(b":")[2])
        while len(self._received) < size:
            if not self._more():
                return b""
        found, self._received = self._received[:size], self._received[size:]
        self._requests.append(found)
        return found

    def _more(self) -> bool:
        data = self.socket.recv(1 << 16)
        self._received += data
        return bool(data)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def hang(self) -> None:
        """Read nothing until the connection is broken, or the server ends."""
        poll = select.poll()
        poll.register(self.socket, 0)
        poll.poll()


class ScriptedServer:
    """
    Listens, and calls a function in a thread of its own for each connection.

    Bytes in place of the function are the answer to each request.

    Attributes:
        port: Where it listens; of a unix socket 0.
        name: `host:port`.
        connections: How many there were.
        requests: All that have arrived, with their bodies.
    """

    def __init__(
        self,
        serve: Callable[[Peer], None] | bytes,
        *,
        listener: socket.socket | None = None,
        wrap: Callable[[socket.socket], socket.socket] = lambda connection: connection,
    ) -> None:
        """Listen at a free port of 127.0.0.1, or with a listener of the test."""
        self._serve = answering(lambda _: serve) if isinstance(serve, bytes) else serve
        self._wrap = wrap
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        is_unix = self._listener.family == socket.AF_UNIX
        self.port: int = 0 if is_unix else self._listener.getsockname()[1]
        self.name = f"127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.connections = 0
        self.requests: list[bytes] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    @property
    def open(self) -> int:
        """How many connections are open."""
        return sum(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Self:
        """Begin to accept."""
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close all, and wait until the functions have returned."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                number = self.connections
                self.connections += 1
                self._sockets.append(connection)
                thread = threading.Thread(
                    target=self._run, args=(connection, number), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _run(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError):
            wrapped = self._wrap(connection)
            with wrapped:
                self._serve(Peer(wrapped, number, self.requests))


def answering(answer: Callable[[bytes], bytes]) -> Callable[[Peer], None]:
    """Return a function for a server that answers each request."""

    def serve(peer: Peer) -> None:
        while request := peer.request():
            peer.send(answer(request))

    return serve


def closing(data: bytes) -> Callable[[Peer], None]:
    """Return a function that takes a request, sends bytes and closes the connection."""

    def serve(peer: Peer) -> None:
        peer.request()
        peer.send(data)

    return serve


def hanging(data: bytes = b"") -> Callable[[Peer], None]:
    """Return a function that sends bytes after some of a request, and then hangs."""

    def serve(peer: Peer) -> None:
        if data:
            peer.socket.recv(1000)
            peer.send(data)
        peer.hang()

    return serve


@contextmanager
def sending(data: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Send the same bytes to each connection; yield HOST:PORT and what was received."""
    with ScriptedServer(closing(data)) as server:
        yield server.name, server.requests


@contextmanager
def full_listener() -> Iterator[int]:
    """Yield a port at which connections are neither accepted nor refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port: int = listener.getsockname()[1]
        with ExitStack() as stack:
            for _ in range(4):  # They fill the queue.
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)  # noqa: FBT003
                waiting.connect_ex(("127.0.0.1", port))
            yield port
