"""conditional.py under the application: which condition is answered how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from support.wsgi_client import Client, assert_error
from volcache.http.preconditions import parse_date
from volcache.http.responses import format_date

MODIFIED = "Sat, 21 Nov 2026 09:00:00 GMT"
EARLIER = "Sat, 21 Nov 2026 08:59:59 GMT"
LATER = "Sat, 21 Nov 2026 09:00:01 GMT"
OTHER = '"0-0-0-00000000"'


@pytest.fixture
def client() -> Client:
    """Return a client of a cache with one value."""
    client = Client(FakeCache())
    client.put("/key", b"value")
    return client


def filled(client: Client, conditions: dict[str, str]) -> dict[str, str]:
    """Write the real tag where a condition says TAG."""
    tag = client.ask("HEAD").headers["ETag"]
    return {
        f"HTTP_{name.upper()}": value.replace("TAG", tag)
        for name, value in conditions.items()
    }


# What a GET is answered; RFC 9110 section 13.2.2 has the order.
READS = [
    ({"if_none_match": "TAG"}, 304),
    ({"if_none_match": "W/TAG"}, 304),
    ({"if_none_match": f"{OTHER}, TAG"}, 304),
    ({"if_none_match": f"{OTHER}TAG"}, 304),  # As bjoern joins two headers.
    ({"if_none_match": "*"}, 304),
    ({"if_none_match": OTHER}, 200),
    ({"if_none_match": ""}, 200),
    ({"if_none_match": "no tag"}, 200),
    ({"if_modified_since": MODIFIED}, 304),
    ({"if_modified_since": LATER}, 304),
    ({"if_modified_since": EARLIER}, 200),
    ({"if_modified_since": "Saturday, 21-Nov-26 09:00:00 GMT"}, 304),
    ({"if_modified_since": "Sat Nov 21 09:00:00 2026"}, 304),
    ({"if_modified_since": "yesterday"}, 200),
    ({"if_none_match": OTHER, "if_modified_since": MODIFIED}, 200),
    ({"if_none_match": "TAG", "if_modified_since": EARLIER}, 304),
    ({"if_match": "TAG"}, 200),
    ({"if_match": "*"}, 200),
    ({"if_match": f"{OTHER}, TAG"}, 200),
    ({"if_match": OTHER}, 412),
    ({"if_match": "W/TAG"}, 412),  # Strong tags only.
    ({"if_unmodified_since": MODIFIED}, 200),
    ({"if_unmodified_since": EARLIER}, 412),
    ({"if_unmodified_since": "yesterday"}, 200),
    ({"if_match": "TAG", "if_unmodified_since": EARLIER}, 200),
    ({"if_match": "TAG", "if_none_match": "TAG"}, 304),
    ({"if_match": OTHER, "if_none_match": "TAG"}, 412),
    ({"if_unmodified_since": EARLIER, "if_modified_since": LATER}, 412),
    ({"if_none_match": "TAG", "range": "bytes=0-1"}, 304),
    ({"if_match": OTHER, "range": "bytes=0-1"}, 412),
    ({"if_match": "TAG", "range": "bytes=0-1"}, 206),
]


@pytest.mark.parametrize(("conditions", "status"), READS)
def test_condition_of_a_get(
    client: Client, conditions: dict[str, str], status: int
) -> None:
    """Each condition, their order, and the same for HEAD."""
    environ = filled(client, conditions)
    answer = client.ask("GET", "/key", b"", **environ)
    assert answer.status.startswith(str(status))
    if status == 412:
        assert_error(answer, 412, "does not hold", "stored file")
    if status == 200:
        assert answer.body == b"value"
    head = client.ask("HEAD", "/key", b"", **environ)
    assert head.status.startswith("200" if status == 206 else str(status))


def test_304_has_the_headers_of_the_value_and_nothing_else(client: Client) -> None:
    """All but the type, and without a body."""
    whole = client.ask("GET").headers
    answer = client.ask("GET", HTTP_IF_NONE_MATCH=whole["ETag"])
    del whole["Content-Type"]
    assert answer == ("304 Not Modified", whole, b"")


def test_head_and_304_do_not_read_the_value(client: Client) -> None:
    """What they say is known from the record's header."""
    client.cache.reads = 0
    client.ask("HEAD")
    client.ask("GET", HTTP_IF_NONE_MATCH="*")
    client.ask("GET", HTTP_IF_MODIFIED_SINCE=LATER)
    client.ask("GET", HTTP_IF_MATCH=OTHER)
    assert client.cache.reads == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("name", ["HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"])
def test_condition_on_an_absent_key_is_a_miss(
    client: Client, method: str, name: str
) -> None:
    """What would not succeed anyway is answered as without a condition."""
    answer = client.ask(method, "/absent", b"", **{name: "*"})
    assert answer.status == "404 Not Found"


# What a PUT and a DELETE of a value that is there are answered.
CHANGES = [
    ({"if_none_match": "*"}, 412),
    ({"if_none_match": "TAG"}, 412),
    ({"if_none_match": OTHER}, 200),
    ({"if_match": "*"}, 200),
    ({"if_match": "TAG"}, 200),
    ({"if_match": OTHER}, 412),
    ({"if_match": "TAG", "if_none_match": "*"}, 412),
    ({"if_unmodified_since": EARLIER}, 412),
    ({"if_unmodified_since": MODIFIED}, 200),
    ({"if_modified_since": LATER}, 200),  # Says nothing about a change.
]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(("conditions", "status"), CHANGES)
def test_condition_of_a_change(
    client: Client, method: str, conditions: dict[str, str], status: int
) -> None:
    """412 changes nothing."""
    environ = filled(client, conditions) | {"CONTENT_LENGTH": "3"}
    answer = client.ask(method, "/key", b"new", **environ)
    assert answer.status.startswith(str(status))
    value = client.cache.records.get(b"key")
    if status == 412:
        assert_error(answer, 412, "does not hold")
        assert value is not None
        assert value.value == b"value"
    else:
        assert (value.value if value else b"new") == b"new"


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("HTTP_IF_NONE_MATCH", "*", 200),
        ("HTTP_IF_NONE_MATCH", OTHER, 200),
        ("HTTP_IF_MATCH", "*", 412),
        ("HTTP_IF_MATCH", OTHER, 412),
        ("HTTP_IF_UNMODIFIED_SINCE", EARLIER, 200),
    ],
)
def test_condition_of_a_put_to_an_absent_key(
    client: Client, name: str, value: str, status: int
) -> None:
    """Add, and swap of what is not there."""
    answer = client.put("/new", b"new", **{name: value})
    assert answer.status.startswith(str(status))
    assert (b"new" in client.cache.records) == (status == 200)


def test_bad_upload_is_said_before_a_condition(client: Client) -> None:
    """What would not succeed anyway is answered as without a condition."""
    answer = client.put("/key", bytes(101), HTTP_IF_MATCH=OTHER)
    assert_error(answer, 413)


@pytest.mark.property
@given(st.integers(0, 4_000_000_000))
def test_dates_written_are_read(seconds: int) -> None:
    """A date that was given is understood when it comes back."""
    assert parse_date(format_date(seconds)) == seconds


@pytest.mark.property
@given(st.text(max_size=40) | st.from_regex(r"\w{3}, \d+ \w{3} \d+ [\d:]+ [+-]?\w+"))
def test_text_that_is_no_date_is_no_error(text: str) -> None:
    """It is a number or None, whatever is sent."""
    assert isinstance(parse_date(text), int | None)
