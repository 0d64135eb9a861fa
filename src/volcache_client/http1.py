"""
One exchange of HTTP/1.1, without I/O: what a request sends, and its answer as it arrives.

Both clients use it, for values as a whole and in parts. `http.client` parses the head of an
answer with the parser of e-mail: that, with its objects, takes most of the CPU of a small
GET. Here it is split at the ends of its lines.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from volcache_client.errors import NodeConnectionError, NodeError, NodeTimeoutError
from volcache_client.messages import Answer
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from volcache_client.messages import Request

    # Of the parser: it yields when it needs more bytes, and is sent them.
    _Step = Generator[None, bytes, None]

# What is received at a time.
RECEIVE_BYTES: Final = 1 << 16
# Of an answer that is not a value: a line of text.
TEXT_BYTES_MAX: Final = 64 << 10
_PART_BYTES: Final = 1 << 18
_HEAD_BYTES_MAX: Final = 1 << 16
_JOINED_BYTES_MAX: Final = 1 << 16
_LENGTH_DIGITS_MAX: Final = 18
_CHUNKED: Final = "Transfer-Encoding: chunked\r\n"
_WITHOUT_BODY: Final = frozenset({204, 304})
_FIRST_LINE: Final = re.compile(r"HTTP/(1\.[01]) ([0-9]{3})(?: .*)?")
_HEADER: Final = re.compile(r"^([!-9;-~]+):[ \t]*(.*)\r$", re.MULTILINE)
_CHUNK_SIZE: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


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


class HttpExchange:
    """
    A request and its answer, on a connection that is used for nothing else meanwhile.

    Attributes:
        request: Its headers have neither `Host` nor a length.
        is_sent: Whether all of the request was sent; set by who sends it.
        status: Of the answer; 0 until its head is received.
        headers: Of the answer.
        has_received: Whether anything was received.
        is_complete: Whether the answer is.
        buffered: Bytes of the body that were received and not read.
    """

    def __init__(self, request: Request, host: str) -> None:
        """Begin; `host` is the header."""
        self.request: Final = request
        self._host: Final = host
        self.is_sent = False
        self.status = 0
        self.headers = Headers()
        self.has_received = False
        self.is_complete = False
        self.buffered = 0
        self._body: Final[deque[bytes | memoryview]] = deque()
        self._is_last = True
        # Bytes that were received and not parsed begin at `_at`.
        self._received = b""
        self._at = 0
        self._steps: Final = self._parse()
        next(self._steps)

    # --- The request ----------------------------------------------------------------

    def first_part(self) -> bytes:
        """Return the head, with the body if that is short."""
        request = self.request
        lines = [
            f"{request.method} {request.path} HTTP/1.1\r\nHost: {self._host}\r\n",
            *[f"{name}: {value}\r\n" for name, value in request.headers.items()],
        ]
        body = request.body
        if body is not None:
            size = body.size if isinstance(body, Upload) else len(body)
            is_known = size is not None
            lines.append(f"Content-Length: {size}\r\n" if is_known else _CHUNKED)
        head = f"{''.join(lines)}\r\n".encode("latin-1")
        return head + body if isinstance(body, bytes) and self.is_short else head

    @property
    def is_short(self) -> bool:
        """Whether the first part is all of the request."""
        body = self.request.body
        if body is None or isinstance(body, Upload):
            return body is None
        return len(body) <= _JOINED_BYTES_MAX

    def more_parts(self) -> Iterator[bytes | memoryview]:
        """
        Yield the rest of the request.

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
        elif body is not None and not self.is_short:
            view = memoryview(body)
            for begin in range(0, len(view), _PART_BYTES):
                yield view[begin : begin + _PART_BYTES]

    # --- The answer -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """
        Parse a part of the answer; none: the end of the connection.

        Raises:
            BadAnswerError: It is not an answer, or the connection ended before its end.
        """
        try:
            self._steps.send(data)
        except StopIteration:
            self.is_complete = True

    def has(self, count: int) -> bool:
        """Whether the head and so many bytes of the body are received, or all of it."""
        is_enough = self.status and self.buffered >= count
        return self.is_complete or bool(is_enough)

    def read(self, size: int | None = None) -> bytes:
        """Return up to `size` bytes of the body that were received, and forget them."""
        left = sys.maxsize if size is None else size
        parts = []
        while left and self._body:
            part = self._body.popleft()
            if len(part) > left:
                view = memoryview(part)
                self._body.appendleft(view[left:])
                part = view[:left]
            left -= len(part)
            parts.append(part)
        found = b"".join(parts)
        self.buffered -= len(found)
        return found

    def answer(self) -> Answer:
        """Return the answer with what was received of its body; a redirect is named."""
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
    def has_length(self) -> bool:
        """Whether a body that is cut short is noticed."""
        names = self.headers.keys()
        return "content-length" in names or "transfer-encoding" in names

    # --- Steps of the parser --------------------------------------------------------

    def _parse(self) -> _Step:
        """Parse an answer; that of HTTP/1.0, or to the end, is the last."""
        yield from self._head()
        headers = self.headers
        length = dict.get(headers, "content-length")
        if self.request.method == "HEAD" or self.status in _WITHOUT_BODY:
            return
        if "transfer-encoding" in headers:
            yield from self._chunks(headers["transfer-encoding"])
        elif length is None:
            self._is_last = True
            yield from self._to_end()
        elif _is_number(length):
            yield from self._exactly(int(length))
        else:
            raise BadAnswerError(f"Content-Length: {length[:80]!r}")

    def _head(self) -> _Step:
        while True:
            head = (yield from self._until(b"\r\n\r\n")).decode("latin-1")
            first, _, rest = f"{head}\r\n".partition("\r\n")
            found = _FIRST_LINE.fullmatch(first)
            if not found:
                raise BadAnswerError(f"not an answer of HTTP/1: {first[:80]!r}")
            status = int(found[2])
            if 100 <= status < 200:  # noqa: PLR2004 - Another head follows.
                continue
            self.headers = _headers(rest)
            closes = "close" in dict.get(self.headers, "connection", "").lower()
            self._is_last = closes or found[1] == "1.0"
            self.status = status
            return

    def _chunks(self, encoding: str) -> _Step:
        if encoding.lower() != "chunked":
            raise BadAnswerError(f"Transfer-Encoding: {encoding[:80]}")
        while True:
            line = yield from self._until(b"\r\n")
            found = _CHUNK_SIZE.fullmatch(line)
            if not found:
                raise BadAnswerError(f"not a chunk: {line[:80]!r}")
            size = int(found[1], 16)
            if not size:
                break
            yield from self._exactly(size)
            if (yield from self._until(b"\r\n")):
                raise BadAnswerError("a chunk without an end")
        while (yield from self._until(b"\r\n")):
            pass  # Trailers.

    def _exactly(self, count: int) -> _Step:
        while count:
            if self._at == len(self._received):
                self._received, self._at = (yield from self._more()), 0
            part = self._received[self._at : self._at + count]
            self._at += len(part)
            count -= len(part)
            self._keep(part)

    def _to_end(self) -> _Step:
        self._keep(self._received[self._at :])
        self._received, self._at = b"", 0
        while data := (yield):
            self._keep(data)

    def _keep(self, part: bytes) -> None:
        if part:
            self._body.append(part)
            self.buffered += len(part)

    def _until(self, end: bytes) -> Generator[None, bytes, bytes]:
        """Return the bytes before an end, which is skipped."""
        while True:
            begin = self._at
            at = self._received.find(end, begin)
            known = at - begin if at >= 0 else len(self._received) - begin - len(end)
            if known > _HEAD_BYTES_MAX:
                raise BadAnswerError(f"a head or line above {_HEAD_BYTES_MAX} bytes")
            if at >= 0:
                self._at = at + len(end)
                return self._received[begin:at]
            data = yield from self._more()
            self._received, self._at = self._received[begin:] + data, 0

    def _more(self) -> Generator[None, bytes, bytes]:
        data = yield
        if not data:
            where = "within" if self.has_received else "before"
            raise BadAnswerError(f"disconnected {where} the answer")
        self.has_received = True
        return data


def _headers(text: str) -> Headers:
    pairs = _HEADER.findall(text)
    if len(pairs) != text.count("\n"):
        raise BadAnswerError(f"not headers: {text[:80]!r}")
    headers = Headers()
    for written, padded in pairs:
        name, value = written.lower(), padded.rstrip(" \t")
        before = dict.get(headers, name)
        headers[name] = value if before is None else f"{before}, {value}"
    return headers


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS_MAX


def answer_error(node: str, error: Exception) -> NodeError:
    """Return the error of the client for an exchange with a node that failed."""
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
