"""upload.py: the value of a PUT, the headers stored with it, its time to live."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from support.tables import each_row
from support.wsgi_client import VALUE_SIZE_MAX, Client, assert_error
from volcache.errors import ClientError
from volcache.http.upload import MAX_AGE_SECONDS_MAX, TtlPolicy

NOW_MS = 1_795_251_600_123  # 2026-11-21 09:00:00.123
HOUR = "Sat, 21 Nov 2026 10:00:00 GMT"


def test_put_without_length_is_refused(client: Client) -> None:
    """A missing body is not an empty value."""
    assert_error(client.ask("PUT"), 411, "Content-Length", "chunked")
    assert_error(client.ask("PUT", HTTP_TRANSFER_ENCODING="gzip"), 411)
    assert not client.cache.records


@pytest.mark.parametrize("body", [b"", b"value"])
def test_chunked_put_needs_no_length(client: Client, body: bytes) -> None:
    """Bjoern decodes the body and passes no CONTENT_LENGTH."""
    answer = client.ask("PUT", "/key", body, HTTP_TRANSFER_ENCODING="chunked")
    assert answer.status == "200 OK"
    assert client.cache.records[b"key"].value == body


def test_put_over_the_limit_is_refused(client: Client) -> None:
    """413 with both numbers; a value of the limit itself is stored."""
    assert client.put("/key", bytes(VALUE_SIZE_MAX)).status == "200 OK"
    answer = client.put("/key", bytes(VALUE_SIZE_MAX + 1))
    assert_error(answer, 413, "101 bytes", "0 to 100")
    assert len(client.cache.records[b"key"].value) == VALUE_SIZE_MAX


@pytest.mark.parametrize("length", ["4", "6", "55", "x", "5x", "-5", "+5", " 5", "0"])
def test_wrong_length_is_refused(client: Client, length: str) -> None:
    """A body is stored whole or not at all."""
    answer = client.ask("PUT", "/key", b"value", CONTENT_LENGTH=length)
    assert_error(answer, 400, "Content-Length", "5")
    assert not client.cache.records


@pytest.mark.parametrize(
    ("length", "body"), [("05", b"value"), ("0", b""), ("00", b"")]
)
def test_length_may_have_leading_zeros(
    client: Client, length: str, body: bytes
) -> None:
    """The grammar of HTTP allows them."""
    assert client.ask("PUT", "/key", body, CONTENT_LENGTH=length).status == "200 OK"


def test_very_long_length_is_refused(client: Client) -> None:
    """400, although Python refuses to convert thousands of digits."""
    assert_error(client.ask("PUT", "/key", b"v", CONTENT_LENGTH="9" * 9999), 400)


def test_value_is_not_copied(client: Client) -> None:
    """The buffer of bjoern is what is stored."""
    body = io.BytesIO()
    body.write(b"v" * 50)
    body.write(b"w" * 50)
    body.seek(0)
    client.call(
        {
            "REQUEST_METHOD": "PUT",
            "PATH_INFO": "/key",
            "CONTENT_LENGTH": "100",
            "wsgi.input": body,
        }
    )
    assert client.cache.records[b"key"].value is body.getvalue()


def test_content_headers_are_returned(client: Client) -> None:
    """Content-Type and Content-Encoding as they were sent."""
    client.put("/key.png", b"", CONTENT_TYPE="a/\xe9; b=c", HTTP_CONTENT_ENCODING="br")
    headers = client.ask("GET", "/key.png").headers
    assert headers["Content-Type"] == "a/\xe9; b=c"
    assert headers["Content-Encoding"] == "br"


def test_empty_content_headers_count_as_absent(client: Client) -> None:
    """The type is guessed, and there is no encoding."""
    client.put("/key.png", b"", CONTENT_TYPE="", HTTP_CONTENT_ENCODING="")
    headers = client.ask("GET", "/key.png").headers
    assert headers["Content-Type"] == "image/png"
    assert "Content-Encoding" not in headers


@pytest.mark.parametrize(
    ("name", "limit"), [("CONTENT_TYPE", 255), ("HTTP_CONTENT_ENCODING", 64)]
)
def test_unsafe_content_headers_are_refused(
    client: Client, name: str, limit: int
) -> None:
    """Too long, or able to end a header and begin another."""
    assert client.put("/key", b"", **{name: "a" * limit}).status == "200 OK"
    client.ask("DELETE")
    for bad in ("a" * (limit + 1), "a\r\nX-Evil: 1", "\0", "a\tb", "\x7f", "\u20ac"):
        assert_error(client.put("/key", b"", **{name: bad}), 400, "allowed")
    assert not client.cache.records


@pytest.mark.property
@given(st.text(st.characters(max_codepoint=255), max_size=30))
def test_stored_header_has_no_control_character(value: str) -> None:
    """For any text: headers are sent as they are stored."""
    client = Client(FakeCache())
    client.put("/key", b"", CONTENT_TYPE=value)
    got = client.ask("GET")
    if got.status == "200 OK":
        kept = got.headers["Content-Type"]
        assert kept == (value or "application/octet-stream")
        assert not any(ord(c) < 32 or ord(c) == 127 for c in kept)


@pytest.mark.parametrize("length", ["3", None])
def test_input_of_another_server_is_read(client: Client, length: str | None) -> None:
    """An input with only `read` is read to its length, or to its end."""
    body = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(b"new")))
    environ: dict[str, Any] = {"wsgi.input": body}
    if length is None:
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    else:
        environ["CONTENT_LENGTH"] = length
    client.call({"REQUEST_METHOD": "PUT", "PATH_INFO": "/key", **environ})
    assert client.cache.records[b"key"].value == b"new"


def test_put_with_content_range_is_refused(client: Client) -> None:
    """A part of a file must not be stored as the whole."""
    client.put("/key", b"value")
    answer = client.put("/key", b"new", HTTP_CONTENT_RANGE="bytes 0-2/10")
    assert_error(answer, 400, "Content-Range", "whole file")
    assert client.ask("GET").body == b"value"


# --- Time to live ------------------------------------------------------------------


@each_row(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"CACHE_CONTROL": "max-age=60"}, 60),
        ({"CACHE_CONTROL": "public, Max-Age=60, immutable"}, 60),
        ({"CACHE_CONTROL": 'max-age="60"'}, 60),
        ({"CACHE_CONTROL": "max-age=0"}, None),
        ({"CACHE_CONTROL": "max-age=00"}, None),
        ({"CACHE_CONTROL": "max-age=-1"}, None),
        ({"CACHE_CONTROL": "max-age=1"}, 1),
        ({"CACHE_CONTROL": "max-age=060"}, 60),
        ({"CACHE_CONTROL": "max-age=60, max-age=70"}, 60),
        ({"CACHE_CONTROL": "max-age=99999999999999999999"}, MAX_AGE_SECONDS_MAX),
        ({"CACHE_CONTROL": "no-cache"}, None),
        ({"CACHE_CONTROL": "s-max-age=5, stale-max-age=7"}, None),
        ({"EXPIRES": HOUR}, 3599.877),
        ({"EXPIRES": "Thu, 01 Jan 1970 00:00:00 GMT"}, None),
        ({"EXPIRES": "Sat, 21 Nov 2026 08:00:00 GMT"}, None),
        ({"EXPIRES": "0"}, None),
        ({"EXPIRES": "-1"}, None),
        ({"EXPIRES": HOUR, "CACHE_CONTROL": "max-age=0"}, None),
        ({"EXPIRES": "0", "CACHE_CONTROL": "max-age=60"}, 60),
        ({"EXPIRES": ""}, None),
        ({"EXPIRES": HOUR, "CACHE_CONTROL": "max-age=60"}, 60),
        ({"EXPIRES": HOUR, "CACHE_CONTROL": "public"}, 3599.877),
    ],
)
def test_max_age_and_expires_set_the_time_to_live(
    headers: dict[str, str], seconds: float | None
) -> None:
    """max-age takes precedence over Expires; a time that is over counts as none."""
    environ = {f"HTTP_{name}": value for name, value in headers.items()}
    expires = TtlPolicy().expires_ms(environ, NOW_MS)
    if seconds is None:
        assert expires == 0
    else:
        assert expires == NOW_MS + round(seconds * 1000)


@each_row(
    ("default", "longest", "asked", "seconds"),
    [
        (10, 0, None, 10),
        (10, 0, 5, 5),
        (10, 0, 50, 50),
        (0, 20, None, 20),
        (0, 20, 5, 5),
        (0, 20, 50, 20),
        (10, 20, None, 10),
        (30, 20, None, 20),
        (10, 20, 0, 10),
        (0, 20, 0, 20),
    ],
)
def test_settings_provide_default_and_limit(
    default: int, longest: int, asked: int | None, seconds: int
) -> None:
    """default_ttl applies to uploads without a time, max_ttl to all."""
    environ = {} if asked is None else {"HTTP_CACHE_CONTROL": f"max-age={asked}"}
    policy = TtlPolicy(default_ttl=default, max_ttl=longest)
    assert policy.expires_ms(environ, NOW_MS) == NOW_MS + seconds * 1000


@each_row("age", ["", "x", "-", "-x", "1.5", "+1", "\xb2"])
def test_max_age_that_is_not_a_number_is_refused(age: str) -> None:
    """Ignoring it would keep the file without a limit."""
    client = Client(FakeCache())
    answer = client.put("/key", b"v", HTTP_CACHE_CONTROL=f"max-age={age}")
    assert_error(answer, 400, "max-age", "SECONDS")
    assert not client.cache.records


def test_responses_have_the_remaining_max_age() -> None:
    """
    In whole seconds, rounded down, at least 0; a clock set back adds no life.

    Without Age, which a client would subtract from what remains.
    """
    client = Client(FakeCache())
    client.put("/key", b"value", HTTP_CACHE_CONTROL="max-age=60")
    seen = []
    for later_ms in (0, 876, 877, 2000, -5000, 59_999, 70_000, -5000):
        client.now_ms = NOW_MS + later_ms
        headers = client.ask("GET").headers
        assert "Age" not in headers
        seen.append(headers["Cache-Control"])
        assert client.ask("HEAD").headers == headers
    assert seen == [
        "max-age=60",
        "max-age=59",
        "max-age=59",
        "max-age=58",
        "max-age=58",
        "max-age=0",
        "max-age=0",
        "max-age=0",
    ]


@each_row(
    "headers",
    [
        {"HTTP_CACHE_CONTROL": "max-age=60"},
        {"HTTP_EXPIRES": "Sat, 21 Nov 2026 08:01:00 GMT"},
    ],
)
def test_upload_after_the_clock_was_set_back_lives_as_long_as_asked(
    headers: dict[str, str],
) -> None:
    """Expiry is by the clock of the store, which has not gone back."""
    client = Client(FakeCache())
    client.now_ms = NOW_MS - NOW_MS % 1000 - 3_600_000
    client.put("/key", b"value", **headers)
    assert client.cache.records[b"key"].expires_ms == client.cache.now_ms + 60_000
    assert client.ask("GET").headers["Cache-Control"] == "max-age=60"


def test_value_without_expiry_is_to_be_revalidated() -> None:
    """Otherwise browsers guess a lifetime from Last-Modified."""
    client = Client(FakeCache())
    client.put("/key", b"value")
    assert client.ask("GET").headers["Cache-Control"] == "no-cache"


@each_row(
    "headers",
    [
        {"HTTP_EXPIRES": "0"},
        {"HTTP_EXPIRES": "-1"},
        {"HTTP_EXPIRES": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"HTTP_CACHE_CONTROL": "max-age=0"},
    ],
)
def test_upload_with_a_lifetime_that_is_over_can_be_read_back(
    headers: dict[str, str],
) -> None:
    """Real clients send these with every request."""
    client = Client(FakeCache())
    client.put("/key", b"value", **headers)
    client.now_ms += 10_000
    answer = client.ask("GET")
    assert answer.body == b"value"
    assert answer.headers["Cache-Control"] == "no-cache"


@each_row(
    ("sent", "returned"),
    [
        ("public, immutable", "public, immutable"),
        ("max-age=60, public", "max-age=60, public"),
        ("public,MAX-AGE=60,Immutable", "max-age=60, public, Immutable"),
        ("no-transform,max-age=0", "no-transform"),
        ("no-store", "no-store"),
        ("s-maxage=600, public", "public"),
        ("s-maxage=600", "no-cache"),
        (
            "stale-while-revalidate=30, max-age=60",
            "max-age=60, stale-while-revalidate=30",
        ),
        ('private="X-A, X-B", no-cache', 'private="X-A, X-B", no-cache'),
        ('max-age="60", public', "max-age=60, public"),
        ("public public, public", "public"),
        ("public immutable", "public, immutable"),
        (", ;public ; ,", "public"),
        ('x="a\\"b", y', 'x="a\\"b", y'),
        ('x="unfinished', "x, unfinished"),
        ("a\r\nX-Evil: 1", "a, X-Evil"),
        ("\xe9\x00", "no-cache"),
        ("c" * 255, "c" * 255),
    ],
)
def test_directives_of_an_upload_are_returned(sent: str, returned: str) -> None:
    """With the rest of the lifetime; what is not a directive is left out."""
    client = Client(FakeCache())
    client.put("/key", b"value", HTTP_CACHE_CONTROL=sent)
    assert client.ask("GET").headers["Cache-Control"] == returned


def test_directives_are_limited() -> None:
    """A record has room for 255 bytes."""
    client = Client(FakeCache())
    answer = client.put("/key", b"value", HTTP_CACHE_CONTROL="c" * 256)
    assert_error(answer, 400, "Cache-Control is 256 bytes long", "0 to 255")
    assert not client.cache.records


@pytest.mark.property
@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, MAX_AGE_SECONDS_MAX))
def test_any_header_gives_a_time_that_fits_a_record(
    cache_control: str, expires: str, longest: int
) -> None:
    """At most 63 bits of milliseconds, or a refusal; max_ttl always applies."""
    environ = {
        "HTTP_CACHE_CONTROL": "max-age=" + cache_control,
        "HTTP_EXPIRES": expires,
    }
    policy = TtlPolicy(max_ttl=longest)
    for taken in (environ, {"HTTP_EXPIRES": expires}):
        try:
            end = policy.expires_ms(taken, NOW_MS)
        except ClientError:
            continue
        assert 0 <= end < 2**63
        assert not longest or 0 < end <= NOW_MS + longest * 1000
