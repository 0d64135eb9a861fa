"""Arbitrary requests: well-formed responses, and no key but the addressed one changes."""

from __future__ import annotations

import io
import logging
import re
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from support.extent import examples
from support.fake_cache import FakeCache
from support.wsgi_client import KEY_SIZE_MAX, VALUE_SIZE_MAX, Answer, Client
from volcache.errors import ClientError
from volcache.keys import parse_key

pytestmark = pytest.mark.property

LATIN: Final = st.text(st.characters(max_codepoint=255), max_size=30)
# Tags, dates and ranges that are valid or nearly so.
NEAR: Final = st.from_regex(
    r"\A(bytes=\d{0,3}-\d{0,3}(,\d-\d)?|\*|(W/)?\"[^\"]{0,9}\"|max-age=\d{0,25}"
    r"|(Sat|Sun), \d{1,2} Nov \d{1,5} \d\d:\d\d:\d\d GMT|\d{1,5}|chunked)\Z"
)
HEADERS: Final = [
    *("IF_MATCH", "IF_NONE_MATCH", "IF_MODIFIED_SINCE", "IF_UNMODIFIED_SINCE"),
    *("RANGE", "IF_RANGE", "CACHE_CONTROL", "EXPIRES", "CONTENT_RANGE", "DEPTH"),
    *("CONTENT_ENCODING", "TRANSFER_ENCODING", "EXPECT", "HOST", "AUTHORIZATION"),
    *("SERVICE_WORKER", "ORIGIN"),
]
METHODS: Final = st.sampled_from(
    ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PROPFIND", "MKCOL", "POST"]
)
PATHS: Final = st.sampled_from(
    ["/key", "/key/", "/k/../key", "/other", "/new", "/", "*", "", "/-/healthy", "/-/x"]
)


def environs() -> SearchStrategy[dict[str, Any]]:
    """Draw the environ of possible and impossible requests."""
    optional: dict[str, SearchStrategy[Any]] = {
        f"HTTP_{name}": NEAR | LATIN for name in HEADERS
    }
    optional |= {
        "REQUEST_METHOD": METHODS | LATIN,
        "PATH_INFO": PATHS | LATIN.map("/{}".format) | st.text(max_size=9),
        "CONTENT_LENGTH": st.sampled_from(["0", "3", "101"]) | LATIN,
        "CONTENT_TYPE": LATIN,
        "QUERY_STRING": LATIN,
        "wsgi.input": st.binary(max_size=VALUE_SIZE_MAX + 9).map(io.BytesIO),
    }
    return st.fixed_dictionaries({}, optional=optional) | st.fixed_dictionaries(
        {
            "REQUEST_METHOD": st.just("PUT"),
            "PATH_INFO": PATHS,
            "CONTENT_LENGTH": st.just("3"),
            "wsgi.input": st.just(b"new").map(io.BytesIO),
        },
        optional={f"HTTP_{name}": NEAR for name in HEADERS},
    )


def key_of(environ: dict[str, Any]) -> bytes | None:
    """Return the key of a request; None if its path is not a key."""
    try:
        return parse_key(environ.get("PATH_INFO", ""), KEY_SIZE_MAX)
    except ClientError:
        return None


def is_broken(environ: dict[str, Any]) -> bool:
    """Return whether a request violates WSGI, which is a fault of the server."""
    texts = [value for value in environ.values() if isinstance(value, str)]
    return (
        not {"REQUEST_METHOD", "wsgi.input"} <= environ.keys()
        or max("".join(texts), default="") > "\xff"
    )


def check_response(answer: Answer) -> None:
    """Check what no server between the application and the client corrects."""
    assert re.fullmatch(r"[1-5]\d\d [A-Za-z -]+", answer.status)
    names = [name.lower() for name in answer.headers]
    assert len(set(names)) == len(names)
    for name, value in answer.headers.items():
        assert re.fullmatch(r"[A-Za-z-]+", name)
        assert not any(ord(c) < 32 or ord(c) == 127 or ord(c) > 255 for c in value)


@settings(max_examples=examples(600), suppress_health_check=[HealthCheck.too_slow])
@given(environs())
def test_any_request_gets_a_well_formed_response(environ: dict[str, Any]) -> None:
    """Nothing is raised, and only the addressed key can change."""
    cache = FakeCache()
    for key in (b"key", b"key/", b"other", b"-/x"):
        cache.put(key, b"0123456789")
    before = dict(cache.records)
    logging.disable()
    try:
        answer = Client(cache).call(environ)
    finally:
        logging.disable(logging.NOTSET)
    check_response(answer)
    status = answer.status
    if status.startswith("500"):
        assert is_broken(environ)
    changed = {
        key
        for key in before | cache.records
        if before.get(key) is not cache.records.get(key)
    }
    assert changed <= {key_of(environ)}
    if changed:
        assert status.startswith("200")
        assert environ["REQUEST_METHOD"] in {"PUT", "DELETE"}
