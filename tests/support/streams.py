"""
Byte streams as clients send them, and what an instance has to answer to one.

`make_stream` draws a stream by its number: a few requests, most of them valid, some of
them damaged, cut anywhere. `Judge` is the oracle: h11 finds the requests in a stream, and
`App` on a store of its own says what the answer to each of them is.

An instance may refuse more than h11 does, and then it closes the connection. These cases,
and no others, are accepted; `refusals` has the rules:
    - a line of a head, of the size of a chunk or of a trailer that ends with LF alone, and
      a folded line;
    - a control byte in a header or in the extension of a chunk;
    - a method that is not in its list; a version other than 1.0 and 1.1;
    - a target that is neither a path nor `http://host...` nor the `*` of OPTIONS, or that
      has a `#`, or a `%` without two digits in its path;
    - a Host that is no name and port;
    - two Content-Length fields, one that is not 1 to 18 digits, one together with
      Transfer-Encoding; Transfer-Encoding in HTTP/1.0; an Expect other than 100-continue;
    - a chunk of 16^15 bytes or more, and long lines in a chunked body;
    - a body above the limit, which is refused before it is read;
    - a head of more than 32 KiB or of more than 100 fields.
What h11 refuses has to be refused, with one exception: empty lines before a request, which
RFC 9112 section 2.2 lets a server skip.

A client that continues to send after the end of the connection was announced may have it
reset, and may lose the end of the answers.
"""

from __future__ import annotations

import errno
import io
import random
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from select import select
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import h11

from support.extent import SEED
from support.wsgi_client import called
from volcache.cache import Cache
from volcache.http.app import App, RequestLimits
from volcache.store import Store

VALUE_BYTES_MAX: Final = 200_000
KEY_BYTES_MAX: Final = 1024
HEAD_BYTES_MAX: Final = 32768
FIELDS_MAX: Final = 100
_CHUNK_LINE_MAX: Final = 4096
_ANSWER_SECONDS: Final = 20.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Discrepancy(AssertionError):  # noqa: N818 - What it is called.
    """An instance did not answer a stream as it has to."""


# --- Streams ---------------------------------------------------------------------------


class Stream(NamedTuple):
    """What one client sends: pieces, some of them after a pause."""

    name: str
    pieces: tuple[bytes, ...]
    pauses: bool

    @property
    def data(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)


def _message(start: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([start + b" HTTP/1.1", b"Host: t", *fields, b"", body])


def _get(*fields: bytes) -> bytes:
    return _message(b"GET /NS/a", *fields)


def _put(*fields: bytes, body: bytes = b"abc") -> bytes:
    return _message(b"PUT /NS/a", *fields, body=body)


def _put_chunked(body: bytes) -> bytes:
    return _put(b"Transfer-Encoding: chunked", body=body)


_THREE: Final = b"Content-Length: 3"
_LONG: Final = b"X: " + b"x" * 70_000
# Each is a stream that some server has misread; NS is the folder of the stream.
CORPUS: Final = (
    _get() + _message(b"GET /NS/b"),
    _put(_THREE) + _get(),
    # Two lengths of a body, or none that is certain.
    _put(_THREE, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n") + _get(),
    _put(_THREE, b"Content-Length: 4", body=b"abcd"),
    _put(b"Content-Length: +3"),
    _put(b"Content-Length: 3 "),
    _put(b"Content-Length : 3"),
    _put(b"Content_Length: 9", _THREE),
    _put(b"X: y", b" " + _THREE),
    _put(b"X: y\r" + _THREE),
    _put(b"X: y\n" + _THREE),
    _put(b"X: a\0b", _THREE),
    _put(b"Content-Length: 200001"),
    _put(b"Transfer-Encoding: gzip"),
    _put(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    _put(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    _put(b"Transfer-Encoding:\tChunked ", body=b"3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n")
    + _get(),
    _put_chunked(b"10000000000000005\r\nabcde\r\n0\r\n\r\n"),
    _put_chunked(b"3\r\nabcdef\r\n0\r\n\r\n"),
    _put_chunked(b"0x3\r\nabc\r\n0\r\n\r\n"),
    _put_chunked(b"3 3\r\nabc\r\n0\r\n\r\n") + _get(),
    _put_chunked(b"3\nabc\r\n0\r\n\r\n"),
    _put_chunked(b"3\r\nabc\r\n0\r\nno colon\r\n\r\n") + _get(),
    _put_chunked(b"3\r\nabc\r\n0\r\n : v\r\n\r\n") + _get(),
    _put_chunked(b"00000000000000000000000000003\r\nabc\r\n0\r\n\r\n"),
    b"PUT /NS/a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    # The line of the request, and Host.
    b"PUT /NS/a HTTP/1.1\nHost: t\nContent-Length: 3\n\nabc",
    b"PUT /NS/a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    _get(b"Host: u"),
    b"GET /NS/a HTTP/2.0\r\nHost: t\r\n\r\n",
    b"GET /NS/a HTTP/1.1x\r\nHost: t\r\n\r\n",
    b"GET /NS/a\r\n\r\n",
    _message(b"GET /NS/a b"),
    _message(b"GET /NS/\xc3\xa4"),
    _message(b"GET /NS/a#b"),
    _message(b"GET /NS/%zz"),
    _message(b"GET /NS/%2"),
    _message(b"CONNECT t:80"),
    b"\r\n\r\n" + _get() + b"\r\n" + _get(),
    b"\r" + _get(),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    # What has stopped bjoern, or confused it.
    _put(b"Expect: 100-Continue", _THREE),
    _put(b"Expect: 200-ok", _THREE),
    _get(b"Expect: 100-continue", _LONG).removesuffix(b"\r\n"),
    _get(b"Upgrade: h2c", _LONG),
    _get(b"Upgrade: h2c", b"Connection: Upgrade") + _put(_THREE),
    _get() + _put(b"Content-Length: 70000", body=b"v" * 70_000),
    _get(*[b"a: b"] * 100),
    _get(b"X-E:", b"If-None-Match: *", b"X-F: "),
)

_INTERESTING: Final = (
    *(b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b";", b",", b"%", b"#", b"?"),
    *(b"\x7f", b"\x80", b"\xff", b"\x0b", b"0", b"1", b"f", b"_", b"-", b"/", b"/../"),
)
_METHODS: Final = [
    *[b"GET"] * 40,
    *[b"PUT"] * 40,
    *[b"HEAD"] * 10,
    *[b"DELETE"] * 4,
    *b"OPTIONS PROPFIND MKCOL POST PATCH LOCK COPY TRACE".split(),
    *b"get GETT REPORT CONNECT M-SEARCH".split(),
]
_NAMES: Final = [
    *[b"a"] * 12,
    *[b"b"] * 6,
    *b"c d.css d.CSS %61 e%20f %C3%A4 g/h g//h a?q=1 b?x%zz&y?z".split(),
    *b"./a x/../a x/%2e%2e/b %2e i+j ~!*'()".split(),
]
_ODD_TARGETS: Final = [
    *b"* / //NS /-/healthy /-/nothing /%2D/healthy /.. /.".split(),
    *b"NS /NS/%00 /NS/%7f /NS/% /NS/a%2 /NS/a#b".split(),
    b"/NS/a b",
    *b"http://t http://t/ http://t?q http:///NS/a https://t/NS/a".split(),
    *b"HTTP://t:80/NS/a http://[::1]/NS/b?c http://a@b/NS/a t:80".split(),
    b"",
]
_HEADERS: Final = (
    b"Accept: */*|User-Agent: x/1|X-Empty:|X-Space: \t |x-repeated: 1|X-Repeated: 2"
    b"|Cookie: \xe9\xff|Authorization: Bearer x|Service-Worker: script|X_Under: score"
    b'|If-None-Match: *|If-None-Match: "other"|If-Match: *|If-Match: "other"'
    b"|Range: bytes=1-2|Range: bytes=-1|Range: bytes=900000-|Range: x"
    b"|Range: bytes=0-0, -1|If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT"
    b"|If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT"
    b"|Connection: keep-alive|Connection: close|Connection: x, CLOSE ,y"
    b"|Connection: Upgrade|Upgrade: h2c|HTTP2-Settings: AA|Keep-Alive: x"
    b"|TE: trailers|Trailer: T|Proxy-Connection: close|Expect: 100-continue"
    b"|Expect: 100-Continue|Depth: 0|Depth: 1|Content-Range: bytes 0-1/2|Expect: x"
    b"|Content-Type: text/x; a=b|Content-Encoding: br|Content-Type: \xe9"
    b"|Cache-Control: max-age=90000|Cache-Control: max-age=x|Host:|Host: u/v"
    b"|Bad Name: x|No-Colon|: no name|X: \x01| folded: x|X : y"
    b"|Transfer-Encoding: gzip|Content-Length: 0x3|Content-Length: 3, 3"
).split(b"|")


class _Writer:
    """Draws the requests of one stream."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(f"{SEED} {number}")  # noqa: S311 - Repeatable.
        self.folder = f"s{SEED}x{number}x".encode()

    def data(self) -> bytes:
        """Return the bytes of the stream."""
        draw = self.random.random()
        if draw < 0.05:
            return self._placed(self.random.choice(CORPUS))
        parts = [self._request() for _ in range(self.random.choice((1, 1, 2, 3, 4, 6)))]
        if draw < 0.10:
            parts.insert(
                self.random.randrange(len(parts) + 1),
                self._placed(self.random.choice(CORPUS)),
            )
        data = b"".join(parts)
        if draw > 0.7:
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                data = self._damaged(data)
        return data

    def _placed(self, text: bytes) -> bytes:
        return text.replace(b"NS", self.folder)

    def _request(self) -> bytes:
        some = self.random
        method = some.choice(_METHODS)
        version = some.choice((b"HTTP/1.1",) * 50 + (b"HTTP/1.0",) * 3 + (b"HTTP/1.2",))
        headers = [b"Host: t"] if some.random() < 0.99 else []
        for _ in range(some.choice((0, 0, 0, 1, 1, 2, 3))):
            # The last ones are refused, so they would end most streams.
            drawn = some.choice(_HEADERS if some.random() < 0.08 else _HEADERS[:-13])
            headers.insert(some.randrange(len(headers) + 1), drawn)
        body = b""
        if method == b"PUT" or some.random() < 0.15:
            framing, body = self._body()
            headers.insert(some.randrange(len(headers) + 1), framing)
        lines = [method + b" " + self._target() + b" " + version, *headers, b"", b""]
        return b"\r\n".join(lines) + body

    def _target(self) -> bytes:
        some = self.random
        draw = some.random()
        if draw < 0.06:
            return self._placed(some.choice(_ODD_TARGETS))
        if draw < 0.08:
            # Around the length of the longest key.
            length = KEY_BYTES_MAX - len(self.folder) - 1 + some.randrange(-1, 2)
            return b"/" + self.folder + b"/" + b"k" * length
        target = b"/" + self.folder + b"/" + some.choice(_NAMES)
        return b"http://host:1" + target if draw < 0.1 else target

    def _body(self) -> tuple[bytes, bytes]:
        some = self.random
        length = some.choice((0, 1, 5, 100, 100, 1000, 5000, 17_000, 70_000))
        if some.random() < 0.01:
            length = VALUE_BYTES_MAX + some.randrange(-1, 2)
        body = some.randbytes(length)
        if some.random() < 0.6:
            text = b"%0*d" % (some.choice((1, 1, 1, 20)), length)
            return b"Content-Length: " + text, body
        return some.choice(
            (b"Transfer-Encoding: chunked", b"transfer-encoding:CHUNKED ")
        ), self._chunked(body)

    def _chunked(self, body: bytes) -> bytes:
        some = self.random
        written = []
        at = 0
        while at < len(body):
            size = min(some.choice((1, 3, 50, 4096, 20_000, 100_000)), len(body) - at)
            if len(body) - at > 1000:
                size = max(size, 50)
            extension = some.choice(
                (b"",) * 20 + (b";a", b";a=b", b';c="d"', b" ", b" 1")
            )
            line = some.choice((b"%x", b"%X", b"%04x")) % size + extension
            written.append(line + b"\r\n" + body[at : at + size] + b"\r\n")
            at += size
        trailers = some.choice((b"",) * 9 + (b"T: u\r\n", b"T: u\r\nV:\r\n", b"T\r\n"))
        return b"".join(
            [*written, some.choice((b"0", b"00", b"0;z")), b"\r\n", trailers, b"\r\n"]
        )

    def _damaged(self, data: bytes) -> bytes:
        """Change some bytes, mostly in a head."""
        some = self.random
        end = len(data)
        if some.random() < 0.8:
            heads = [m.start() for m in re.finditer(rb"HTTP/1|\r\n0?\r\n", data)] or [
                end
            ]
            end = min(len(data), some.choice(heads) + 60)
        at = some.randrange(end + 1)
        size = some.choice((1, 1, 1, 2, 8))
        draw = some.randrange(6)
        if draw == 0:
            return data[:at] + data[at + size :]
        if draw == 1:
            return data[:at] + some.choice(_INTERESTING) + data[at:]
        if draw == 2:
            return data[:at] + some.choice(_INTERESTING) + data[at + size :]
        if draw == 3:
            return data[:at] + bytes([some.randrange(256)]) + data[at + 1 :]
        if draw == 4:
            return data[:at] + data[max(0, at - size * 8) : at] + data[at:]
        return data[:at] if some.random() < 0.3 else data.replace(b"\r\n", b"\n", 1)

    def pieces(self, data: bytes) -> tuple[tuple[bytes, ...], bool]:
        """Return the bytes in pieces, and whether there are pauses between them."""
        some = self.random
        draw = some.random()
        pauses = some.random() < 0.5
        if draw < 0.4:
            return (data,), False
        if draw < 0.45 and len(data) < 250:
            cuts: Iterable[int] = range(len(data))
            pauses = True
        elif draw < 0.6:
            ends = [m.end() - some.randrange(3) for m in re.finditer(rb"\r\n", data)]
            cuts = some.sample(ends, min(len(ends), 6))
        else:
            cuts = (some.randrange(len(data) + 1) for _ in range(some.randrange(1, 7)))
        places = sorted({0, len(data), *cuts})
        return tuple(data[first:end] for first, end in pairwise(places)), pauses


def make_stream(number: int) -> Stream:
    """Return a stream; the same for the same number and `CRASH_SEED`."""
    writer = _Writer(number)
    pieces, pauses = writer.pieces(writer.data())
    return Stream(f"seed {SEED} number {number}", pieces, pauses)


# --- Sending ---------------------------------------------------------------------------


class Heard(NamedTuple):
    """What a client received until the connection ended, and whether it was reset."""

    data: bytes
    is_reset: bool


def send_stream(port: int, stream: Stream) -> Heard:
    """Send a stream on a new connection, and read until the instance closes it."""
    address = ("127.0.0.1", port)
    with (
        socket.create_connection(address, _ANSWER_SECONDS) as connection,
        ThreadPoolExecutor(1) as reader,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reading = reader.submit(_read_to_the_end, connection)
        is_reset = False
        try:
            for piece in stream.pieces:
                connection.sendall(piece)
                if stream.pauses:
                    select([connection], [], [], 0.0003)
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno not in {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN}:
                raise
            is_reset = True
        try:
            heard = reading.result()
        except TimeoutError as error:
            raise Discrepancy(
                f"{stream.name}: no answer and no end for {_ANSWER_SECONDS} s; sent was"
                f" {stream.data[:2000]!r}"
            ) from error
        return heard._replace(is_reset=heard.is_reset or is_reset)


def _read_to_the_end(connection: socket.socket) -> Heard:
    received = bytearray()
    try:
        while data := connection.recv(1 << 18):
            received += data
    except ConnectionResetError:
        return Heard(bytes(received), is_reset=True)
    return Heard(bytes(received), is_reset=False)


# --- Requests, by h11 ------------------------------------------------------------------


@dataclass
class Message:
    """The first request in some bytes, as h11 reads it."""

    data: bytes  # from the request on
    state: str = "incomplete"  # or "complete" or "refused"
    request: h11.Request | None = None
    head: bytes = b""
    body: bytes = b""
    rest: bytes = b""

    @property
    def body_data(self) -> bytes:
        """The bytes after the head."""
        return self.data[len(self.head) :]

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of the fields with a name."""
        headers = self.request.headers if self.request else []
        return [value for found, value in headers if found == name]


def read_message(data: bytes) -> Message:
    """Read the first request; `data` does not begin with an empty line."""
    message = Message(data)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 24)
    connection.receive_data(data)
    body = bytearray()
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                message.request = event
                message.head = data[: len(data) - len(connection.trailing_data[0])]
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                message.state = "complete"
                message.rest = connection.trailing_data[0]
                break
            else:
                break
    except h11.RemoteProtocolError:
        message.state = "refused"
    message.body = bytes(body)
    return message


# --- What may be refused ---------------------------------------------------------------

_PATH: Final = re.compile(rb"(?:%[0-9A-Fa-f]{2}|[^%])*")
_HOST: Final = re.compile(rb"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
_KNOWN_METHODS: Final = frozenset(
    b"GET PUT HEAD DELETE PROPFIND OPTIONS POST MKCOL PATCH TRACE COPY MOVE LOCK UNLOCK"
    b" PROPPATCH".split()
)
_CHUNK_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:[ \t]*|;[\t\x20-\x7e\x80-\xff]*)\r\n"
)
_TRAILERS: Final = re.compile(
    rb"(?:[^\x00-\x20\x7f]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
)


def _is_bad_target(method: bytes, target: bytes) -> bool:
    if target == b"*":
        return method != b"OPTIONS"
    if target[:7].lower() == b"http://":
        host, mark, target = re.fullmatch(
            rb"([^/?]*)([/?]?)(.*)", target[7:], re.DOTALL
        ).groups()  # type: ignore[union-attr]
        if not host or not _HOST.fullmatch(host):
            return True
        target = b"/" + (mark.replace(b"/", b"") + target)
    path = target.partition(b"?")[0]
    return b"#" in target or path[:1] != b"/" or not _PATH.fullmatch(path)


def _chunk_problems(data: bytes) -> set[int]:
    """Return how a chunked body may be refused, complete or not."""
    total = at = 0
    while True:
        end = data.find(b"\n", at)
        if end < 0:
            return _cut_problems(data[at:])
        line = _CHUNK_LINE.fullmatch(data, at, end + 1)
        if line is None or end - at > _CHUNK_LINE_MAX:
            return {400}
        size = int(line[1], 16)
        total += size
        if total > VALUE_BYTES_MAX:
            return {413}
        if not size:
            is_good = _TRAILERS.match(data, end + 1) is not None
            return set() if is_good else {400}
        at = end + 1 + size + 2
        if at >= len(data):
            return set()


def _cut_problems(line: bytes) -> set[int]:
    """Return how the line of a chunk's size may be refused whose end is missing."""
    if not line or (
        len(line) <= _CHUNK_LINE_MAX
        and _CHUNK_LINE.fullmatch(line.removesuffix(b"\r") + b"\r\n")
    ):
        return set()
    return {400}


def _lengths(message: Message) -> list[bytes]:
    """Return Content-Length as it was sent: h11 unites several."""
    return [
        value.strip(b" \t\r")
        for value in re.findall(
            rb"^content-length:([^\n]*)", message.head, re.IGNORECASE | re.MULTILINE
        )
    ]


def _head_problems(message: Message, request: h11.Request) -> set[int]:
    """Return how a request may be refused because of its head."""
    head, hosts = message.head, message.values(b"host")
    codings, lengths = message.values(b"transfer-encoding"), _lengths(message)
    good_lengths = [re.fullmatch(rb"0{0,2}[0-9]{1,18}", length) for length in lengths]
    is_too_large = any(x.isdigit() and int(x) > VALUE_BYTES_MAX for x in lengths)
    expected = {value.lower() for value in message.values(b"expect")}
    rules: Sequence[tuple[int, object]] = (
        (400, re.search(rb"(?<!\r)\n|\n[ \t]", head)),
        (400, re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", head)),
        (405, request.method not in _KNOWN_METHODS),
        (505, request.http_version not in {b"1.0", b"1.1"}),
        (400, _is_bad_target(request.method, request.target)),
        (400, not all(map(_HOST.fullmatch, hosts))),
        (400, len(lengths) > 1 or not all(good_lengths)),
        (413, is_too_large),
        (400, codings and (lengths or request.http_version == b"1.0")),
        (417, expected - {b"100-continue"}),
        (431, len(head) > HEAD_BYTES_MAX),
        (431, head.count(b"\n") - 2 > FIELDS_MAX),
    )
    return {status for status, is_broken in rules if is_broken}


def refusals(message: Message) -> set[int]:
    """Return with which statuses an instance may refuse what h11 has accepted so far."""
    request = message.request
    if request is None:  # A head without its end.
        found = {431} if len(message.data) >= HEAD_BYTES_MAX else set()
        is_bad = re.search(rb"\A[^!#-'*+\-.0-9A-Z^-z|~]|(?<!\r)\n", message.data)
        return found | ({400} if is_bad else set())
    found = _head_problems(message, request)
    if message.values(b"transfer-encoding"):
        found |= _chunk_problems(message.body_data)
    return found


# --- Answers ---------------------------------------------------------------------------


class Answer(NamedTuple):
    """One answer."""

    status: str
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> int:
        """The status as a number."""
        return int(self.status[:3])

    @property
    def closes(self) -> bool:
        """Whether it is the last one of its connection."""
        return self.headers.get("Connection") == "close"


_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([1-5]\d\d [A-Za-z -]+)\r\n((?:[A-Za-z-]+: [^\x00-\x1f\x7f]*\r\n)*)\r\n"
)


class Answers:
    """The answers of one connection, one after the other."""

    def __init__(self, heard: Heard) -> None:
        """Begin with the first."""
        self._heard = heard
        self._at = 0
        # Whether the end of what was sent is lost, because the connection was reset.
        self.is_cut = False

    @property
    def rest(self) -> bytes:
        """What was not taken yet."""
        return self._heard.data[self._at :]

    @property
    def is_reset(self) -> bool:
        """Whether the connection did not end in order."""
        return self._heard.is_reset

    def skip_continue(self) -> bool:
        """Take a 100, if it is next."""
        is_next = self._heard.data.startswith(_CONTINUE, self._at)
        self._at += len(_CONTINUE) if is_next else 0
        return is_next

    def take(self, method: bytes) -> Answer | None:
        """Take the next answer; None if there is none, or if it is cut."""
        if not self.rest:
            self.is_cut = self.is_reset
            return None
        head = _HEAD.match(self._heard.data, self._at)
        if head is None and self.is_reset:
            self._skip_rest()
            return None
        if head is None:
            raise Discrepancy(f"this is no answer: {self.rest[:500]!r}")
        lines = head[2].decode("latin-1").split("\r\n")[:-1]
        pairs = [(name, value) for name, _, value in (x.partition(": ") for x in lines)]
        headers = dict(pairs)
        status = head[1].decode()
        if len(headers) != len(pairs):
            raise Discrepancy(f"a header twice: {lines}")
        length = int(headers["Content-Length"])
        # A request that was not read as a HEAD is answered with a body.
        is_bodiless = status[:3] == "304" or (
            method == b"HEAD"
            and self._heard.data[head.end() : head.end() + 9] in {b"", b"HTTP/1.1 "}
        )
        end = head.end() + (0 if is_bodiless else length)
        body = self._heard.data[head.end() : end]
        if not is_bodiless and len(body) != length:
            if self.is_reset:
                self._skip_rest()
            return None
            raise Discrepancy(f"{len(body)} bytes of a body of {length}: {lines}")
        self._at = end
        return Answer(status, headers, body)

    def _skip_rest(self) -> None:
        self.is_cut = True
        self._at = len(self._heard.data)


def is_refusal(answer: Answer, method: bytes) -> bool:
    """Whether an answer is one line of text and the last of its connection."""
    return (
        answer.code >= 400
        and answer.closes
        and answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        and (answer.body.count(b"\n") == 1 or (method == b"HEAD" and not answer.body))
    )


# --- The oracle ------------------------------------------------------------------------

# These tell the time, or count what the instance has done.
_VOLATILE: Final = ("Date", "Last-Modified", "Connection")
_MAX_AGE: Final = re.compile(r"max-age=\d+")
_STORED: Final = re.compile(r'"[0-9a-f]+-')
_TIMES: Final = re.compile(
    rb"<D:(?:getlastmodified|creationdate|getetag)>[^<]*|(?<=entity tag )\"[0-9a-f]+-"
)


class Judge:
    """Compares the answers of one instance with those of an application of its own."""

    def __init__(self, store: Store, *, has_order: bool = True) -> None:
        """
        Judge an instance whose store is empty, as is this one.

        Args:
            store: Of the application.
            has_order: Streams are judged in the order in which they were answered, so
                that all records have the same positions.
        """
        self._has_order = has_order
        limits = RequestLimits(key_size=KEY_BYTES_MAX, value_size=VALUE_BYTES_MAX)
        self._app = App(Cache(store), limits)
        self.tally: Counter[str] = Counter()  # What was judged, and the statuses.
        self.changed: set[bytes] = set()  # targets of changes

    def judge(self, stream: Stream, heard: Heard) -> None:
        """
        Check the answers to a stream, and take over what it changed.

        Raises:
            Discrepancy: An answer is missing, superfluous or wrong.
        """
        answers = Answers(heard)
        try:
            self._judge(stream.data, answers)
        except (Discrepancy, KeyError) as error:
            sent = [piece[:3000] for piece in stream.pieces]
            raise Discrepancy(
                f"{stream.name}: {error!r}\nsent: {sent}\nheard: {heard.data[:3000]!r}"
            ) from error

    def _judge(self, data: bytes, answers: Answers) -> None:
        is_open = True
        while is_open:
            while data.startswith(b"\r\n"):
                data = data[2:]
            if not data or data == b"\r":
                break
            message = read_message(data)
            is_open = self._judge_one(message, answers)
            data = message.rest
        if answers.rest:
            raise Discrepancy(f"one answer too many: {answers.rest[:500]!r}")
        if answers.is_cut and (is_open or not data):
            raise Discrepancy("the end of the answers is missing")
        if is_open and answers.is_reset:
            raise Discrepancy("the connection was reset")

    def _judge_one(self, message: Message, answers: Answers) -> bool:
        """Judge the answer to one request; return whether the next is answered, too."""
        method = message.data.partition(b" ")[0]
        has_body = message.body_data or message.state == "incomplete"
        if has_body and message.values(b"expect"):
            answers.skip_continue()
        answer = answers.take(method)
        if answers.is_cut:
            return self._apply(message)
        if message.state == "complete":
            return self._judge_complete(message, answer, answers)
        if message.state == "incomplete" and answer is None:
            self.tally["incomplete"] += 1
            return False
        if answer is None or not is_refusal(answer, method):
            raise Discrepancy(f"not refused: {message.data[:300]!r} by {answer}")
        if message.state == "incomplete" and answer.code not in refusals(message):
            raise Discrepancy(f"refused too early: {answer}")
        self.tally["refused"] += 1
        return self._refused(answers)

    def _apply(self, message: Message) -> bool:
        """Take over a request whose answer is lost; return whether the next counts."""
        request = message.request
        if message.state != "complete" or request is None or refusals(message):
            return True
        self._ask(environ_of(message, request))
        return keeps_alive(message, request)

    def _refused(self, answers: Answers) -> bool:
        """Return that no other request counts."""
        if answers.is_reset:
            raise Discrepancy("the connection was reset after a refusal")
        return False

    def _judge_complete(
        self, message: Message, answer: Answer | None, answers: Answers
    ) -> bool:
        request = message.request
        assert request is not None
        if answer is None:
            raise Discrepancy(f"no answer to {message.data[:300]!r}")
        allowed = refusals(message)
        if answer.code in allowed and is_refusal(answer, request.method):
            return self._refused(answers)
        self.tally.update(("answers", str(answer.code)))
        self._compare(message, request, answer)
        return not answer.closes

    def _compare(self, message: Message, request: h11.Request, answer: Answer) -> None:
        environ = environ_of(message, request)
        expected = self._ask(environ)
        if request.method in {b"PUT", b"DELETE"} and answer.code == 200:
            self.changed.add(request.target)
        is_admin = environ["PATH_INFO"].startswith("/-/")
        seen = comparable(answer)
        known = comparable(expected)
        if not self._has_order:
            seen.headers.pop("X-Position", None)
            known.headers.pop("X-Position", None)
        if seen != known and not (is_admin and seen.status == known.status):
            raise Discrepancy(f"answered {seen}, but it is {known}")
        if answer.closes != (not keeps_alive(message, request)):
            raise Discrepancy(f"wrong Connection: {answer}")

    def _ask(self, environ: dict[str, Any]) -> Answer:
        """Return the answer of the application."""
        status, headers, body = called(self._app, environ)
        return Answer(status, dict(headers), b"".join(body))


def comparable(answer: Answer) -> Answer:
    """Return what of an answer is the same at any time."""
    body = answer.body
    kept = {
        name: value for name, value in answer.headers.items() if name not in _VOLATILE
    }
    for name, pattern in (("Cache-Control", _MAX_AGE), ("ETag", _STORED)):
        if name in kept:
            kept[name] = pattern.sub("", kept[name])
    if kept.get("Content-Type", "").startswith("application/xml"):
        del kept["Content-Length"]  # That of a tag may differ.
        body = _TIMES.sub(b"", body)
    kept["Content-Type"], _, boundary = kept.get("Content-Type", "").partition(
        "; boundary="
    )
    body = body.replace(boundary.encode(), b"") if boundary else body
    if answer.code == HTTPStatus.PRECONDITION_FAILED:
        body = _TIMES.sub(b"", body)
    return Answer(answer.status, kept, body)


def keeps_alive(message: Message, request: h11.Request) -> bool:
    """Return whether a client can send another request."""
    options = {
        option.strip(b" \t").lower()
        for value in message.values(b"connection")
        for option in value.split(b",")
    }
    if request.http_version == b"1.0":
        return b"keep-alive" in options and b"close" not in options
    return b"close" not in options


def environ_of(message: Message, request: h11.Request) -> dict[str, Any]:
    """Return a request as bjoern passes it to the application."""
    target = request.target
    if target[:7].lower() == b"http://":
        target = re.sub(rb"^.{7}[^/?]*", b"", target)
        target = target if target.startswith(b"/") else b"/" + target
    path, mark, query = target.partition(b"?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method.decode("latin-1"),
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{request.http_version.decode()}",
        "wsgi.input": io.BytesIO(message.body),
    }
    if mark:
        environ["QUERY_STRING"] = query.decode("latin-1")
    for name, value in _fields(request):
        if name not in environ:
            environ[name] = value
        elif value:
            environ[name] += f", {value}"
    return environ


def _fields(request: h11.Request) -> Iterator[tuple[str, str]]:
    for raw_name, raw_value in request.headers:
        name = raw_name.decode("latin-1").upper()
        if "_" in name:
            continue
        name = name.replace("-", "_")
        if name not in {"CONTENT_LENGTH", "CONTENT_TYPE"}:
            name = f"HTTP_{name}"
        value = raw_value.decode("latin-1")
        yield name, value
