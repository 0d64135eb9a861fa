"""
One exchange of HTTP/1.1 on an open socket, for values that are read as a whole.

urllib3 and http.client parse the head of an answer with the parser of e-mail: that, with
their objects around it, takes most of the CPU of a small GET. Here it is split at the ends
of its lines. Connecting, TLS and streams are not done here.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from volcache_client.messages import Answer
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache_client.messages import Request

_RECEIVE_BYTES: Final = 1 << 16
_HEAD_BYTES_MAX: Final = 1 << 16
_JOINED_BYTES_MAX: Final = 1 << 16
_WITHOUT_BODY: Final = frozenset({204, 304})
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_END: Final = b"\r\n\r\n"


class Socket(Protocol):
    """What is used of a socket, plain or of TLS."""

    def settimeout(self, seconds: float, /) -> None:
        """Limit each of the following calls."""

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""

    def recv(self, count: int, /) -> bytes:
        """Receive some bytes; none at the end."""


class NotAnsweredError(ConnectionError):
    """
    The connection ended before the first byte of an answer.

    If it was open from before, the server may have closed it meanwhile: a request that is
    repeatable may be sent again on another connection.
    """


class BadAnswerError(ConnectionError):
    """What was received is not an answer of HTTP/1.1, or not all of one."""


class Headers(dict[str, str]):
    """Headers by name in lower case; `get`, `[]` and `in` take any case."""

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - As of dict.
        """Return a header, or the default."""
        return super().get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())


class Exchanged(NamedTuple):
    """
    The end of an exchange.

    Attributes:
        answer: All of it.
        is_reusable: Whether another request may be sent on the connection.
    """

    answer: Answer
    is_reusable: bool


def exchange(
    sock: Socket,
    request: Request,
    host: str,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> Exchanged:
    """
    Send a request and receive its answer.

    After any error the connection must be closed.

    Args:
        sock: Connected; its timeout is changed.
        request: Its headers have neither `Host` nor `Content-Length`.
        host: The header `Host`.
        timeout: For all of it, seconds.
        clock: Seconds, monotonic.

    Raises:
        TimeoutError: It took longer.
        NotAnsweredError: The connection ended before anything was received.
        BadAnswerError: What was received is not a whole answer.
        OSError: As of the socket.
    """
    received = _Received(sock, clock() + timeout, clock)
    sock.settimeout(timeout)
    is_sent = _send(sock, request, host)
    status, version, headers = _receive_head(received)
    while 100 <= status < 200:  # noqa: PLR2004 - Interim answers.
        status, version, headers = _receive_head(received)
    is_whole = True
    if request.method == "HEAD" or status in _WITHOUT_BODY:
        body = b""
    elif "transfer-encoding" in headers:
        body = _receive_chunks(received, headers)
    elif "content-length" in headers:
        body = received.exactly(_length(headers["content-length"]))
    else:
        is_whole = False
        body = received.to_end()
    is_kept = version == "1.1" and not _closes(headers)
    answer = Answer(status, headers, body)
    is_reusable = is_sent and is_whole and is_kept and not received.buffer
    return Exchanged(answer, is_reusable)


def _send(sock: Socket, request: Request, host: str) -> bool:
    """Send a request; return whether all of it was accepted."""
    lines = [f"{request.method} {request.path} HTTP/1.1\r\nHost: {host}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in request.headers.items()]
    body = request.body
    if isinstance(body, Upload):
        raise TypeError("an upload is not sent as a whole")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}\r\n")
    lines.append("\r\n")
    head = "".join(lines).encode("latin-1")
    try:
        if not body:
            sock.sendall(head)
        elif len(body) <= _JOINED_BYTES_MAX:
            sock.sendall(head + body)
        else:
            sock.sendall(head)
            sock.sendall(body)
    except (BrokenPipeError, ConnectionResetError):
        # A server may refuse a body before it has all of it, answer, and close.
        return False
    return True


class _Received:
    """Bytes received and not used yet."""

    __slots__ = ("_clock", "_deadline", "_is_first", "_sock", "buffer")

    def __init__(
        self, sock: Socket, deadline: float, clock: Callable[[], float]
    ) -> None:
        self.buffer = b""
        self._sock = sock
        self._deadline = deadline
        self._clock = clock
        self._is_first = True

    def more(self, count: int = _RECEIVE_BYTES) -> bytes:
        """
        Receive up to some bytes; none at the end.

        Raises:
            TimeoutError: There are none before the deadline.
            NotAnsweredError: The connection ended before the first byte.
            OSError: As of the socket.
        """
        remaining = self._deadline - self._clock()
        if remaining <= 0:
            raise TimeoutError("the answer is not complete in time")
        self._sock.settimeout(remaining)
        try:
            data = self._sock.recv(count)
        except ConnectionError as error:
            if self._is_first:
                raise NotAnsweredError(f"closed before the answer: {error}") from error
            raise
        if data:
            self._is_first = False
        elif self._is_first:
            raise NotAnsweredError("closed before the answer")
        return data

    def until(self, end: bytes, limit: int) -> bytes:
        """
        Return the bytes before an end, which is skipped.

        Raises:
            BadAnswerError: It does not come within the limit.
        """
        while (at := self.buffer.find(end)) < 0:
            if len(self.buffer) > limit:
                raise BadAnswerError(f"a head or line above {limit} bytes")
            data = self.more()
            if not data:
                raise BadAnswerError("closed within the head of the answer")
            self.buffer += data
        found = self.buffer[:at]
        self.buffer = self.buffer[at + len(end) :]
        return found

    def exactly(self, count: int) -> bytes:
        """
        Return a number of bytes.

        Raises:
            BadAnswerError: The connection ended before.
        """
        missing = count - len(self.buffer)
        if missing <= 0:
            found, self.buffer = self.buffer[:count], self.buffer[count:]
            return found
        parts = [self.buffer]
        self.buffer = b""
        while missing:
            data = self.more(min(missing, _RECEIVE_BYTES))
            if not data:
                raise BadAnswerError(f"closed with {missing} of {count} bytes missing")
            missing -= len(data)
            parts.append(data)
        return b"".join(parts)

    def to_end(self) -> bytes:
        """Return everything until the connection ends."""
        parts = [self.buffer]
        self.buffer = b""
        while data := self.more():
            parts.append(data)
        return b"".join(parts)


def _receive_head(received: _Received) -> tuple[int, str, Headers]:
    """
    Return status, version and headers.

    Raises:
        BadAnswerError: It is not a head of HTTP/1.
    """
    first, *lines = (
        received.until(_END, _HEAD_BYTES_MAX).decode("latin-1").split("\r\n")
    )
    words = first.split(" ", 2)
    protocol, _, version = words[0].partition("/")
    is_head = len(words) > 1 and protocol == "HTTP" and version in {"1.0", "1.1"}
    if not is_head or len(words[1]) != 3 or not _is_number(words[1]):  # noqa: PLR2004
        raise BadAnswerError(f"not an answer of HTTP/1: {first[:80]!r}")
    headers = Headers()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadAnswerError(f"not a header: {line[:80]!r}")
        name = name.lower()
        value = value.strip(" \t")
        before = dict.get(headers, name)
        headers[name] = value if before is None else f"{before}, {value}"
    return int(words[1]), version, headers


def _receive_chunks(received: _Received, headers: Headers) -> bytes:
    """
    Return a body that is sent in chunks.

    Raises:
        BadAnswerError: It is not.
    """
    if headers["transfer-encoding"].lower() != "chunked":
        raise BadAnswerError(f"Transfer-Encoding: {headers['transfer-encoding'][:80]}")
    parts = []
    while True:
        line = received.until(b"\r\n", _HEAD_BYTES_MAX).partition(b";")[0].strip()
        if not _HEX.fullmatch(line):
            raise BadAnswerError(f"not a chunk: {line[:80]!r}")
        size = int(line, 16)
        if not size:
            break
        parts.append(received.exactly(size))
        if received.exactly(2) != b"\r\n":
            raise BadAnswerError("a chunk without an end")
    while received.until(b"\r\n", _HEAD_BYTES_MAX):
        pass  # Trailers.
    return b"".join(parts)


def _closes(headers: Headers) -> bool:
    return "close" in headers.get("connection", "").lower()


def _length(text: str) -> int:
    """
    Return a Content-Length.

    Raises:
        BadAnswerError: It is not a number.
    """
    if not _is_number(text):
        raise BadAnswerError(f"Content-Length: {text[:80]!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
