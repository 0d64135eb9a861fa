"""Many uploads that never end, from one address."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final, Self

SECONDS: Final = 30.0
BODY_BYTES: Final = 100_000


def raise_descriptor_limit(wanted: int) -> None:
    """Raise the limit of this process and of its children, as far as it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


class SlowUploads:
    """Connections that each sent the head of a PUT and a part of its body."""

    def __init__(self, port: int, count: int, *, source: str) -> None:
        """
        Open nothing yet.

        Args:
            port: Of the server, at 127.0.0.1.
            count: How many connections.
            source: The address of the client, of 127.0.0.0/8.
        """
        self.port = port
        self.count = count
        self.source = source
        self.sockets: list[socket.socket] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Open all, and send what is sent."""
        for number in range(self.count):
            one = self._open.enter_context(socket.socket())
            one.bind((self.source, 0))
            one.connect(("127.0.0.1", self.port))
            # Different names, since clients choose them.
            one.sendall(
                b"PUT /slow/%d HTTP/1.1\r\nHost: h%d\r\nContent-Length: %d\r\n\r\nbegin"
                % (number, number % 7, BODY_BYTES)
            )
            self.sockets.append(one)
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        self._open.close()

    def send_more(self, sockets: Iterable[socket.socket]) -> None:
        """Send one byte more of each."""
        for one in sockets:
            one.sendall(b"x")


def answered(
    sockets: Iterable[socket.socket], count: int
) -> dict[socket.socket, bytes]:
    """Wait until this many are answered, and return the first bytes of the answers."""
    found: dict[socket.socket, bytes] = {}
    deadline = time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ, one)
        while len(found) < count and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                found[key.data] = key.data.recv(4096)
                selector.unregister(key.data)
    return found


def statuses(answers: Iterable[bytes]) -> Counter[bytes]:
    """Return how often there is each status, by the first line of an answer."""
    return Counter(answer[9:12] for answer in answers)
