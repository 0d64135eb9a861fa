"""responses.py and content_types.py: headers, texts, dates, the status of each error."""

from __future__ import annotations

from http import HTTPStatus
from itertools import chain
from types import ModuleType

import pytest

from support.fake_cache import FakeCache
from volcache import errors
from volcache.http import preconditions, upload
from volcache.http.content_types import content_type_of
from volcache.http.responses import ValueHeaders, format_date, status_of, text_response
from volcache.store.format import Record

NOW_NS = 1_795_251_607_000_000_000  # 2026-11-21 09:00:07 UTC


def errors_of(module: ModuleType) -> list[type[BaseException]]:
    """Return the errors of a module that can end a request."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, errors.ClientError | errors.StoreError)
        and value.__module__ == module.__name__
    ]


def headers_at(now_ns: int, remaining_ms: int = 0) -> ValueHeaders:
    """Return the headers at a time."""
    values = ValueHeaders(lambda: now_ns, lambda _expires_ms: remaining_ms)
    values.update()
    return values


@pytest.fixture
def record() -> Record:
    """Return a record without stored headers."""
    return FakeCache().put(b"key", b"value")


def test_every_error_has_a_status() -> None:
    """Of its kind: 4xx for a mistake of the client, 5xx for a failure of the disk."""
    found = [errors_of(module) for module in (errors, upload, preconditions)]
    for classes, more_than in zip(found, (10, 1, 0), strict=True):
        assert len(classes) > more_than
    for class_ in chain(*found):
        kind = 4 if issubclass(class_, errors.ClientError) else 5
        assert status_of(class_.__new__(class_)) // 100 == kind


def test_status_is_that_of_the_nearest_base_class() -> None:
    """An error outside the table is a bug."""

    class NewError(errors.ValueTooLargeError):
        pass

    new = NewError(size=2, limit=1)
    assert status_of(new) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert status_of(PermissionError()) == HTTPStatus.INSUFFICIENT_STORAGE
    assert status_of(errors.TooManyPurgesError(limit=1)) == HTTPStatus.CONFLICT
    assert status_of(KeyError()) == HTTPStatus.INTERNAL_SERVER_ERROR
    assert status_of(SystemExit()) == HTTPStatus.INTERNAL_SERVER_ERROR


def test_text_is_one_line() -> None:
    """Line ends in a cause cannot add a line; odd characters are escaped."""
    status, headers, body, source = text_response(
        HTTPStatus.BAD_REQUEST, "a\r\nb \udc80 \u20ac"
    )
    assert body == [b"a b \\udc80 \xe2\x82\xac\n"]
    assert ("Content-Length", str(len(body[0]))) in headers
    assert (status, source) == ("400 Bad Request", "")


def test_etag_depends_on_time_and_value(record: Record) -> None:
    """A value stored again has another tag."""
    record = record._replace(stored_us=0x1234, checksum=0xBEEF)
    assert record.etag == '"1234-0000beef"'
    others = [record._replace(stored_us=0x1235), record._replace(checksum=9)]
    assert len({record.etag, *(other.etag for other in others)}) == 3


def test_hit_has_all_headers(record: Record) -> None:
    """Without a stored type, the type is guessed."""
    assert headers_at(NOW_NS).make(b"a/b.json", record) == [
        *(("X-Position", "3,64,72"), ("X-Cache", "DISK"), ("ETag", record.etag)),
        *(("Content-Type", "application/json"), ("Content-Length", "5")),
        *(("Accept-Ranges", "bytes"), ("X-Content-Type-Options", "nosniff")),
        ("Content-Security-Policy", "sandbox"),
        ("Last-Modified", "Sat, 21 Nov 2026 09:00:01 GMT"),
        ("Cache-Control", "no-cache"),
    ]


def test_update_sets_the_date_and_returns_the_rest_of_the_second() -> None:
    """The caller need not read the clock before the second ends."""
    values = ValueHeaders(lambda: NOW_NS + 300_000_000, lambda ms: ms)
    assert values.update() == 700_000_000
    assert values.date == ("Date", "Sat, 21 Nov 2026 09:00:07 GMT")


def test_time_after_the_year_9999_is_a_date() -> None:
    """It gives a date on the last day."""
    assert format_date(2**62).startswith("Fri, 31 Dec 9999 ")


def test_type_is_guessed_from_the_last_suffix() -> None:
    """In any case; an unknown suffix is application/octet-stream."""
    for key, kind in (
        (b"a.PNG", "image/png"),
        (b"a.tar.gz", "application/gzip"),
        (b"\xff.html", "text/html"),
        *((key, "application/octet-stream") for key in (b"a.d/b", b"a", b".")),
    ):
        assert content_type_of(key, b"") == kind
