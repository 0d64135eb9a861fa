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


def test_put_from_another_server_reads_the_input_to_its_end(client: Client) -> None:
    """An input with only `read` is read to its length, or to its end."""
    assert_error(client.ask("PUT", HTTP_TRANSFER_ENCODING="gzip"), 411)
    for number, more in enumerate(
        ({"CONTENT_LENGTH": "4"}, {"HTTP_TRANSFER_ENCODING": "chunked"})
    ):
        value = b"new%d" % number
        body = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(value)))
        environ: dict[str, Any] = {"wsgi.input": body, **more}
        client.call({"REQUEST_METHOD": "PUT", "PATH_INFO": "/key", **environ})
        assert client.cache.records[b"key"].value == value


# --- Time to live ------------------------------------------------------------------


@pytest.mark.property
@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, MAX_AGE_SECONDS_MAX))
def test_read_expiry_of_any_header_fits_a_record(
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
