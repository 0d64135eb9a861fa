"""responses.py and content_types.py: headers, texts, dates, the status of each error."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from volcache import errors
from volcache.http.responses import ValueHeaders, format_date, status_of, text_response

NOW_NS = 1_795_251_607_000_000_000  # 2026-11-21 09:00:07 UTC


def kinds_of(error: type[BaseException]) -> Iterator[type[BaseException]]:
    """Yield an error and all that are of its kind."""
    yield error
    for kind in error.__subclasses__():
        yield from kinds_of(kind)


def test_status_of_each_error_is_that_of_its_kind() -> None:
    """Of its kind: 4xx for a mistake of the client, 5xx for a failure of the disk."""
    for base, digit, least in ((errors.ClientError, 4, 9), (errors.StoreError, 5, 14)):
        found = [*kinds_of(base)]
        assert len(found) >= least
        for error in found:
            assert status_of(Exception.__new__(error)) // 100 == digit, error


def test_status_of_a_new_error_is_that_of_its_base_class() -> None:
    """An error outside the table is a bug."""

    class NewError(errors.ValueTooLargeError):
        pass

    new = NewError(size=2, limit=1)
    assert status_of(new) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert status_of(PermissionError()) == HTTPStatus.INSUFFICIENT_STORAGE
    assert status_of(errors.TooManyPurgesError(1, 1)) == HTTPStatus.CONFLICT
    assert status_of(KeyError()) == HTTPStatus.INTERNAL_SERVER_ERROR
    assert status_of(SystemExit()) == HTTPStatus.INTERNAL_SERVER_ERROR


def test_error_text_with_line_ends_is_one_line() -> None:
    """Line ends in a cause cannot add a line; odd characters are escaped."""
    status, headers, body, source = text_response(
        HTTPStatus.BAD_REQUEST, "a\r\nb \udc80 \u20ac"
    )
    assert body == [b"a b \\udc80 \xe2\x82\xac\n"]
    assert ("Content-Length", str(len(body[0]))) in headers
    assert (status, source) == ("400 Bad Request", "")


def test_update_sets_the_date_and_returns_the_rest_of_the_second() -> None:
    """The caller need not read the clock before the second ends."""
    values = ValueHeaders(lambda: NOW_NS + 300_000_000, lambda ms: ms)
    assert values.update() == 700_000_000
    assert values.date == ("Date", "Sat, 21 Nov 2026 09:00:07 GMT")


def test_format_date_after_the_year_9999_is_its_last_day() -> None:
    """It gives a date on the last day."""
    assert format_date(2**62).startswith("Fri, 31 Dec 9999 ")
