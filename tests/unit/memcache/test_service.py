"""service.py: who may do what, flush with a delay, statistics, bugs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from support.memcache_talk import Talk
from volcache.access import Access
from volcache.tokens import GUESS_SECONDS, GUESSES_MAX

REFUSED = "CLIENT_ERROR unauthenticated"
DENIED = "CLIENT_ERROR authentication failure"


def login(talk: Talk, password: str) -> str:
    """Give a token."""
    return talk.say(f"set auth 0 0 {5 + len(password)};user {password}")


def test_command_with_a_token_may_do_what_http_allows(tmp_path: Path) -> None:
    """The one for writing also allows reading; without one, everyone may."""
    passwords = ("", "reading", "writing")
    reads, writes = (
        ["get a", "stats items"],
        ["add b 0 0 1;x", "delete b", "flush_all 9"],
    )
    with Talk(tmp_path) as talk:
        for read, write, password in product(
            ("", "reading"), ("", "writing"), passwords
        ):
            talk.change(Access(read=read, write=write))
            talk.connect()
            if password and (read or write):
                right = "STORED" if password in {read, write} else DENIED
                assert login(talk, password) == right
            may_read = not read or password in {read, write} - {""}
            may_write = not write or password == write
            both = [(line, may_read and may_write) for line in ("gat 60 a", "mg a N60")]
            for line, is_allowed in (
                *((line, may_read) for line in reads),
                *((line, may_write) for line in writes),
                *both,
                ("mn", True),
            ):
                assert (talk.say(line) != REFUSED) is is_allowed, line


def test_authentication_after_ten_guesses_is_denied_for_a_minute(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    """By address; passwords are not logged."""
    talk.change(Access(write="writing"))
    talk.connect("127.0.0.1")
    for _ in range(GUESSES_MAX):
        assert login(talk, "guess") == DENIED
    assert login(talk, "writing") == DENIED
    assert login(talk.connect("127.0.0.2"), "writing") == "STORED"
    assert talk.refused["write"] == GUESSES_MAX + 1
    talk.clock.advance(GUESS_SECONDS)
    assert login(talk.connect("127.0.0.1"), "writing") == "STORED"
    assert "reason=wrong address=127.0.0.1" in caplog.text
    assert "guess" not in caplog.text


def test_flush_with_a_delay_waits_and_the_last_one_counts(talk: Talk) -> None:
    """The next one replaces it; what is stored meanwhile is flushed, too."""
    assert talk.service.seconds_to_flush() is None
    for seconds in (2_500_000, 30 * 24 * 3600):
        assert talk.say(f"flush_all {seconds}") == "OK"
        assert talk.service.seconds_to_flush() == seconds
    assert talk.say("flush_all 10;flush_all 20") == "OK;OK"
    assert talk.service.seconds_to_flush() == 20
    talk.say("set a 0 0 1;x")
    for seconds, reply in ((19, "VALUE a 0 1;x;END"), (1, "END")):
        talk.clock.advance(seconds)
        talk.service.flush_if_due()
        assert talk.say("get a") == reply
    assert talk.service.seconds_to_flush() is None
    assert talk.say("set a 0 0 1;x;flush_all 10;flush_all;get a") == "STORED;OK;OK;END"
    assert talk.service.seconds_to_flush() is None
