"""
Responses: status lines, headers, one-line texts, and the status of every error.

A response is a value: status line, headers, body. `App` adds Date and sends it. bjoern
sends what it is given: it neither checks Content-Length nor escapes a header. So every
response is built here, and its body is `[]` or one `bytes` of exactly Content-Length.
Depends neither on methods nor on paths nor on settings.
"""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from volcache import errors
from volcache.histogram import NS_PER_SECOND
from volcache.http.content_types import content_type_of
from volcache.http.preconditions import PreconditionFailedError
from volcache.http.upload import LengthRequiredError
from volcache.monitoring.requests import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from wsgiref.types import StartResponse, WSGIEnvironment

    from volcache.store import Record

    WsgiApp = Callable[[WSGIEnvironment, StartResponse], list[bytes]]
    # Takes the method; sends and counts the response.
    SendResponse = Callable[[str, "Response", StartResponse], list[bytes]]

Headers: TypeAlias = list[tuple[str, str]]
# Status line, headers without Date in a list of their own, body, and the source of the
# value: the tier that was read, MISS if neither tier has the key, OTHER if another instance
# has it, "" if none was read. A plain tuple: a NamedTuple costs 0.2 us per request.
Response: TypeAlias = tuple[str, Headers, list[bytes], str]

OK: Final = "200 OK"
MISS: Final = "MISS"

# The status of the errors that can end a request. A class without a row has the status of
# its nearest base class. An error outside the table is a bug: 500.
ERROR_STATUS: Final[Mapping[type[BaseException], HTTPStatus]] = {
    errors.ClientError: HTTPStatus.BAD_REQUEST,
    errors.ValueTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.TooManyPurgesError: HTTPStatus.CONFLICT,
    PreconditionFailedError: HTTPStatus.PRECONDITION_FAILED,
    LengthRequiredError: HTTPStatus.LENGTH_REQUIRED,
    # The disk failed.
    errors.UnreadableRecordError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.DiskFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.MountPointError: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.StoreIOError: HTTPStatus.INSUFFICIENT_STORAGE,
    OSError: HTTPStatus.INSUFFICIENT_STORAGE,
    # These end the start; no request should end so.
    errors.DiskTooSmallError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.GeometryError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

_TEXT_TYPE: Final = ("Content-Type", "text/plain; charset=utf-8")
# What is stored must never run as a page or a script of this origin.
_VALUE_HEADERS: Final = (
    ("Accept-Ranges", "bytes"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "sandbox"),
)

# Misses are as frequent as hits, so their text is encoded once.
_MISS_TEXT: Final = b"no value is stored under this key\n"
_MISS_HEADERS: Final = (
    ("X-Cache", MISS),
    _TEXT_TYPE,
    ("Content-Length", str(len(_MISS_TEXT))),
)

_SECOND_MAX: Final = 253_402_300_799  # The last of the year 9999.


def status_of(error: BaseException) -> HTTPStatus:
    """Return the status for an error."""
    for class_ in type(error).__mro__:
        if class_ in ERROR_STATUS:
            return ERROR_STATUS[class_]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def text_response(status: HTTPStatus, text: str, *extra: tuple[str, str]) -> Response:
    """
    Return a response of one line of plain text.

    Args:
        status: Its number and phrase.
        text: Each run of white space, line ends included, becomes one space.
        extra: Headers besides Content-Type and Content-Length.
    """
    body = (" ".join(text.split()) + "\n").encode("utf-8", "backslashreplace")
    headers = [*extra, _TEXT_TYPE, ("Content-Length", str(len(body)))]
    return f"{status.value} {status.phrase}", headers, [body], ""


def empty_response(*headers: tuple[str, str], status: str = OK) -> Response:
    """Return a response without a body, by default a 200."""
    return status, [*headers, ("Content-Length", "0")], [b""], ""


def miss_response() -> Response:
    """Return the 404 for a key that has no value."""
    return "404 Not Found", [*_MISS_HEADERS], [_MISS_TEXT], MISS


def other_response(owner: str, *, is_read: bool) -> Response:
    """
    Return the 404 of a read, or the 503 of a change, for a key of another instance.

    Args:
        owner: The instance, as the list of `ring` names it.
        is_read: Whether the request is a GET or HEAD.
    """
    status = HTTPStatus.NOT_FOUND if is_read else HTTPStatus.SERVICE_UNAVAILABLE
    status_line, headers, body, _ = text_response(
        status,
        f"the key belongs to {owner}, by the list of the setting ring: ask that instance,"
        " or nginx. If nginx has asked this one, that one does not answer: try again later",
        ("X-Cache", MISS) if is_read else ("Retry-After", "1"),
        ("X-Owner", owner),
    )
    return status_line, headers, body, OTHER


def service_worker_response() -> Response:
    """Return the 403 for a script that would see all requests of a browser."""
    return text_response(
        HTTPStatus.FORBIDDEN,
        "values cannot be service workers; allowed are requests without the header"
        " Service-Worker",
    )


def stored_response(record: Record) -> Response:
    """Return the 200 for a PUT that stored a record."""
    headers = [
        ("X-Position", f"{record.volume},{record.offset},{record.size}"),
        ("ETag", record.etag),
        ("Content-Length", "0"),
    ]
    return OK, headers, [b""], ""


def not_modified_response(headers: Headers, source: str) -> Response:
    """Return a 304; `headers` are those of the 200, `source` is that of the record."""
    # RFC 9110 section 15.4.5: no representation metadata besides that of validators.
    headers = [header for header in headers if header[0] != "Content-Type"]
    return "304 Not Modified", headers, [], source


def range_response(headers: Headers, record: Record, parts: list[range]) -> Response:
    """
    Return a 206 with parts of a value; a 416 if there are none.

    A 200 with the whole value if several parts with their headers are not shorter.

    Args:
        headers: Those of the 200.
        record: Has the whole value.
        parts: Indexes within the value; no part is empty.
    """
    if not parts:
        status, headers, text, _ = text_response(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            f"no range starts within the file; the file has {record.length} bytes",
            ("Content-Range", f"bytes */{record.length}"),
        )
        return status, headers, text, record.source
    if len(parts) > 1:
        multipart, body = _multipart(headers, record, parts)
        if len(body) >= record.length:
            return OK, headers, [record.value], record.source
        headers = multipart
    else:
        body = record.value[parts[0].start : parts[0].stop]
        headers.append(("Content-Range", _place(parts[0], record)))
    headers = [header for header in headers if header[0] != "Content-Length"]
    headers.append(("Content-Length", str(len(body))))
    return "206 Partial Content", headers, [body], record.source


def _multipart(
    headers: Headers, record: Record, parts: list[range]
) -> tuple[Headers, bytes]:
    """Return headers and body of several parts: RFC 9110, 14.6."""
    content_type = dict(headers)["Content-Type"]
    # Not known before the value is stored, so that the value does not have it.
    boundary = record.etag.strip('"')
    value, pieces = memoryview(record.value), list[bytes | memoryview]()
    for part in parts:
        head = (
            f"\r\n--{boundary}\r\nContent-Type: {content_type}\r\n"
            f"Content-Range: {_place(part, record)}\r\n\r\n"
        )
        pieces += [head.encode("latin-1"), value[part.start : part.stop]]
    pieces.append(f"\r\n--{boundary}--\r\n".encode())
    rest = [header for header in headers if header[0] != "Content-Type"]
    multipart = ("Content-Type", f"multipart/byteranges; boundary={boundary}")
    return [*rest, multipart], b"".join(pieces)


def _place(part: range, record: Record) -> str:
    return f"bytes {part.start}-{part.stop - 1}/{record.length}"


class ValueHeaders:
    """Builds the headers of stored values; keeps the date, which is set once a second."""

    def __init__(
        self, clock: Callable[[], int], remaining_ms: Callable[[int], int]
    ) -> None:
        """
        Begin without a date.

        Args:
            clock: Of the machine, nanoseconds since the epoch.
            remaining_ms: Returns how long a record lives that expires at a time.
        """
        self._clock = clock
        self._remaining_ms = remaining_ms
        self.second = 0  # of `date`, since the epoch
        self.date = ("Date", "")

    def update(self) -> int:
        """
        Set `date` to the present second.

        Returns:
            How many nanoseconds the second still lasts.
        """
        now_ns = self._clock()
        # Lets the store's clock see this date, so that it never stores a value before it.
        self._remaining_ms(0)
        self.second = now_ns // NS_PER_SECOND
        self.date = ("Date", format_date(self.second))
        return NS_PER_SECOND - now_ns % NS_PER_SECOND

    def make(self, key: bytes, record: Record) -> Headers:
        """Return the headers of a GET or HEAD that found a record: a new list."""
        modified = record.stored_us // 1_000_000 + 1  # as `modified_of`
        headers = [
            ("X-Position", f"{record.volume},{record.offset},{record.size}"),
            ("X-Cache", record.source),
            ("ETag", record.etag),
            ("Content-Type", content_type_of(key, record.content_type)),
            ("Content-Length", str(record.length)),
            *_VALUE_HEADERS,
        ]
        if modified <= self.second:
            headers.append(("Last-Modified", format_date(modified)))
        if record.content_encoding:
            encoding = record.content_encoding.decode("latin-1")
            headers.append(("Content-Encoding", encoding))
        # A client that is told nothing may guess a lifetime from Last-Modified: RFC 9111,
        # 4.2.2.
        directives = [record.cache_control.decode("latin-1")]
        if record.expires_ms:
            left = self._remaining_ms(record.expires_ms) // 1000
            directives.insert(0, f"max-age={left}")
        text = ", ".join(filter(None, directives)) or "no-cache"
        headers.append(("Cache-Control", text))
        if record.flags:
            headers.append(("X-Flags", str(record.flags)))
        return headers


def format_date(seconds: int) -> str:
    """
    Return seconds since the epoch as an HTTP date.

    A time after the year 9999 gives its last second, not an error.
    """
    return formatdate(min(seconds, _SECOND_MAX), usegmt=True)
