"""lifetimes.py and what a reader is told: how long a value is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from support.wsgi_client import Client, assert_error
from volcache.errors import ClientError
from volcache.http.ttl import SECONDS_MAX, TtlPolicy

NOW_MS = 1_795_251_600_123  # 2026-11-21 09:00:00.123
HOUR = "Sat, 21 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"CACHE_CONTROL": "max-age=60"}, 60),
        ({"CACHE_CONTROL": "public, Max-Age=60, immutable"}, 60),
        ({"CACHE_CONTROL": 'max-age="60"'}, 60),
        ({"CACHE_CONTROL": "max-age=0"}, 0),
        ({"CACHE_CONTROL": "max-age=060"}, 60),
        ({"CACHE_CONTROL": "max-age=60, max-age=70"}, 60),
        ({"CACHE_CONTROL": "max-age=99999999999999999999"}, SECONDS_MAX),
        ({"CACHE_CONTROL": "no-cache"}, None),
        ({"CACHE_CONTROL": "s-max-age=5, stale-max-age=7"}, None),
        ({"EXPIRES": HOUR}, 3599.877),
        ({"EXPIRES": "Thu, 01 Jan 1970 00:00:00 GMT"}, -1),
        ({"EXPIRES": "0"}, 0),
        ({"EXPIRES": ""}, None),
        ({"EXPIRES": HOUR, "CACHE_CONTROL": "max-age=60"}, 60),
        ({"EXPIRES": HOUR, "CACHE_CONTROL": "public"}, 3599.877),
    ],
)
def test_upload_says_how_long_it_is_kept(
    headers: dict[str, str], seconds: float | None
) -> None:
    """max-age before Expires; what is no date has passed, as HTTP has it."""
    environ = {f"HTTP_{name}": value for name, value in headers.items()}
    expires = TtlPolicy().expires_ms(environ, NOW_MS)
    assert expires == 0 or TtlPolicy().concern(environ)
    if seconds is None:
        assert expires == 0
    elif seconds < 0:
        assert 0 < expires < NOW_MS
    else:
        assert expires == NOW_MS + round(seconds * 1000)


@pytest.mark.parametrize(
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
        (10, 20, 0, 0),
    ],
)
def test_settings_stand_in_and_cut(
    default: int, longest: int, asked: int | None, seconds: int
) -> None:
    """default_ttl for uploads that do not say, max_ttl for all."""
    environ = {} if asked is None else {"HTTP_CACHE_CONTROL": f"max-age={asked}"}
    lifetimes = TtlPolicy(default_ttl=default, max_ttl=longest)
    assert lifetimes.concern(environ)
    assert lifetimes.expires_ms(environ, NOW_MS) == NOW_MS + seconds * 1000


@pytest.mark.parametrize("age", ["", "x", "-1", "1.5", "+1", "\xb2"])
def test_max_age_that_is_no_number_is_refused(age: str) -> None:
    """Said at once, before a file is kept for ever by mistake."""
    client = Client(FakeCache())
    answer = client.put("/key", b"v", HTTP_CACHE_CONTROL=f"max-age={age}")
    assert_error(answer, 400, "max-age", "SECONDS")
    assert not client.cache.records


def test_reader_is_told_age_and_what_is_left() -> None:
    """Both in whole seconds, never more than there is and never below zero."""
    client = Client(FakeCache())
    client.put("/key", b"value", HTTP_CACHE_CONTROL="max-age=60")
    seen = []
    for later_ms in (0, 876, 877, 2000, 59_999, 70_000, -5000):
        client.now_ms = NOW_MS + later_ms
        headers = client.ask("GET").headers
        seen.append((headers["Age"], headers["Cache-Control"]))
        assert client.ask("HEAD").headers == headers
    assert seen == [
        ("0", "max-age=60"),
        ("0", "max-age=59"),
        ("1", "max-age=59"),
        ("2", "max-age=58"),
        ("60", "max-age=0"),
        ("70", "max-age=0"),
        ("0", "max-age=65"),
    ]


def test_value_for_ever_has_no_cache_control() -> None:
    """Nothing is promised that nobody asked for."""
    client = Client(FakeCache(), TtlPolicy())
    client.put("/key", b"value")
    assert "Cache-Control" not in client.ask("GET").headers


@pytest.mark.property
@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, SECONDS_MAX))
def test_any_header_gives_a_time_that_fits_a_record(
    cache_control: str, expires: str, longest: int
) -> None:
    """64 bits of milliseconds, or a refusal; max_ttl holds in any case."""
    environ = {
        "HTTP_CACHE_CONTROL": "max-age=" + cache_control,
        "HTTP_EXPIRES": expires,
    }
    lifetimes = TtlPolicy(max_ttl=longest)
    for taken in (environ, {"HTTP_EXPIRES": expires}):
        try:
            end = lifetimes.expires_ms(taken, NOW_MS)
        except ClientError:
            continue
        assert 0 <= end < 2**63
        assert not longest or 0 < end <= NOW_MS + longest * 1000
