"""responses.py and content_types.py: what goes over the wire."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from volcache import errors
from volcache.http import preconditions as conditional
from volcache.http import upload as uploads
from volcache.http.content_types import guess_type_header
from volcache.http.responses import (
    ERROR_STATUS,
    RecordHeaders,
    etag_of,
    format_date,
    send_text,
    status_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from volcache.store.format import Record

NOW_NS = 1_795_251_607_000_000_000  # 2026-11-21 09:00:07 UTC


def errors_of(module: ModuleType) -> list[type[BaseException]]:
    """Return the errors a request can end with that a module defines."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, errors.ClientError | errors.StoreError)
        and value.__module__ == module.__name__
    ]


@pytest.fixture
def record() -> Record:
    """Return a record with nothing kept."""
    return FakeCache().put(b"key", b"value")


class Answer:
    """What `start_response` was called with."""

    def __init__(self) -> None:
        """Begin without a call."""
        self.status = ""
        self.headers: list[tuple[str, str]] = []

    def __call__(
        self, status: str, headers: list[tuple[str, str]], _error: object = None, /
    ) -> Callable[[bytes], object]:
        """Keep it, and return the write function, which is never used."""
        self.status, self.headers = status, headers
        return lambda _data: None


@pytest.mark.parametrize(
    "class_", [*errors_of(errors), *errors_of(uploads), *errors_of(conditional)]
)
def test_every_error_of_a_request_has_a_status(class_: type[BaseException]) -> None:
    """A new class of error is thought of here before a client meets it."""
    assert class_ in ERROR_STATUS
    assert ERROR_STATUS[class_] // 100 == (
        4 if issubclass(class_, errors.ClientError) else 5
    )


def test_status_of_nearest_class_counts() -> None:
    """Subclasses without a row stand with their base; all else is our mistake."""

    class NewError(errors.ValueTooLargeError):
        pass

    new = NewError(size=2, limit=1)
    assert status_of(new) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert status_of(PermissionError()) == HTTPStatus.INSUFFICIENT_STORAGE
    assert status_of(KeyError()) == HTTPStatus.INTERNAL_SERVER_ERROR
    assert status_of(SystemExit()) == HTTPStatus.INTERNAL_SERVER_ERROR


def test_error_text_is_one_line_of_its_length() -> None:
    """Line ends in a cause cannot make a second line; odd characters are escaped."""
    answer = Answer()
    body = send_text(answer, HTTPStatus.BAD_REQUEST, "a\r\nb \udc80 \u20ac")
    assert body == [b"a b \\udc80 \xe2\x82\xac\n"]
    assert ("Content-Length", str(len(body[0]))) in answer.headers
    assert answer.status == "400 Bad Request"


def test_head_of_a_text_tells_the_length_alone() -> None:
    """A server like bjoern would send a body if it were given one."""
    answer = Answer()
    assert send_text(answer, HTTPStatus.OK, "ok", is_head=True) == []
    assert ("Content-Length", "3") in answer.headers


def test_etag_tells_place_and_value_apart(record: Record) -> None:
    """A value stored again, or another one, has another tag."""
    record = record._replace(offset=0x40, checksum=0xBEEF)
    assert etag_of(record) == '"3-11-40-0000beef"'
    others = [
        record._replace(volume=9),
        record._replace(generation=9),
        record._replace(offset=9),
        record._replace(checksum=9),
    ]
    assert len({etag_of(record), *map(etag_of, others)}) == 5


def test_put_is_answered_with_position_tag_and_no_body(record: Record) -> None:
    """The acknowledgement says where the record lies."""
    assert RecordHeaders(lambda: NOW_NS).make_stored(record) == [
        ("Date", "Sat, 21 Nov 2026 09:00:07 GMT"),
        ("X-Position", "3,64,72"),
        ("ETag", etag_of(record)),
        ("Content-Length", "0"),
    ]


def test_hit_has_every_header(record: Record) -> None:
    """The headers of a value, with nothing kept: the type is guessed."""
    assert RecordHeaders(lambda: NOW_NS).make(b"a/b.json", record) == [
        ("Date", "Sat, 21 Nov 2026 09:00:07 GMT"),
        ("X-Position", "3,64,72"),
        ("X-Cache", "DISK"),
        ("ETag", etag_of(record)),
        ("Content-Type", "application/json"),
        ("Content-Length", "5"),
        ("Last-Modified", "Sat, 21 Nov 2026 09:00:00 GMT"),
        ("Age", "7"),
        ("Accept-Ranges", "bytes"),
    ]


def test_kept_headers_are_given_back(record: Record) -> None:
    """They go before the guess, and as the bytes they were."""
    record = record._replace(content_type=b"a/\xe9", content_encoding=b"br")
    headers = dict(RecordHeaders(lambda: NOW_NS).make(b"a/b.json", record))
    assert headers["Content-Type"] == "a/\xe9"
    assert headers["Content-Encoding"] == "br"


def test_each_answer_has_a_list_of_its_own(record: Record) -> None:
    """A server may change the list it is given."""
    maker = RecordHeaders(lambda: NOW_NS)
    maker.make(b"key", record).clear()
    assert maker.make(b"key", record)


@pytest.mark.property
@given(st.integers(0, 253_402_300_799))
def test_dates_are_those_of_the_standard_library(seconds: int) -> None:
    """From the epoch to the end of the year 9999."""
    assert format_date(seconds) == formatdate(seconds, usegmt=True)


def test_a_clock_gone_wild_is_no_error() -> None:
    """There is a date for every number, the last one there is at the most."""
    assert format_date(2**62).startswith("Fri, 31 Dec 9999 ")


def test_shared_headers_are_bounded(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of ever new times and types do not fill the memory."""
    monkeypatch.setattr("volcache.http.responses._DATES_KEPT_MAX", 3)
    monkeypatch.setattr("volcache.http.responses._AGES_KEPT_MAX", 3)
    monkeypatch.setattr("volcache.http.responses._TYPES_KEPT_MAX", 3)
    maker = RecordHeaders(lambda: NOW_NS)
    for number in range(20):
        record = record._replace(stored_ms=number * 1000, content_type=b"x/%d" % number)
        assert ("Content-Type", f"x/{number}") in maker.make(b"k", record)
    assert len(maker._dates) <= 3
    assert len(maker._ages) <= 3
    assert len(maker._types) <= 3


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (b"a.PNG", "image/png"),
        (b"a.tar.gz", "application/gzip"),
        (b"a.d/b", "application/octet-stream"),
        (b"a", "application/octet-stream"),
        (b".", "application/octet-stream"),
        (b"\xff.html", "text/html"),
    ],
)
def test_type_is_guessed_from_the_last_suffix(key: bytes, kind: str) -> None:
    """By the table alone; unknown is a stream of bytes."""
    assert guess_type_header(key) == ("Content-Type", kind)


def test_module_errors_are_found() -> None:
    """The walk above walks over something."""
    assert len(errors_of(errors)) > 10
    assert len(errors_of(uploads)) > 1
    assert errors_of(conditional)
