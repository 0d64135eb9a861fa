"""upload.py: the value of a PUT, the headers stored with it, its time to live."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.wsgi_client import Client, assert_error
from volcache.errors import ClientError
from volcache.http.upload import MAX_AGE_SECONDS_MAX, read_expiry

NOW_MS = 1_795_251_600_123  # 2026-11-21 09:00:00.123


def test_put_needs_its_length(client: Client) -> None:
    """A body is stored whole or not at all; a missing body is not an empty value."""
    assert_error(client.ask("PUT"), 411, "Content-Length", "chunked")
    assert_error(client.ask("PUT", HTTP_TRANSFER_ENCODING="gzip"), 411)
    for length in ("4", "6", "55", "x", "5x", "-5", "+5", " 5", "0"):
        answer = client.ask("PUT", "/key", b"value", CONTENT_LENGTH=length)
        assert_error(answer, 400, "Content-Length", "5")
    # Python refuses to convert thousands of digits.
    assert_error(client.ask("PUT", "/key", b"v", CONTENT_LENGTH="9" * 9999), 400)
    assert not client.cache.records
    for length, body in (("05", b"value"), ("0", b""), ("00", b"")):
        answer = client.ask("PUT", "/key", body, CONTENT_LENGTH=length)
        assert answer.status == "200 OK"
    # Bjoern decodes the body and passes no CONTENT_LENGTH.
    for body in (b"", b"value"):
        answer = client.ask("PUT", "/key", body, HTTP_TRANSFER_ENCODING="chunked")
        assert answer.status == "200 OK"
        assert client.cache.records[b"key"].value == body


def test_put_stores_the_buffer_of_bjoern_without_a_copy(client: Client) -> None:
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


def test_unsafe_content_headers_are_refused(client: Client) -> None:
    """Too long, or able to end a header and begin another."""
    for name, limit in (("CONTENT_TYPE", 255), ("HTTP_CONTENT_ENCODING", 64)):
        assert client.put("/key", b"", **{name: "a" * limit}).status == "200 OK"
        client.ask("DELETE")
        control = [*map(chr, range(32)), "\x7f", "\r\nX-Evil: 1"]
        for bad in ("a" * (limit + 1), "\u20ac", *(f"a{text}b" for text in control)):
            assert_error(client.put("/key", b"", **{name: bad}), 400, "allowed")
        assert not client.cache.records


def test_flags_are_a_number_of_32_bits(client: Client) -> None:
    """Without the header they are 0."""
    for text in ("0", "7", "4294967295"):
        assert client.put("/key", b"", HTTP_X_FLAGS=text).status == "200 OK"
        headers = client.ask("GET").headers
        assert headers.get("X-Flags", "0") == text
    for text in ("", "-1", "4294967296", "x", "\xb2", "9" * 5000):
        assert_error(client.put("/key", b"", HTTP_X_FLAGS=text), 400, "4294967295")


def test_input_of_another_server_is_read(client: Client) -> None:
    """An input with only `read` is read to its length, or to its end."""
    for number, more in enumerate(
        ({"CONTENT_LENGTH": "4"}, {"HTTP_TRANSFER_ENCODING": "chunked"})
    ):
        value = b"new%d" % number
        body = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(value)))
        environ: dict[str, Any] = {"wsgi.input": body, **more}
        client.call({"REQUEST_METHOD": "PUT", "PATH_INFO": "/key", **environ})
        assert client.cache.records[b"key"].value == value


# --- Time to live ------------------------------------------------------------------


def test_default_ttl_with_max_ttl_is_limited_by_it() -> None:
    for default, longest, seconds in ((10, 20, 10), (30, 20, 20)):
        expiry = read_expiry({}, NOW_MS, default_ttl=default, max_ttl=longest)
        assert expiry == NOW_MS + seconds * 1000


def test_responses_have_the_remaining_max_age(client: Client) -> None:
    """
    In whole seconds, rounded down, at least 0; a clock set back adds no life.

    Without Age, which a client would subtract from what remains.
    """
    client.put("/key", b"value", HTTP_CACHE_CONTROL="max-age=60")
    later_ms = (0, 876, 877, 2000, -5000, 59_999, 70_000, -5000)
    for ms, left in zip(later_ms, (60, 59, 59, 58, 58, 0, 0, 0), strict=True):
        client.now_ms = NOW_MS + ms
        headers = client.ask("GET").headers
        assert "Age" not in headers
        assert headers["Cache-Control"] == f"max-age={left}"
        assert client.ask("HEAD").headers == headers


def test_upload_after_the_clock_was_set_back_lives_as_long_as_asked(
    client: Client,
) -> None:
    """Expiry is by the clock of the store, which has not gone back."""
    client.now_ms = NOW_MS - NOW_MS % 1000 - 3_600_000
    for headers in (
        {"HTTP_CACHE_CONTROL": "max-age=60"},
        {"HTTP_EXPIRES": "Sat, 21 Nov 2026 08:01:00 GMT"},
    ):
        client.put("/key", b"value", **headers)
        assert client.cache.records[b"key"].expires_ms == client.cache.now_ms + 60_000
        assert client.ask("GET").headers["Cache-Control"] == "max-age=60"


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
    for taken in (environ, {"HTTP_EXPIRES": expires}):
        try:
            end = read_expiry(taken, NOW_MS, max_ttl=longest)
        except ClientError:
            continue
        assert 0 <= end < 2**63
        assert not longest or 0 < end <= NOW_MS + longest * 1000
