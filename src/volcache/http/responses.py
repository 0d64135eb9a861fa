"""
What goes over the wire: status lines, headers, one-line texts.

bjoern sends what it is given: it neither checks a length nor suppresses a body nor
escapes a header. So every answer is made here, and its body is `[]` or one `bytes` of
exactly Content-Length. Knows nothing of verbs, paths or settings.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

from volcache import errors
from volcache.http.content_types import DEFAULT_TYPE_HEADER, guess_type_header
from volcache.http.preconditions import PreconditionFailedError
from volcache.http.upload import BadHeaderError, LengthRequiredError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from wsgiref.types import StartResponse

    from _typeshed import OptExcInfo

    from volcache.store.format import Record

Headers: TypeAlias = list[tuple[str, str]]

OK: Final = "200 OK"

# Status of every error a request can end with. A class without a row has that of its
# nearest base; what is not in the table at all is a mistake of ours, 500.
ERROR_STATUS: Final[Mapping[type[BaseException], HTTPStatus]] = {
    errors.ClientError: HTTPStatus.BAD_REQUEST,
    errors.BadKeyError: HTTPStatus.BAD_REQUEST,
    errors.KeyTooLongError: HTTPStatus.BAD_REQUEST,
    errors.ValueTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    BadHeaderError: HTTPStatus.BAD_REQUEST,
    PreconditionFailedError: HTTPStatus.PRECONDITION_FAILED,
    LengthRequiredError: HTTPStatus.LENGTH_REQUIRED,
    # The disk, not the request and not the code.
    errors.DiskFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.MountPointError: HTTPStatus.INSUFFICIENT_STORAGE,
    errors.StoreIOError: HTTPStatus.INSUFFICIENT_STORAGE,
    OSError: HTTPStatus.INSUFFICIENT_STORAGE,
    # These end the start or are caught inside the store; a request never sees them.
    errors.StoreError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.DamagedRecordError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ForeignDirectoryError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.FormatVersionError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.StoreClosedError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.StoreLockedError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

# An f-string with these formats takes 0.5 us, "%" 0.3.
_ETAG: Final = '"%x-%x-%x-%08x"'

_ACCEPT_RANGES: Final = ("Accept-Ranges", "bytes")
_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MAX: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH).days
_MINUTES_KEPT_MAX: Final = 24 * 60
_DATES_KEPT_MAX: Final = 50_000  # About 10 MiB.
_AGES_KEPT_MAX: Final = 50_000
_TYPES_KEPT_MAX: Final = 1_000
# HTTP's names are English whatever the locale, so strftime is of no use.
_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


def status_of(error: BaseException) -> HTTPStatus:
    """Return the status that answers an error."""
    for class_ in type(error).__mro__:
        if class_ in ERROR_STATUS:
            return ERROR_STATUS[class_]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def send_text(
    start_response: StartResponse,
    status: HTTPStatus,
    text: str,
    *extra: tuple[str, str],
    is_head: bool = False,
) -> list[bytes]:
    """
    Answer with one line of plain text.

    Args:
        start_response: As WSGI gives it.
        status: Its number and phrase.
        text: Line ends and other runs of white space become one space each.
        extra: Headers besides Content-Type and Content-Length.
        is_head: Leave out the body; its length is told all the same.

    """
    body = (" ".join(text.split()) + "\n").encode("utf-8", "backslashreplace")
    start_response(
        f"{status.value} {status.phrase}",
        [
            *extra,
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ],
    )
    return [] if is_head else [body]


def send_empty(start_response: StartResponse, *headers: tuple[str, str]) -> list[bytes]:
    """Answer 200 without a body."""
    start_response(OK, [*headers, ("Content-Length", "0")])
    return [b""]


def send_not_modified(start_response: StartResponse, headers: Headers) -> list[bytes]:
    """Answer 304 to a reader that has the value whose headers are given."""
    # Nothing is said of the type: there is no body that could have one.
    start_response("304 Not Modified", [h for h in headers if h[0] != "Content-Type"])
    return []


def send_part(
    start_response: StartResponse, headers: Headers, value: bytes, part: range
) -> list[bytes]:
    """
    Answer 206 with a part of a value, or 416 if the part is empty.

    Args:
        start_response: As WSGI gives it.
        headers: Of the whole value.
        value: All of it.
        part: Within the value, or empty.

    """
    if not part:
        size = len(value)
        return send_text(
            start_response,
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            f"the range begins behind the end of the file; it is {size} bytes long",
            ("Content-Range", f"bytes */{size}"),
        )
    body = value[part.start : part.stop]
    headers = [h for h in headers if h[0] != "Content-Length"]
    headers += [
        ("Content-Length", str(len(body))),
        ("Content-Range", f"bytes {part.start}-{part.stop - 1}/{len(value)}"),
    ]
    start_response("206 Partial Content", headers)
    return [body]


def etag_of(record: Record) -> str:
    """Return the entity tag: another value or another place is another tag."""
    return _ETAG % (
        record.volume,
        record.generation,
        record.offset,
        record.checksum,
    )


def content_type_of(key: bytes, record: Record) -> str:
    """Return the type a value was stored with, or the one its key suggests."""
    kept = record.content_type.decode("latin-1")
    return kept or guess_type_header(key)[1]


class RecordHeaders:
    """
    The headers of a value that is given back, and the Date of every answer.

    Holds the headers it has written that many answers share: dates and ages to the
    second, and content types. Writing a date anew takes longer than all other headers
    together.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        """Begin with nothing written; `clock` tells nanoseconds since the epoch."""
        self._clock = clock
        self._second = -1
        self._date_now = ("Date", "")
        self._dates: dict[int, tuple[str, str]] = {}
        self._ages: dict[int, tuple[str, str]] = {}
        self._types: dict[bytes, tuple[str, str]] = {}

    def make(self, key: bytes, record: Record) -> Headers:
        """
        Return the headers of the answer to a GET or a HEAD that found the record.

        A new list each time: the server may change it. Date is the first.
        """
        # Unpacked at once: ten attributes of a named tuple cost 0.3 us.
        (
            _value,
            content_type,
            content_encoding,
            stored_ms,
            expires_ms,
            volume,
            generation,
            offset,
            size,
            length,
            checksum,
            source,
        ) = record
        now_ns = self._clock()
        now = now_ns // _NS_PER_SECOND
        second = stored_ms // 1000
        headers = [
            self._date_now if now == self._second else self._new_date(now),
            ("X-Position", f"{volume},{offset},{size}"),
            ("X-Cache", source),
            ("ETag", _ETAG % (volume, generation, offset, checksum)),
            (self._types.get(content_type) or self._type(content_type))
            if content_type
            else (guess_type_header(key) if b"." in key else DEFAULT_TYPE_HEADER),
            ("Content-Length", str(length)),
            self._dates.get(second) or self._date(second),
            self._ages.get(now - second) or self._age(now - second),
            _ACCEPT_RANGES,
        ]
        if content_encoding:
            headers.append(("Content-Encoding", content_encoding.decode("latin-1")))
        if expires_ms:
            left = max(expires_ms - now_ns // _NS_PER_MS, 0) // 1000
            headers.append(("Cache-Control", f"max-age={left}"))
        return headers

    def make_stored(self, record: Record) -> Headers:
        """Return the headers that acknowledge a PUT; as `make`."""
        _, _, _, _, _, volume, generation, offset, size, _, checksum, _ = record
        return [
            self.date(),
            ("X-Position", f"{volume},{offset},{size}"),
            ("ETag", _ETAG % (volume, generation, offset, checksum)),
            ("Content-Length", "0"),
        ]

    def date(self) -> tuple[str, str]:
        """Return the header Date of this second."""
        now = self._clock() // _NS_PER_SECOND
        return self._date_now if now == self._second else self._new_date(now)

    def _age(self, seconds: int) -> tuple[str, str]:
        if len(self._ages) >= _AGES_KEPT_MAX:
            self._ages.clear()
        # A clock that was put back must not make an age that is none.
        header = ("Age", str(max(seconds, 0)))
        self._ages[seconds] = header
        return header

    def _new_date(self, second: int) -> tuple[str, str]:
        self._date_now = ("Date", format_date(second))
        self._second = second
        return self._date_now

    def _type(self, content_type: bytes) -> tuple[str, str]:
        if len(self._types) >= _TYPES_KEPT_MAX:
            self._types.clear()
        header = ("Content-Type", content_type.decode("latin-1"))
        self._types[content_type] = header
        return header

    def _date(self, second: int) -> tuple[str, str]:
        if len(self._dates) >= _DATES_KEPT_MAX:
            self._dates.clear()
        header = ("Last-Modified", format_date(second))
        self._dates[second] = header
        return header


class Answer:
    """`start_response` for one request: adds Date, and remembers the status."""

    __slots__ = ("_dates", "_start_response", "status")

    def __init__(self, start_response: StartResponse, dates: RecordHeaders) -> None:
        """Pass on to what the server gave."""
        self._start_response = start_response
        self._dates = dates
        self.status = ""  # Until there is one.

    def __call__(
        self, status: str, headers: Headers, error: OptExcInfo | None = None, /
    ) -> Callable[[bytes], object]:
        """Begin the answer; see PEP 3333."""
        self.status = status
        if headers[0][0] != "Date":
            headers.append(self._dates.date())
        return self._start_response(status, headers, error)


def format_date(seconds: int) -> str:
    """
    Return seconds since the epoch as HTTP writes a date.

    A clock gone wild gives a date of the last day there is, not an error.
    """
    minute, second = divmod(seconds, 60)
    return f"{_format_minute(minute)}{second:02} GMT"


@lru_cache(maxsize=_MINUTES_KEPT_MAX)
def _format_minute(minute: int) -> str:
    """Return a date up to the colon before the seconds."""
    day, minute_of_day = divmod(minute, 24 * 60)
    date = _EPOCH + timedelta(days=min(day, _DAY_MAX), minutes=minute_of_day)
    return (
        f"{_WEEKDAYS[date.weekday()]}, {date.day:02} {_MONTHS[date.month - 1]}"
        f" {date.year:04} {date.hour:02}:{date.minute:02}:"
    )
