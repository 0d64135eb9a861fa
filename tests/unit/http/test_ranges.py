"""ranges.py under the application: which part comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from support.wsgi_client import Client, assert_error

VALUE = b"0123456789"
MODIFIED = "Sat, 21 Nov 2026 09:00:00 GMT"


@pytest.fixture
def client() -> Client:
    """Return a client of a cache with one value."""
    client = Client(FakeCache())
    client.put("/key", VALUE)
    return client


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=2-5", 2, 5),
        ("bytes=2-", 2, 9),
        ("bytes=9-9", 9, 9),
        ("bytes=5-99", 5, 9),
        ("bytes=-1", 9, 9),
        ("bytes=-99", 0, 9),
        ("Bytes = 0 - 3 ", 0, 3),
        ("bytes=0-999999999999999999", 0, 9),
    ],
)
def test_range_is_served(client: Client, asked: str, first: int, last: int) -> None:
    """206 with the part, its length and its place, and all else as for the whole."""
    answer = client.ask("GET", HTTP_RANGE=asked)
    assert answer.status == "206 Partial Content"
    assert answer.body == VALUE[first : last + 1]
    whole = client.ask("GET").headers
    assert answer.headers == whole | {
        "Content-Length": str(last + 1 - first),
        "Content-Range": f"bytes {first}-{last}/10",
    }


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-12", "bytes=99-", "bytes=-0"])
def test_range_behind_the_end_is_416(client: Client, asked: str) -> None:
    """With the length there is."""
    answer = client.ask("GET", HTTP_RANGE=asked)
    assert_error(answer, 416, "10 bytes")
    assert answer.headers["Content-Range"] == "bytes */10"


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=0-1,3-4",
        "bytes=5-2",
        "bytes=-",
        "bytes=a-b",
        "bytes=0-1-2",
        "bytes=+1-2",
        "lines=0-1",
        "bytes 0-1",
        "",
        "bytes=" + "9" * 5000 + "-",
    ],
)
def test_what_is_not_one_range_counts_as_none(client: Client, asked: str) -> None:
    """200 and the whole."""
    answer = client.ask("GET", HTTP_RANGE=asked)
    assert (answer.status, answer.body) == ("200 OK", VALUE)


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("TAG", 206),
        (MODIFIED, 206),
        ("", 206),
        ("W/TAG", 200),
        ('"other"', 200),
        ("Sat, 21 Nov 2026 09:00:01 GMT", 200),
        ("no date", 200),
    ],
)
def test_if_range_must_name_what_is_stored(
    client: Client, condition: str, status: int
) -> None:
    """A part of another value than the client has would be wrong bytes."""
    condition = condition.replace("TAG", client.ask("HEAD").headers["ETag"])
    answer = client.ask("GET", HTTP_RANGE="bytes=0-1", HTTP_IF_RANGE=condition)
    assert answer.status.startswith(str(status))
    assert answer.body == (b"01" if status == 206 else VALUE)


def test_if_range_alone_is_nothing(client: Client) -> None:
    """It speaks of a Range."""
    assert client.ask("GET", HTTP_IF_RANGE='"other"').body == VALUE


def test_head_and_misses_have_no_range(client: Client) -> None:
    """Range is about a GET that finds something."""
    head = client.ask("HEAD", HTTP_RANGE="bytes=0-1")
    assert (head.status, head.headers["Content-Length"]) == ("200 OK", "10")
    assert head.headers["Accept-Ranges"] == "bytes"
    assert client.ask("GET", "/absent", HTTP_RANGE="bytes=0-1").status[:3] == "404"


@pytest.mark.parametrize(
    ("asked", "status"), [("bytes=0-", 416), ("bytes=-0", 416), ("bytes=-5", 200)]
)
def test_empty_value_has_no_first_byte(client: Client, asked: str, status: int) -> None:
    """Its last bytes are there, but none can be named."""
    client.put("/empty", b"")
    answer = client.ask("GET", "/empty", HTTP_RANGE=asked)
    assert answer.status.startswith(str(status))


def test_part_of_a_put_is_refused(client: Client) -> None:
    """It would be taken for the whole."""
    answer = client.put("/key", b"new", HTTP_CONTENT_RANGE="bytes 0-2/10")
    assert_error(answer, 400, "Content-Range", "whole file")
    assert client.ask("GET").body == VALUE


@pytest.mark.property
@given(st.binary(max_size=100), st.integers(0, 120), st.integers(0, 120))
def test_range_is_the_slice(value: bytes, first: int, last: int) -> None:
    """For any value and any numbers."""
    client = Client(FakeCache())
    client.put("/key", value)
    answer = client.ask("GET", HTTP_RANGE=f"bytes={first}-{last}")
    if first > last:
        assert (answer.status, answer.body) == ("200 OK", value)
    elif first >= len(value):
        assert answer.status[:3] == "416"
    else:
        assert answer.body == value[first : last + 1]
