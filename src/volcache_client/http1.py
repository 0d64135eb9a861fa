"""
Exchanges of HTTP/1.1 without I/O: what requests send, and their answers as they arrive.

Both clients use it. `http.client` parses the head of an answer with the parser of e-mail:
that, with its objects, takes most of the CPU of a small GET. Here a head is checked by one
pattern, and a header is searched when it is asked for. An answer that arrives as a whole,
as most do, is one match.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from volcache_client.errors import (
    NodeConnectionError,
    NodeError,
    NodeTimeoutError,
    ValueTooLargeError,
)
from volcache_client.messages import Answer
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from volcache_client.errors import CacheError
    from volcache_client.messages import Request

# What is received at a time.
RECEIVE_BYTES: Final = 1 << 16
_PART_BYTES: Final = 1 << 18
_HEAD_BYTES_MAX: Final = 1 << 16
_JOINED_BYTES_MAX: Final = 1 << 16
_LENGTH_DIGITS_MAX: Final = 18
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
# An answer that may be taken as a whole: neither 1xx, 204 nor 3xx, with one length, not in
# chunks, and on a connection that is kept.
_LINES: Final = (
    rb"(?:(?!(?i:content-length|transfer-encoding|connection):)[!-9;-~]++:[^\n]*\r\n"
    rb"|(?i:connection:[ \t]*+keep-alive)[ \t]*+\r\n)*+"
)
_match_plain: Final = re.compile(
    rb"HTTP/1\.1 (200|[45][0-9]{2})(?: [^\r\n]*+)?+\r\n"
    + _LINES
    + rb"(?i:content-length):[ \t]*+([0-9]{1,18})[ \t]*+\r\n"
    + _LINES
    + rb"\r\n"
).match
_CHUNK_SIZE: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


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
    def _text(self) -> str:
        return self._head.decode("latin-1")

    @cached_property
    def _lower(self) -> str:
        return self._text.lower()

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - As of dict.
        """Return a header, several ones joined; or the default."""
        wanted = f"\n{name.lower()}:"
        at = self._lower.find(wanted)
        if at < 0:
            return default
        end = self._text.index("\r\n", at)
        value = self._text[at + len(wanted) : end].strip(" \t")
        while (at := self._lower.find(wanted, end)) >= 0:
            end = self._text.index("\r\n", at)
            value += ", " + self._text[at + len(wanted) : end].strip(" \t")
        return value

    def __getitem__(self, name: str) -> str:
        found: str | None = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        lines = self._lower.split("\r\n")[1:]
        return iter(dict.fromkeys(line.partition(":")[0] for line in lines if line))

    def __len__(self) -> int:
        return sum(1 for _ in self)


_NO_HEADERS: Final = Headers()


class HttpExchange:
    """
    Requests in a row and their answers, on a connection that has no other use meanwhile.

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
    _left = 0  # Of a body, or of a chunk.
    _is_chunked = False
    # What parses the next bytes; it returns whether it may go on. None: a new answer.
    _step: Callable[[HttpExchange], bool] | None = None

    def __init__(
        self,
        host: str,
        requests: Sequence[Request],
        limit: int = _ENDLESS,
        *,
        is_whole: bool = True,
    ) -> None:
        """
        Begin.

        Args:
            host: The header.
            requests: If there are several, they are short; none is a HEAD.
            limit: The most bytes of a value.
            is_whole: Whether the answer is read as a whole, not by `read`.
        """
        self.answers: Final[list[Answer]] = []
        self._requests: Final = requests
        self._host: Final = host
        self._limit: Final = limit
        if not is_whole or self.request.method == "HEAD":
            self._step = HttpExchange._parse_head

    @property
    def request(self) -> Request:
        """The first one; its headers have neither `Host` nor a length."""
        return self._requests[0]

    # --- The requests ---------------------------------------------------------------

    def first_part(self) -> bytes:
        """Return the heads, with the bodies of those that are short."""
        parts: list[bytes] = []
        headers, end = None, ""
        for request in self._requests:
            if request.headers is not headers:
                headers = request.headers
                lines = [f"{name}: {headers[name]}\r\n" for name in headers]
                end = f" HTTP/1.1\r\nHost: {self._host}\r\n{''.join(lines)}"
            length, body = "", request.body
            if body is not None:
                size = body.size if isinstance(body, Upload) else len(body)
                length = _CHUNKED if size is None else f"Content-Length: {size}\r\n"
            head = f"{request.method} {request.path}{end}{length}\r\n"
            parts.append(head.encode("latin-1"))
            if body and is_short(request):
                parts.append(body)  # type: ignore[arg-type] # No Upload.
        return b"".join(parts) if len(parts) > 1 else parts[0]

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
            if not self.status or self._left != _ENDLESS:
                where = "within" if self.has_received else "before"
                raise BadAnswerError(f"disconnected {where} the answer")
            self._end()
            return
        if self._at < len(self._received):
            data = self._received[self._at :] + data
        self._received, self._at = data, 0
        while not self.is_complete and (self._step or HttpExchange._parse_answer)(self):
            pass

    def _parse_answer(self) -> bool:
        """Begin an answer, or take it if it is there as a whole."""
        data = self._received
        if self._at == len(data):
            return False
        if not self.has_received and self._take_plain(data):
            return self._at < len(data)
        return self._parse_head()

    def _take_plain(self, data: bytes) -> bool:
        """Take an answer if it is there as a whole, and its head is an ordinary one."""
        found = _match_plain(data, self._at)
        if found is None:
            return False
        size, begin = int(found[2]), found.end()
        end = begin + size
        if size > self._limit or end > len(data):
            return False
        self._at = end
        headers, body = Headers(found[0]), data[begin:end]
        self.answers.append(Answer(int(found[1]), headers, body))
        self.is_complete = len(self.answers) == len(self._requests)
        return True

    def _end(self) -> None:
        """End an answer that was received in parts."""
        if len(self._requests) == 1:  # What of its body was not read stays here.
            self.is_complete = True
            return
        if not self.has_end:
            raise BadAnswerError("an answer of unknown length")
        self.answers.append(self.answer())
        self.is_complete = self._is_last or len(self.answers) == len(self._requests)
        self._step, self._is_chunked = None, False
        self.status, self.has_received = 0, False

    def has(self, count: int) -> bool:
        """Whether the head and so many bytes of the body are received, or all of it."""
        if self.is_complete:
            return True
        if not self.status or len(self._requests) > 1:
            return False
        wanted = count if self.status == _OK else min(count, _TEXT_BYTES_MAX)
        return self.buffered >= wanted

    def read(self, size: int | None = None) -> bytes:
        """Return up to `size` bytes of the body that were received, and forget them."""
        if size is None or size >= self.buffered:
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
        return self.is_sent and is_in_step and not self._is_last

    @property
    def has_end(self) -> bool:
        """Whether it would be noticed that a value is not complete."""
        is_value = self.status == _OK and self.request.method == "GET"
        return not is_value or self._left != _ENDLESS

    def is_stale(self, error: OSError) -> bool:
        """
        Whether a request may be sent again after an error, on a new connection.

        A server may close a connection that was open from before at the moment at which it
        is used.
        """
        is_broken = isinstance(error, ConnectionError | ssl.SSLError)
        return is_broken and not self.has_received and self.request.is_repeatable

    # --- Steps of the parser --------------------------------------------------------

    def _parse_head(self) -> bool:
        self.has_received = True
        head = self._line(b"\r\n\r\n")
        if head is None:
            return False
        head += b"\r\n\r\n"
        found = _HEAD.fullmatch(head)
        if not found:
            raise BadAnswerError(f"not an answer of HTTP/1: {head[:80]!r}")
        status = int(found[2])
        if 100 <= status < 200:  # noqa: PLR2004 - Another head follows.
            return True
        self.headers = headers = Headers(head)
        self._body: deque[bytes | bytearray | memoryview] = deque()
        closes = "close" in headers.get("Connection", "").lower()
        self._is_last = closes or found[1] == b"1.0"
        is_empty = self.request.method == "HEAD" or status in _WITHOUT_BODY
        if not is_empty:
            self._begin_body(headers.get("Transfer-Encoding"), headers)
        self.status = status  # Of an answer that is none, it is not known.
        if is_empty:
            self._end()
        return True

    def _begin_body(self, encoding: str | None, headers: Headers) -> None:
        length = headers.get("Content-Length")
        self._step = HttpExchange._parse_body
        if encoding is not None:
            if encoding.lower() != "chunked":
                raise BadAnswerError(f"Transfer-Encoding: {encoding[:80]}")
            self._is_chunked = True
            self._step = HttpExchange._parse_chunk
        elif length is None:
            self._is_last = True
            self._left = _ENDLESS
        elif _is_number(length):
            self._left = int(length)
            if self._left > self._limit:
                raise ValueSizeError(self._limit)
        else:
            raise BadAnswerError(f"Content-Length: {length[:80]!r}")

    def _parse_body(self) -> bool:
        part = self._received[self._at : self._at + self._left]
        self._at += len(part)
        if part:
            self._keep(part)
        if self._left != _ENDLESS:
            self._left -= len(part)
        if self._left:
            return False
        self._step = HttpExchange._parse_chunk_end
        if not self._is_chunked:
            self._end()
        return True

    def _keep(self, part: bytes) -> None:
        """Keep a part of the body; short chunks as one, which takes less."""
        self.buffered += len(part)
        if self.buffered > self._limit:
            raise ValueSizeError(self._limit)
        last = self._body[-1] if self._body else None
        if isinstance(last, bytearray) and len(last) < _PART_BYTES:
            last += part
        else:
            self._body.append(bytearray(part) if self._is_chunked else part)

    def _parse_chunk(self) -> bool:
        line = self._line(b"\r\n")
        if line is None:
            return False
        found = _CHUNK_SIZE.fullmatch(line)
        if not found:
            raise BadAnswerError(f"not a chunk: {line[:80]!r}")
        self._left = int(found[1], 16)
        is_last = not self._left
        self._step = (
            HttpExchange._parse_trailer if is_last else HttpExchange._parse_body
        )
        return True

    def _parse_chunk_end(self) -> bool:
        line = self._line(b"\r\n")
        if line:
            raise BadAnswerError("a chunk without an end")
        self._step = HttpExchange._parse_chunk if line is not None else self._step
        return line is not None

    def _parse_trailer(self) -> bool:
        line = self._line(b"\r\n")
        if line == b"":
            self._end()
        return line is not None

    def _line(self, end: bytes) -> bytes | None:
        """Return the bytes before an end, which is skipped; None: it is not there yet."""
        begin = self._at
        at = self._received.find(end, begin)
        known = at - begin if at >= 0 else len(self._received) - begin - len(end)
        if known > _HEAD_BYTES_MAX:
            raise BadAnswerError(f"a head or line above {_HEAD_BYTES_MAX} bytes")
        if at < 0:
            return None
        self._at = at + len(end)
        return self._received[begin:at]


def is_short(request: Request) -> bool:
    """Whether the body is sent with the head."""
    body = request.body
    if body is None or isinstance(body, Upload):
        return body is None
    return len(body) <= _JOINED_BYTES_MAX


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS_MAX


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
