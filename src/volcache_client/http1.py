"""
Exchanges of HTTP/1.1, for values that are read as a whole, and one on an open socket.

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
    from collections.abc import Callable, Generator

    from volcache_client.messages import Request

_RECEIVE_BYTES: Final = 1 << 16
_HEAD_BYTES_MAX: Final = 1 << 16
_JOINED_BYTES_MAX: Final = 1 << 16
_WITHOUT_BODY: Final = frozenset({204, 304})
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_LENGTH_DIGITS_MAX: Final = 18
_END: Final = b"\r\n\r\n"
_NOT_ANSWERED: Final = "disconnected before the answer"


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
    deadline = clock() + timeout
    sock.settimeout(timeout)
    is_sent = _send(sock, request, host)
    receiving = receive(request.method)
    wanted = next(receiving)
    is_first = True
    while True:
        remaining = deadline - clock()
        if remaining <= 0:
            raise TimeoutError("the answer is not complete in time")
        sock.settimeout(remaining)
        try:
            wanted = receiving.send(sock.recv(wanted))
        except StopIteration as stop:
            done: Exchanged = stop.value
            return done if is_sent else Exchanged(done.answer, is_reusable=False)
        except (NotAnsweredError, BadAnswerError):
            raise
        except ConnectionError as error:
            if is_first:
                raise NotAnsweredError(f"{_NOT_ANSWERED}: {error}") from error
            raise
        is_first = False


def head_of(request: Request, host: str) -> bytes:
    """
    Return the head of a request that is sent as a whole.

    Raises:
        TypeError: Its body is an `Upload`.
    """
    lines = [f"{request.method} {request.path} HTTP/1.1\r\nHost: {host}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in request.headers.items()]
    body = request.body
    if isinstance(body, Upload):
        raise TypeError("an upload is not sent as a whole")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1")


def receive(method: str) -> Generator[int, bytes, Exchanged]:
    """
    Read the answer to a request, without I/O.

    It yields how many bytes it would take next, at least 1, and is sent what was received:
    that many, or less, or more; none at the end of the connection.

    Args:
        method: Of the request: an answer to HEAD has no body.

    Returns:
        The answer; the connection is reusable if nothing but the answer was received.

    Raises:
        NotAnsweredError: The connection ended before anything was received.
        BadAnswerError: What was received is not a whole answer.
    """
    first = yield _RECEIVE_BYTES
    if not first:
        raise NotAnsweredError(_NOT_ANSWERED)
    received = _Received(first)
    status, version, headers = yield from _receive_head(received)
    while 100 <= status < 200:  # noqa: PLR2004 - Interim answers.
        status, version, headers = yield from _receive_head(received)
    is_whole = True
    if method == "HEAD" or status in _WITHOUT_BODY:
        body = b""
    elif (encoding := dict.get(headers, "transfer-encoding")) is not None:
        body = yield from _receive_chunks(received, encoding)
    elif (length := dict.get(headers, "content-length")) is not None:
        body = yield from received.exactly(_length(length))
    else:
        is_whole = False
        body = yield from received.to_end()
    is_kept = version == "1.1" and not _closes(headers)
    is_reusable = is_whole and is_kept and not received.is_any
    return Exchanged(Answer(status, headers, body), is_reusable)


def _send(sock: Socket, request: Request, host: str) -> bool:
    """Send a request; return whether all of it was accepted."""
    head = head_of(request, host)
    body: Any = request.body
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
    """Bytes received and not used yet; its generators are parts of `receive`."""

    __slots__ = ("_at", "_buffer")

    def __init__(self, first: bytes) -> None:
        self._buffer = first
        self._at = 0  # What is before was used.

    @property
    def is_any(self) -> bool:
        return len(self._buffer) > self._at

    def until(self, end: bytes, limit: int) -> Generator[int, bytes, bytes]:
        """
        Return the bytes before an end, which is skipped.

        Raises:
            BadAnswerError: They are more than the limit, or the end does not come.
        """
        while True:
            begin = self._at
            at = self._buffer.find(end, begin)
            known = at - begin if at >= 0 else len(self._buffer) - begin - len(end)
            if known > limit:
                raise BadAnswerError(f"a head or line above {limit} bytes")
            if at >= 0:
                self._at = at + len(end)
                return self._buffer[begin:at]
            data = yield _RECEIVE_BYTES
            if not data:
                raise BadAnswerError("closed within the head of the answer")
            self._buffer = self._buffer[begin:] + data
            self._at = 0

    def exactly(self, count: int) -> Generator[int, bytes, bytes]:
        """
        Return a number of bytes.

        Raises:
            BadAnswerError: The connection ended before.
        """
        begin = self._at
        missing = begin + count - len(self._buffer)
        if missing <= 0:
            self._at = begin + count
            return self._buffer[begin : self._at]
        parts = [self._buffer[begin:]]
        while missing > 0:
            data = yield min(missing, _RECEIVE_BYTES)
            if not data:
                raise BadAnswerError(f"closed with {missing} of {count} bytes missing")
            self._buffer, self._at = data, min(missing, len(data))
            parts.append(data if len(data) <= missing else data[:missing])
            missing -= len(data)
        return b"".join(parts)

    def to_end(self) -> Generator[int, bytes, bytes]:
        """Return everything until the connection ends."""
        parts = [self._buffer[self._at :]]
        self._buffer, self._at = b"", 0
        while data := (yield _RECEIVE_BYTES):
            parts.append(data)
        return b"".join(parts)


def _receive_head(
    received: _Received,
) -> Generator[int, bytes, tuple[int, str, Headers]]:
    """
    Return status, version and headers.

    Raises:
        BadAnswerError: It is not a head of HTTP/1.
    """
    head = yield from received.until(_END, _HEAD_BYTES_MAX)
    first, *lines = head.decode("latin-1").split("\r\n")
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


def _receive_chunks(received: _Received, encoding: str) -> Generator[int, bytes, bytes]:
    """
    Return a body that is sent in chunks.

    Raises:
        BadAnswerError: It is not.
    """
    if encoding.lower() != "chunked":
        raise BadAnswerError(f"Transfer-Encoding: {encoding[:80]}")
    parts = []
    while True:
        line = yield from received.until(b"\r\n", _HEAD_BYTES_MAX)
        line = line.partition(b";")[0].strip()
        if not _HEX.fullmatch(line):
            raise BadAnswerError(f"not a chunk: {line[:80]!r}")
        size = int(line, 16)
        if not size:
            break
        parts.append((yield from received.exactly(size)))
        if (yield from received.exactly(2)) != b"\r\n":
            raise BadAnswerError("a chunk without an end")
    while (yield from received.until(b"\r\n", _HEAD_BYTES_MAX)):
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
    if not _is_number(text) or len(text) > _LENGTH_DIGITS_MAX:
        raise BadAnswerError(f"Content-Length: {text[:80]!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
