"""
Exchanges of HTTP/1.1 without I/O: what requests send, and their answers as they arrive.

Both clients use it. `http.client` parses the head of an answer with the parser of e-mail:
that, with its objects, takes most of the CPU of a small GET. Here a header is searched when
it is asked for, and an answer that arrives as a whole, as most do, is taken at once.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections import defaultdict, deque
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from volcache_client.errors import (
    NodeConnectionError,
    NodeError,
    NodeTimeoutError,
    ValueTooLargeError,
)
from volcache_client.headers import number_in
from volcache_client.messages import Answer
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from volcache_client.errors import CacheError
    from volcache_client.messages import Request

# What is received at a time.
RECEIVE_BYTES: Final = 1 << 16
_PART_BYTES: Final = 1 << 18
_SHORT_BYTES: Final = 1 << 12
_HEAD_BYTES_MAX: Final = 1 << 16
_JOINED_BYTES_MAX: Final = 1 << 16
_ENDLESS: Final = sys.maxsize
_OK: Final = 200
# Of an answer that is not a value: a line of text. Its end is not waited for.
_TEXT_BYTES_MAX: Final = 64 << 10
_CHUNKED: Final = "Transfer-Encoding: chunked\r\n"
_WITHOUT_BODY: Final = frozenset({204, 304})
# Version, status and lines of headers.
_HEAD: Final = re.compile(
    rb"HTTP/(1\.[01]) ([0-9]{3})(?: [^\r\n]*)?\r\n((?:[!-9;-~]+:[^\n]*\r\n)*)\r\n"
)
# Of answers that are taken as a whole, in lower case.
_PLAIN: Final = {b"http/1.1 %d " % status: status for status in (200, 404, 412)}
_length_in: Final = re.compile(
    rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)"
).search
_CHUNK_SIZE: Final = re.compile(
    rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\r\n", re.DOTALL
)


class BadAnswerError(ConnectionError):
    """What was received is not an answer of HTTP/1.1, or not all of one."""


class ValueSizeError(BadAnswerError):
    """A value is longer than the client reads; the connection is of no more use."""


class Headers(Mapping[str, str]):
    """Headers of an answer, by name in any case; what is not asked for is not parsed."""

    def __init__(self, head: bytes = b"") -> None:
        """Take a head that was checked."""
        self._head: Final = head

    @cached_property
    def _found(self) -> dict[str, str]:
        lists: defaultdict[str, list[str]] = defaultdict(list)
        for line in self._head.decode("latin-1").split("\r\n")[1:]:
            name, colon, value = line.partition(":")
            if colon:
                lists[name.lower()].append(value.strip(" \t"))
        return {name: ", ".join(values) for name, values in lists.items()}

    def __getitem__(self, name: str) -> str:
        return self._found[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


_NO_HEADERS: Final = Headers()


class Host:
    """The header `Host` of requests, and what their heads end with."""

    def __init__(self, name: str) -> None:
        """Take the header."""
        self._name: Final = name
        self._last: tuple[Mapping[str, str], str] = ({}, "")

    def end_of(self, headers: Mapping[str, str]) -> str:
        """Return what follows the path; those of most requests are the same object."""
        last, end = self._last
        if headers is not last:
            lines = "".join([f"{name}: {headers[name]}\r\n" for name in headers])
            end = f" HTTP/1.1\r\nHost: {self._name}\r\n{lines}"
            self._last = headers, end
        return end


class HttpExchange:
    """
    Requests in a row and their answers, on a connection that has no other use meanwhile.

    It may be sent again on another connection while nothing was received.

    Attributes:
        answers: Those that are complete, in the order of the requests.
        is_sent: Whether all of the requests was sent; set by who sends them.
        status: Of the answer that is being received; 0 until its head is.
        headers: Of that answer.
        has_received: Whether anything of that answer was received.
        is_complete: Whether no more answers come.
        buffered: Bytes of its body that were received and not read.
    """

    is_sent = False
    is_complete = False
    has_received = False
    status = 0
    headers = _NO_HEADERS
    buffered = 0
    # Bytes that were received and not parsed begin at `_at`.
    _received = b""
    _at = 0
    _is_last = False  # Whether the connection ends after this answer.
    _is_endless = False  # Whether the end of the connection is that of the answer.
    # Of the answer that is being received: None is yielded when more of it is needed.
    _parser: Iterator[None] | None = None

    def __init__(
        self,
        host: Host,
        requests: Sequence[Request],
        limit: int = _ENDLESS,
        *,
        is_whole: bool = True,
    ) -> None:
        """
        Begin.

        Args:
            host: Of the requests.
            requests: If there are several, they are short; none is a HEAD.
            limit: The most bytes of a value.
            is_whole: Whether the answer is read as a whole, not by `read`.
        """
        self.answers: Final[list[Answer]] = []
        self._requests: Final = requests
        self._host: Final = host
        self._limit: Final = limit
        self._is_whole: Final = is_whole
        if not is_whole or requests[0].method == "HEAD":
            self._parser = self._parse()

    # --- The requests ---------------------------------------------------------------

    @property
    def request(self) -> Request:
        """The first one; its headers have neither `Host` nor a length."""
        return self._requests[0]

    def first_part(self) -> bytes:
        """Return the heads, with the bodies of those that are short."""
        parts: list[bytes] = []
        for request in self._requests:
            method, path, headers, body, _ = request
            end = self._host.end_of(headers)
            if body is None:
                parts.append(f"{method} {path}{end}\r\n".encode("latin-1"))
                continue
            size = body.size if isinstance(body, Upload) else len(body)
            length = _CHUNKED if size is None else f"Content-Length: {size}\r\n"
            parts.append(f"{method} {path}{end}{length}\r\n".encode("latin-1"))
            if is_short(request):
                parts.append(body)  # type: ignore[arg-type] # No Upload.
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def is_by_part(self) -> bool:
        """Whether each part that is sent has the whole timeout."""
        return isinstance(self.request.body, Upload)

    def more_parts(self) -> Iterator[bytes | memoryview]:
        """
        Yield the rest of a request that is not short.

        Raises:
            SourceFailed: The file of an `Upload` failed.
        """
        body = self.request.body
        if isinstance(body, Upload):
            if body.size is None:
                for block in body.blocks():
                    yield b"%x\r\n%b\r\n" % (len(block), block)
                yield b"0\r\n\r\n"
            else:
                yield from body.blocks()
        elif body is not None and not is_short(self.request):
            view = memoryview(body)
            for begin in range(0, len(view), _PART_BYTES):
                yield view[begin : begin + _PART_BYTES]

    # --- The answers ----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """
        Parse a part of the answers; none: the end of the connection.

        Raises:
            BadAnswerError: It is not an answer, or the connection ended before its end.
        """
        if not data:
            if not self._is_endless:
                where = "within" if self.has_received else "before"
                raise BadAnswerError(f"disconnected {where} the answer")
            self._end()
            return
        if self._at < len(self._received):
            data = self._received[self._at :] + data
        self._received, self._at = data, 0
        while not self.is_complete:
            if self._parser is None:
                if self._take_plain(data):
                    continue
                self._parser = self._parse()
            if self._at == len(data) or not next(self._parser, True):
                return
            self._end()

    def _take_plain(self, data: bytes) -> bool:
        """Take an answer if it is there as a whole, and its head is an ordinary one."""
        end = data.find(b"\r\n\r\n", self._at)
        head = data[self._at : end + 2]
        lower = head.lower()
        status = _PLAIN.get(lower[:13])
        found = _length_in(lower)
        if (
            status is None
            or found is None
            or end < 0
            # With `in`, an error that they are no numbers is made and dropped.
            or lower.find(b"content-length", found.end()) >= 0
            or lower.find(b"transfer-encoding") >= 0
            or lower.find(b"close") >= 0
        ):
            return False
        begin, size = end + 4, int(found[1])
        end = begin + size
        if size > self._limit or end > len(data):
            return False
        self._at = end
        self.answers.append(Answer(status, Headers(head), data[begin:end]))
        self.is_complete = len(self.answers) == len(self._requests)
        return True

    def _end(self) -> None:
        """End an answer that was received in parts."""
        if not self._is_whole:  # What of its body was not read stays here.
            self.is_complete = True
            return
        is_value = self.status == _OK and self.request.method == "GET"
        if is_value and self._is_endless:  # It may have lost its end.
            raise BadAnswerError("an answer of unknown length")
        self.answers.append(self.answer())
        self.is_complete = self._is_last or len(self.answers) == len(self._requests)
        self.status, self.has_received, self._parser = 0, False, None

    def has(self, count: int) -> bool:
        """Whether the head and so many bytes of the body are received, or all of it."""
        if self.is_complete:
            return True
        if not self.status or len(self._requests) > 1:
            return False
        wanted = count if self.status == _OK else min(count, _TEXT_BYTES_MAX)
        return self.buffered >= wanted

    def read(self, size: int = _ENDLESS) -> bytes:
        """Return up to `size` bytes of the body that were received, and forget them."""
        if size >= self.buffered:
            found = b"".join(self._body)
            self._body.clear()
        else:
            parts = []
            while size:
                part = memoryview(self._body.popleft())
                if len(part) > size:
                    self._body.appendleft(part[size:])
                parts.append(part[:size])
                size -= len(parts[-1])
            found = b"".join(parts)
        self.buffered -= len(found)
        return found

    def answer(self) -> Answer:
        """Return the answer with what was received of its body; a redirect is named."""
        if self.answers and not self.status:
            return self.answers[0]
        body = self.read()
        if 300 <= self.status < 400 and "Location" in self.headers:  # noqa: PLR2004
            body = f"redirect to {self.headers['Location']}".encode()
        return Answer(self.status, self.headers, body)

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent on the connection."""
        is_in_step = self.is_complete and self._at == len(self._received)
        return is_in_step and self.is_sent and not self._is_last

    def is_stale(self, error: OSError) -> bool:
        """
        Whether a request may be sent again after an error, on a new connection.

        A server may close a connection that was open from before at the moment at which it
        is used.
        """
        is_broken = isinstance(error, ConnectionError | ssl.SSLError)
        return is_broken and not self.has_received and self.request.is_repeatable

    # --- The parser of an answer that arrives in parts --------------------------------

    def _parse(self) -> Iterator[None]:
        self.has_received = True
        version, status = b"", 100
        while 100 <= status < 200:  # noqa: PLR2004 - Another head follows.
            head = yield from self._until(b"\r\n\r\n")
            found = _HEAD.fullmatch(head)
            if not found:
                raise BadAnswerError(f"not an answer of HTTP/1: {head[:80]!r}")
            version, status = found[1], int(found[2])
            self.headers = Headers(head)
        self._body: deque[bytes | bytearray | memoryview] = deque()
        closes = "close" in self.headers.get("Connection", "").lower()
        self._is_last = closes or version == b"1.0"
        if self.request.method == "HEAD" or status in _WITHOUT_BODY:
            self.status = status
            return
        is_chunked, size = self._length()
        self.status = status  # Of an answer that is none, it is not known.
        yield from self._parse_chunks() if is_chunked else self._parse_body(size)

    def _length(self) -> tuple[bool, int | None]:
        """Return whether the body is sent in chunks, and its size if that is known."""
        encoding = self.headers.get("Transfer-Encoding")
        length = self.headers.get("Content-Length")
        if encoding is not None:
            if encoding.lower() != "chunked":
                raise BadAnswerError(f"Transfer-Encoding: {encoding[:80]}")
            return True, None
        if length is None:
            self._is_last = self._is_endless = True
            return False, None
        size = number_in(length)
        if size is None:
            raise BadAnswerError(f"Content-Length: {length[:80]!r}")
        return False, size

    def _parse_body(self, left: int | None) -> Iterator[None]:
        """Keep so many bytes of the body; None: all until the end of the connection."""
        if left is not None and self.buffered + left > self._limit:
            raise ValueSizeError(self._limit)
        while left != 0:
            end = None if left is None else self._at + left
            part = self._received[self._at : end]
            self._at += len(part)
            if part:
                self._keep(part)
            left = None if left is None else left - len(part)
            if left != 0:
                yield

    def _keep(self, part: bytes) -> None:
        """Keep a part of the body; short ones as one, which takes less."""
        self.buffered += len(part)
        if self.buffered > self._limit:
            raise ValueSizeError(self._limit)
        if len(part) >= _SHORT_BYTES:
            self._body.append(part)
        elif self._body and isinstance(self._body[-1], bytearray):
            self._body[-1] += part
        else:
            self._body.append(bytearray(part))

    def _parse_chunks(self) -> Iterator[None]:
        size = -1
        while size:
            line = yield from self._until(b"\r\n")
            found = _CHUNK_SIZE.fullmatch(line)
            if not found:
                raise BadAnswerError(f"not a chunk: {line[:80]!r}")
            size = int(found[1], 16)
            yield from self._parse_body(size)
            if size and (yield from self._until(b"\r\n")) != b"\r\n":
                raise BadAnswerError("a chunk without an end")
        while (yield from self._until(b"\r\n")) != b"\r\n":  # Trailers.
            pass

    def _until(self, end: bytes) -> Generator[None, None, bytes]:
        """Return the bytes that end so, when they are there."""
        while True:
            begin = self._at
            at = self._received.find(end, begin)
            known = (at if at >= 0 else len(self._received) - len(end)) - begin
            if known > _HEAD_BYTES_MAX:
                raise BadAnswerError(f"a head or line above {_HEAD_BYTES_MAX} bytes")
            if at >= 0:
                self._at = at + len(end)
                return self._received[begin : self._at]
            yield


def is_short(request: Request) -> bool:
    """Whether the body is sent with the head."""
    body = request.body
    if body is None or isinstance(body, Upload):
        return body is None
    return len(body) <= _JOINED_BYTES_MAX


def answer_error(node: str, error: Exception) -> CacheError:
    """Return the error of the client for an exchange with a node that failed."""
    if isinstance(error, ValueSizeError):
        return ValueTooLargeError(
            f"{node}: the value is longer than max_value_size, {error.args[0]} bytes"
        )
    if isinstance(error, TimeoutError):
        return NodeTimeoutError(node, "no answer in time")
    return NodeConnectionError(node, str(error) or type(error).__name__)


def connect_error(node: str, error: Exception) -> NodeError:
    """Return the error of the client for a connection to a node that was not opened."""
    if isinstance(error, TimeoutError):
        return NodeTimeoutError(node, "no connection in time")
    reason = getattr(error, "strerror", None) or error
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"the certificate is not accepted: {error.verify_message}"
    return NodeConnectionError(node, f"cannot connect: {reason}")
