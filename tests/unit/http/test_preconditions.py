"""preconditions.py: conditional requests and ranges."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from support.wsgi_client import Client, assert_error
from volcache.http.preconditions import parse_date
from volcache.http.responses import format_date

# The value is stored at 09:00:00.123 and requested at 09:00:02.123.
EARLIER = "Sat, 21 Nov 2026 09:00:00 GMT"
MODIFIED = "Sat, 21 Nov 2026 09:00:01 GMT"
LATER = "Sat, 21 Nov 2026 09:00:02 GMT"
FUTURE = "Sat, 21 Nov 2026 09:00:03 GMT"
OTHER_FORMATS = ("Saturday, 21-Nov-26 09:00:01 GMT", "Sat Nov 21 09:00:01 2026")
OTHER = '"0-0-0-00000000"'


def with_value(value: bytes = b"value") -> Client:
    """Return a client of a cache with one value."""
    client = Client(FakeCache())
    client.put("/key", value)
    client.now_ms += 2000
    return client


@pytest.fixture
def client() -> Client:
    """Return one for a test that does not change the value."""
    return with_value()


def filled(client: Client, conditions: dict[str, str]) -> dict[str, str]:
    """Replace TAG in the conditions by the entity tag of the value."""
    tag = client.ask("HEAD").headers["ETag"]
    return {
        f"HTTP_{name.upper()}": value.replace("TAG", tag)
        for name, value in conditions.items()
    }


# Conditions of a GET and its status; RFC 9110 section 13.2.2 defines the order.
READS: list[tuple[dict[str, str], int]] = [
    *(
        ({"if_none_match": tags}, 304)
        for tags in ("TAG", "W/TAG", f"{OTHER}, TAG", "*", f"{OTHER}TAG")
    ),  # The last is how bjoern joins two headers.
    *(({"if_none_match": tags}, 200) for tags in (OTHER, "", "no tag")),
    *(({"if_modified_since": date}, 304) for date in (MODIFIED, LATER, *OTHER_FORMATS)),
    # The value may change before a date in the future.
    *(({"if_modified_since": date}, 200) for date in (EARLIER, FUTURE, "yesterday")),
    ({"if_none_match": OTHER, "if_modified_since": MODIFIED}, 200),
    ({"if_none_match": "TAG", "if_modified_since": EARLIER}, 304),
    *(({"if_match": tags}, 200) for tags in ("TAG", "*", f"{OTHER}, TAG")),
    *(({"if_match": tags}, 412) for tags in (OTHER, "W/TAG")),  # Strong tags only.
    *(
        ({"if_unmodified_since": date}, 200)
        for date in (MODIFIED, LATER, FUTURE, "yesterday")
    ),
    ({"if_unmodified_since": EARLIER}, 412),
    ({"if_match": "TAG", "if_unmodified_since": EARLIER}, 200),
    ({"if_match": "TAG", "if_none_match": "TAG"}, 304),
    ({"if_match": OTHER, "if_none_match": "TAG"}, 412),
    ({"if_unmodified_since": EARLIER, "if_modified_since": LATER}, 412),
    ({"if_none_match": "TAG", "range": "bytes=0-1"}, 304),
    ({"if_match": OTHER, "range": "bytes=0-1"}, 412),
    ({"if_match": "TAG", "range": "bytes=0-1"}, 206),
]


def test_read_with_conditions_has_the_status_of_rfc_9110(client: Client) -> None:
    """Each condition and their order, for GET and HEAD."""
    for conditions, status in READS:
        environ = filled(client, conditions)
        answer = client.ask("GET", "/key", b"", **environ)
        assert answer.status.startswith(str(status)), conditions
        if status == 412:
            assert_error(answer, 412, "is false", "stored file")
        if status == 200:
            assert answer.body == b"value"
        head = client.ask("HEAD", "/key", b"", **environ)
        assert head.status.startswith("200" if status == 206 else str(status))


def test_get_of_an_unmodified_value_returns_its_headers(client: Client) -> None:
    """Without Content-Type, and without a body."""
    whole = client.ask("GET").headers
    answer = client.ask("GET", HTTP_IF_NONE_MATCH=whole["ETag"])
    del whole["Content-Type"]
    assert answer == ("304 Not Modified", whole, b"")


def test_head_304_and_412_do_not_read_the_value(client: Client) -> None:
    """The header of the record is enough."""
    client.cache.reads = 0
    client.ask("HEAD")
    client.ask("GET", HTTP_IF_NONE_MATCH="*")
    client.ask("GET", HTTP_IF_MODIFIED_SINCE=LATER)
    client.ask("GET", HTTP_IF_MATCH=OTHER)
    assert client.cache.reads == 0


def test_change_with_a_false_condition_is_refused_and_changes_nothing() -> None:
    changes = {
        412: [
            *({"if_none_match": tag} for tag in ("*", "TAG")),
            *({"if_match": OTHER}, {"if_match": "TAG", "if_none_match": "*"}),
            {"if_unmodified_since": EARLIER},
        ],
        200: [
            *({"if_none_match": OTHER}, {"if_match": "*"}, {"if_match": "TAG"}),
            *({"if_unmodified_since": date} for date in (MODIFIED, LATER)),
            {"if_modified_since": LATER},  # For reads only.
        ],
    }
    for method, (status, rows) in product(("PUT", "DELETE"), changes.items()):
        for conditions in rows:
            client = with_value()
            environ = filled(client, conditions) | {"CONTENT_LENGTH": "3"}
            answer = client.ask(method, "/key", b"new", **environ)
            assert answer.status.startswith(str(status)), conditions
            value = client.cache.records.get(b"key")
            if status == 412:
                assert_error(answer, 412, "is false")
            kept = b"value" if status == 412 else b"new" if method == "PUT" else None
            assert (value and value.value) == kept


def test_condition_on_an_absent_key_leaves_a_miss_and_decides_a_put(
    client: Client,
) -> None:
    """A miss as without a condition, or a PUT: add, and compare and swap of nothing."""
    for name, value, status in (
        *(("IF_NONE_MATCH", "*", 200), ("IF_NONE_MATCH", OTHER, 200)),
        *(("IF_MATCH", "*", 412), ("IF_MATCH", OTHER, 412)),
        ("IF_UNMODIFIED_SINCE", EARLIER, 200),
    ):
        condition = {f"HTTP_{name}": value}
        for method in ("GET", "HEAD", "DELETE"):
            answer = client.ask(method, "/new", b"", **condition)
            assert answer.status == "404 Not Found"
        answer = client.put("/new", b"new", **condition)
        assert answer.status.startswith(str(status))
        assert (client.ask("DELETE", "/new").status == "200 OK") == (status == 200)


def test_bad_upload_is_refused_before_conditions_are_evaluated(client: Client) -> None:
    answer = client.put("/key", bytes(101), HTTP_IF_MATCH=OTHER)
    assert_error(answer, 413)


@pytest.mark.property
@given(st.integers(0, 4_000_000_000))
def test_parse_date_of_a_formatted_date_returns_its_second(seconds: int) -> None:
    assert parse_date(format_date(seconds)) == seconds


@pytest.mark.slow
@pytest.mark.property
@given(st.text(max_size=40) | st.from_regex(r"\w{3}, \d+ \w{3} \d+ [\d:]+ [+-]?\w+"))
def test_parse_date_of_any_text_returns_a_date_or_none(text: str) -> None:
    assert isinstance(parse_date(text), int | None)


# --- Ranges ------------------------------------------------------------------------

VALUE = b"0123456789"


@pytest.fixture
def ten_bytes() -> Client:
    """Return a client of a cache with one value of ten bytes."""
    return with_value(VALUE)


def test_get_with_one_range_returns_its_part_or_416(ten_bytes: Client) -> None:
    """206 with the part, its length and Content-Range; 416 after the end."""
    for asked, first, last in (
        *(("bytes=0-0", 0, 0), ("bytes=2-5", 2, 5), ("bytes=2-", 2, 9)),
        *(("bytes=9-9", 9, 9), ("bytes=5-99", 5, 9), ("bytes=-1", 9, 9)),
        *(("bytes=-99", 0, 9), ("Bytes=0-3", 0, 3)),
        ("bytes=0-999999999999999999", 0, 9),
    ):
        answer = ten_bytes.ask("GET", HTTP_RANGE=asked)
        assert answer.status == "206 Partial Content"
        assert answer.body == VALUE[first : last + 1]
        assert answer.headers == ten_bytes.ask("GET").headers | {
            "Content-Length": str(last + 1 - first),
            "Content-Range": f"bytes {first}-{last}/10",
        }
    for asked in ("bytes=10-", "bytes=10-12", "bytes=99-", "bytes=-0"):
        answer = ten_bytes.ask("GET", HTTP_RANGE=asked)
        assert_error(answer, 416, "10 bytes")
        assert answer.headers["Content-Range"] == "bytes */10"


def test_get_with_a_malformed_range_returns_the_whole_value(ten_bytes: Client) -> None:
    """200 with the whole value; so is a range of a HEAD, of a miss and of nothing."""
    for asked in (
        *("bytes=0 - 3", "bytes=5-2", "bytes=-", "bytes=a-b", "bytes=0-1-2", ""),
        *("bytes=+1-2", "lines=0-1", "bytes 0-1", "bytes=" + "9" * 5000 + "-"),
    ):
        answer = ten_bytes.ask("GET", HTTP_RANGE=asked)
        assert (answer.status, answer.body) == ("200 OK", VALUE)
    assert ten_bytes.ask("GET", HTTP_IF_RANGE='"other"').body == VALUE
    head = ten_bytes.ask("HEAD", HTTP_RANGE="bytes=0-1")
    assert (head.status, head.headers["Content-Length"]) == ("200 OK", "10")
    assert head.headers["Accept-Ranges"] == "bytes"
    assert ten_bytes.ask("GET", "/absent", HTTP_RANGE="bytes=0-1").status[:3] == "404"
    # A suffix of an empty value is satisfiable, but has no byte numbers.
    ten_bytes.put("/empty", b"")
    for asked, status in (("bytes=0-", 416), ("bytes=-0", 416), ("bytes=-5", 200)):
        answer = ten_bytes.ask("GET", "/empty", HTTP_RANGE=asked)
        assert answer.status.startswith(str(status))


def test_range_is_ignored_unless_if_range_matches(ten_bytes: Client) -> None:
    """A part of another value than the client has would corrupt its copy."""
    tag = ten_bytes.ask("HEAD").headers["ETag"]
    for condition in (tag, MODIFIED, ""):
        answer = ten_bytes.ask("GET", HTTP_RANGE="bytes=0-1", HTTP_IF_RANGE=condition)
        assert (answer.status[:3], answer.body) == ("206", b"01")
    for condition in (f"W/{tag}", '"other"', EARLIER, LATER, FUTURE, "no date"):
        answer = ten_bytes.ask("GET", HTTP_RANGE="bytes=0-1", HTTP_IF_RANGE=condition)
        assert (answer.status[:3], answer.body) == ("200", VALUE)
