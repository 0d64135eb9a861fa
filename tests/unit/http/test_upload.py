"""uploads.py under the application: what a PUT must be, and what is kept of it."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from support.wsgi_client import VALUE_SIZE_MAX, Client, assert_error


def test_put_without_length_is_refused(client: Client) -> None:
    """An absent body is not an empty value."""
    assert_error(client.ask("PUT"), 411, "Content-Length", "chunked")
    assert_error(client.ask("PUT", HTTP_TRANSFER_ENCODING="gzip"), 411)
    assert not client.cache.records


@pytest.mark.parametrize("body", [b"", b"value"])
def test_chunked_put_needs_no_length(client: Client, body: bytes) -> None:
    """Its body comes decoded, without a CONTENT_LENGTH."""
    answer = client.ask("PUT", "/key", body, HTTP_TRANSFER_ENCODING="chunked")
    assert answer.status == "200 OK"
    assert client.cache.records[b"key"].value == body


def test_put_over_the_limit_is_refused(client: Client) -> None:
    """413 with both numbers; the limit itself is allowed."""
    assert client.put("/key", bytes(VALUE_SIZE_MAX)).status == "200 OK"
    answer = client.put("/key", bytes(VALUE_SIZE_MAX + 1))
    assert_error(answer, 413, "101 bytes", "0 to 100")
    assert len(client.cache.records[b"key"].value) == VALUE_SIZE_MAX


@pytest.mark.parametrize("length", ["4", "6", "55", "x", "5x", "-5", "+5", " 5", "0"])
def test_length_that_does_not_fit_is_refused(client: Client, length: str) -> None:
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
    """As the grammar of HTTP has it."""
    assert client.ask("PUT", "/key", body, CONTENT_LENGTH=length).status == "200 OK"


def test_very_long_length_is_no_bug(client: Client) -> None:
    """Python refuses to convert thousands of digits; they are not converted."""
    assert_error(client.ask("PUT", "/key", b"v", CONTENT_LENGTH="9" * 9999), 400)


def test_value_is_not_copied(client: Client) -> None:
    """What bjoern has buffered is what is stored."""
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


def test_content_headers_are_kept(client: Client) -> None:
    """Type and encoding come back as they were."""
    client.put("/key.png", b"", CONTENT_TYPE="a/\xe9; b=c", HTTP_CONTENT_ENCODING="br")
    headers = client.ask("GET", "/key.png").headers
    assert headers["Content-Type"] == "a/\xe9; b=c"
    assert headers["Content-Encoding"] == "br"


def test_empty_content_headers_are_as_none(client: Client) -> None:
    """The type is guessed, no encoding is said."""
    client.put("/key.png", b"", CONTENT_TYPE="", HTTP_CONTENT_ENCODING="")
    headers = client.ask("GET", "/key.png").headers
    assert headers["Content-Type"] == "image/png"
    assert "Content-Encoding" not in headers


@pytest.mark.parametrize(
    ("name", "limit"), [("CONTENT_TYPE", 255), ("HTTP_CONTENT_ENCODING", 64)]
)
def test_content_headers_that_cannot_be_given_back_are_refused(
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
def test_kept_header_never_holds_a_control_character(value: str) -> None:
    """Headers are sent as they are."""
    client = Client(FakeCache())
    client.put("/key", b"", CONTENT_TYPE=value)
    got = client.ask("GET")
    if got.status == "200 OK":
        kept = got.headers["Content-Type"]
        assert kept == (value or "application/octet-stream")
        assert not any(ord(c) < 32 or ord(c) == 127 for c in kept)


@pytest.mark.parametrize("length", ["3", None])
def test_input_of_another_server_is_read(client: Client, length: str | None) -> None:
    """An input that can only be read is read to its length, or to its end."""
    body = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(b"new")))
    environ: dict[str, Any] = {"wsgi.input": body}
    if length is None:
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    else:
        environ["CONTENT_LENGTH"] = length
    client.call({"REQUEST_METHOD": "PUT", "PATH_INFO": "/key", **environ})
    assert client.cache.records[b"key"].value == b"new"
