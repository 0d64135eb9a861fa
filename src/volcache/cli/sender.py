"""
Sends PUTs to the instances of their keys: some in a row, on a few connections to each.

What is in flight is bounded in bytes. A PUT may be sent twice: after a broken connection,
and after a 503 or a 507.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from contextlib import ExitStack
from http import HTTPStatus
from queue import SimpleQueue
from socket import create_connection
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import quote_from_bytes, urlsplit

from volcache.fleet.remote import first_line
from volcache_client.ring import HashRing

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from volcache.fleet.targets import Target

_FILES: Final = 64  # In a row,
_BYTES: Final = 256 << 10  # and of their values. Answers of so many fit the buffers.
_PUT_BYTES: Final = 512  # What each takes besides.
_HELD_BYTES: Final = 32 << 20  # Values in flight; one of any size is allowed.
_CONNECTIONS: Final = 3  # Connections to an instance,
_CONNECTIONS_MAX: Final = 48  # and to all of them, but one to each.
_FAILURES: Final = 500  # Statuses from here on are tried again.
_TRIES: Final = 6
_PAUSE_SECONDS: Final = 0.25  # It doubles with each try.
_LINE_MAX: Final = 65536
_ANSWER_MAX: Final = 1 << 20
NO_ANSWER: Final = 0


class Put(NamedTuple):
    """A value to store."""

    number: int
    key: bytes
    value: bytes
    headers: Mapping[str, str]

    @property
    def cost(self) -> int:
        """Bytes of memory, about; an empty value has some, too."""
        return len(self.value) + _PUT_BYTES


class Ended(NamedTuple):
    """What became of it."""

    put: Put
    status: int  # Of the answer; or `NO_ANSWER`.
    why: str  # It is not stored; empty: it is.


class Sender:
    """
    Sends PUTs until the context ends, which abandons those in flight.

    Attributes:
        ended: What was answered; the caller takes it out.
    """

    def __init__(self, targets: Sequence[Target], timeout: float) -> None:
        """
        Connect to nothing yet.

        Args:
            targets: The instances, or one proxy.
            timeout: For a connection, and for each part of an answer, seconds.
        """
        self.ended: deque[Ended] = deque()
        self._places = {urlsplit(one.url).netloc: one for one in targets}
        nodes = [(name, one.weight) for name, one in self._places.items()]
        self._ring = HashRing(nodes) if nodes[1:] else None
        self._first = nodes[0][0]
        self._rows: dict[str, list[Put]] = {name: [] for name, _ in nodes}
        self._sizes = dict.fromkeys(self._rows, 0)
        self._queues = {name: SimpleQueue[list[Put] | None]() for name in self._rows}
        self._changed = threading.Condition()
        self._held = self._waiting = 0  # Bytes, and rows.
        count = max(1, min(_CONNECTIONS, _CONNECTIONS_MAX // len(nodes)))
        self._connections = [
            _Connection(self, name, self._places[name].url, timeout, self._queues[name])
            for name in self._rows
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        """Start the threads."""
        for one in self._connections:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End them; they are daemons and need not be waited for."""
        for one in self._connections:
            one.is_over = True
            one.queue.put(None)

    def add(self, put: Put) -> None:
        """Send a value soon; wait while too many bytes are in flight."""
        name = self._ring.node(put.key) if self._ring else self._first
        row = self._rows[name]
        row.append(put)
        self._sizes[name] += put.cost
        if len(row) >= _FILES or self._sizes[name] >= _BYTES:
            self._send(name)

    def wait(self) -> None:
        """Send what was added, and wait until all is answered."""
        for name, row in self._rows.items():
            if row:
                self._send(name)
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def _send(self, name: str) -> None:
        row, length = self._rows[name], self._sizes[name]
        with self._changed:
            self._changed.wait_for(
                lambda: self._held + length <= _HELD_BYTES or not self._held
            )
            self._held += length
            self._waiting += 1
        self._rows[name], self._sizes[name] = [], 0
        self._queues[name].put(row)

    def end(self, row: Sequence[Put], ended: Sequence[Ended]) -> None:
        """Take over what became of a row; called by the threads."""
        self.ended.extend(ended)
        with self._changed:
            self._held -= sum(put.cost for put in row)
            self._waiting -= 1
            self._changed.notify_all()


class _Connection(threading.Thread):
    """One connection to an instance, and the thread that uses it."""

    def __init__(
        self,
        sender: Sender,
        name: str,
        url: str,
        timeout: float,
        queue: SimpleQueue[list[Put] | None],
    ) -> None:
        super().__init__(name="load", daemon=True)
        self._sender, self._host, self._timeout, self.queue = (
            sender,
            name,
            timeout,
            queue,
        )
        where = urlsplit(url)
        self._is_tls, self._path = where.scheme == "https", where.path
        self._address = (
            where.hostname or "",
            where.port or (443 if self._is_tls else 80),
        )
        self._socket: socket.socket | None = None
        self._answers: IO[bytes] | None = None
        self._tries = _TRIES  # One, while the instance does not answer.
        self.is_over = False

    def run(self) -> None:
        """Send rows until there are no more."""
        while (row := self.queue.get()) is not None:
            self._sender.end(row, self._store(row))
        self._close()

    def _store(self, row: list[Put]) -> list[Ended]:
        """Send a row as often as it is needed; return what became of each value."""
        ended: list[Ended] = []
        left, last, why = row, list[Ended](), ""
        for number in range(self._tries):
            if number and not self.is_over:
                time.sleep(_PAUSE_SECONDS * 2 ** (number - 1))
            found: list[Ended] = []
            try:
                self._exchange(left, found)
            except (OSError, ValueError) as error:
                why = f"{self._host}: {getattr(error, 'strerror', None) or error}"
                self._close()
            ended += (one for one in found if one.status < _FAILURES)
            busy = [one for one in found if one.status >= _FAILURES]
            rest = [Ended(put, NO_ANSWER, why) for put in left[len(found) :]]
            last = [*busy, *rest]
            left = [one.put for one in last]
            if not left:
                break
        self._tries = 1 if last else _TRIES
        return [*ended, *last]

    def _exchange(self, row: Sequence[Put], found: list[Ended]) -> None:
        """
        Send a row and add what is answered, in its order.

        Raises:
            OSError, ValueError: There is no connection, or no answer.
        """
        if self._socket is None or self._answers is None:
            self._socket = self._connect()
            self._answers = self._socket.makefile("rb")
        self._socket.sendall(b"".join(part for put in row for part in self._parts(put)))
        for put in row:
            status, text, is_last = _answer(self._answers)
            is_stored = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
            why = "" if is_stored else f"{self._host}: {status} {text}"
            found.append(Ended(put, status, why))
            if is_last:
                self._close()
                return

    def _connect(self) -> socket.socket:
        found = create_connection(self._address, self._timeout)
        if self._is_tls:
            context = ssl.create_default_context()
            return context.wrap_socket(found, server_hostname=self._address[0])
        return found

    def _parts(self, put: Put) -> tuple[bytes, bytes]:
        lines = "".join(f"{name}: {text}\r\n" for name, text in put.headers.items())
        path = f"{self._path}/{quote_from_bytes(put.key, safe='/')}"
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: {self._host}\r\n{lines}"
            f"Content-Length: {len(put.value)}\r\n\r\n"
        )
        return head.encode("latin-1"), put.value

    def _close(self) -> None:
        with ExitStack() as parts:
            for part in (self._socket, self._answers):
                if part is not None:
                    parts.callback(part.close)
        self._socket = self._answers = None


def _answer(file: IO[bytes]) -> tuple[int, str, bool]:
    """
    Return the status of an answer, its first line, and whether the connection ends.

    Raises:
        OSError, ValueError: It is not a complete answer.
    """
    line = file.readline(_LINE_MAX)
    if not line.startswith(b"HTTP/1."):
        raise ConnectionError("the connection was closed" if not line else "not HTTP")
    length, is_last = 0, line.startswith(b"HTTP/1.0")
    while (header := file.readline(_LINE_MAX)) not in {b"\r\n", b""}:
        name, _, text = header.partition(b":")
        name = name.lower()
        if name == b"content-length":
            length = int(text)
        elif name == b"connection":
            is_last = text.strip().lower() == b"close"
    if length > _ANSWER_MAX:
        raise ConnectionError("the answer is too long")
    body = file.read(length)
    if not header or len(body) < length:
        raise ConnectionError("the connection was closed")
    return int(line[9:12]), first_line(body), is_last
