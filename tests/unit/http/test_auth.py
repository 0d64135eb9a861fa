"""auth.py: what a client sends as its token, refusals, and the limit of guesses."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import pytest

from volcache.http.auth import refuse
from volcache.monitoring.requests import RequestStats
from volcache.tokens import (
    ADDRESSES_MAX,
    GUESS_SECONDS,
    GUESSES_MAX,
    LOG_SECONDS,
    GuessLimit,
    Refusals,
)


@pytest.fixture
def clock() -> Mock:
    """Return a clock that stands still."""
    return Mock(return_value=1000.0)


def test_refusals_of_a_kind_are_logged_once_in_ten_seconds(
    clock: Mock, caplog: pytest.LogCaptureFixture
) -> None:
    """By kind; the next line says how many were left out."""
    stats = RequestStats()
    refusals = Refusals(stats.refused, clock=clock)
    environ: dict[str, Any] = {
        "REMOTE_ADDR": "::1",
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/a b\n" + "x" * 300,
        "HTTP_X_FORWARDED_FOR": '1.2.3.4"',
        "HTTP_AUTHORIZATION": "Bearer guess",
    }
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        refuse(refusals, "read", "wrong", environ)
    refuse(refusals, "admin", "missing", {})
    clock.return_value += LOG_SECONDS
    refuse(refusals, "read", "wrong", environ)
    path = "/a%20b%0A" + "x" * 191 + "..."
    read = "kind=read reason=wrong address=::1"
    read += rf" forwarded='1.2.3.4\\x22' method=GET path={path} left_out="
    admin = (
        "kind=admin reason=missing address=- forwarded='' method=- path=- left_out=0"
    )
    expected = [f"{read}0", admin, f"{read}2"]
    assert caplog.messages == [f"request.unauthorized {line}" for line in expected]
    assert stats.refused == {"read": 4, "write": 0, "admin": 1}


def guess(limit: GuessLimit, address: str, count: int = GUESSES_MAX) -> None:
    """Send wrong tokens."""
    for _ in range(count):
        assert limit.seconds_left(address) == 0
        limit.add(address)


def test_guesses_above_the_limit_wait_until_the_period_is_over(clock: Mock) -> None:
    """It begins with the first of them."""
    limit = GuessLimit(clock)
    guess(limit, "1.1.1.1", 1)
    clock.return_value += GUESS_SECONDS - 10.5
    guess(limit, "1.1.1.1", GUESSES_MAX - 1)
    assert limit.seconds_left("1.1.1.1") == 11
    clock.return_value += 10.5
    guess(limit, "1.1.1.1")
    assert limit.seconds_left("1.1.1.1") == GUESS_SECONDS


def test_guesses_of_two_addresses_count_together_in_one_network_only(
    clock: Mock,
) -> None:
    """By the address, of IPv6 by what a client cannot choose."""
    for first, second, is_same in (
        *(("1.1.1.1", "1.1.1.2", False), ("2001:db8::1", "2001:db8::ffff:1", True)),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:1.1.1.1", "::ffff:1.1.1.2", False),
        *(("::ffff:1.1.1.1", "1.1.1.1", True), ("fe80::1%eth0", "fe80::2%eth1", True)),
        *(("", "1.1.1.1", False), ("a:b", "a:c", False)),
    ):
        limit = GuessLimit(clock)
        guess(limit, first)
        assert bool(limit.seconds_left(second)) is is_same


def test_guess_limit_when_full_forgets_the_oldest_client(clock: Mock) -> None:
    limit = GuessLimit(clock)
    guess(limit, "first")
    for number in range(ADDRESSES_MAX - 1):
        limit.add(f"{number}")
    assert limit.seconds_left("first")
    limit.add("one more")
    assert len(limit) == ADDRESSES_MAX
    assert not limit.seconds_left("first")
