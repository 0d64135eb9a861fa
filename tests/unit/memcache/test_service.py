"""service.py: who may do what, flush with a delay, statistics, bugs."""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path

import pytest

from support import binary_protocol as wire
from support.memcache_talk import Talk
from volcache import __version__
from volcache.access import Access
from volcache.memcache.service import Service
from volcache.tokens import GUESS_SECONDS, GUESSES_MAX

REFUSED = "CLIENT_ERROR unauthenticated"
DENIED = "CLIENT_ERROR authentication failure"


def login(talk: Talk, password: str) -> str:
    """Give a token."""
    return talk.say(f"set auth 0 0 {5 + len(password)};user {password}")


def test_tokens_allow_what_those_of_http_allow(tmp_path: Path) -> None:
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
            talk.service.change(Access(read=read, write=write), may_flush=True)
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


def test_changed_tokens_affect_open_connections(talk: Talk) -> None:
    """In both directions."""
    found = "VALUE a 0 1;x;END"
    assert talk.say("set a 0 0 1;x") == "STORED"
    talk.service.change(Access(read="reading", write="writing"), may_flush=False)
    assert talk.say("get a") == REFUSED
    assert login(talk, "reading") == "STORED"
    assert talk.say("get a;set a 0 0 1;y") == f"{found};{REFUSED}"
    talk.service.change(Access(read="other", write="writing"), may_flush=False)
    assert talk.say("get a") == REFUSED


def test_guesses_are_limited_and_counted(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    """By address; passwords are not logged."""
    talk.service.change(Access(write="writing"), may_flush=False)
    talk.connect("1.1.1.1")
    for _ in range(GUESSES_MAX):
        assert login(talk, "guess") == DENIED
    assert login(talk, "writing") == DENIED
    assert login(talk.connect("1.1.1.2"), "writing") == "STORED"
    assert talk.refused["write"] == GUESSES_MAX + 1
    talk.clock.advance(GUESS_SECONDS)
    assert login(talk.connect("1.1.1.1"), "writing") == "STORED"
    assert "reason=wrong address=1.1.1.1" in caplog.text
    assert "guess" not in caplog.text


def test_delayed_flush_waits(talk: Talk) -> None:
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


def test_flush_needs_the_setting(talk: Talk) -> None:
    """With the words of memcached."""
    talk.service.change(Access(), may_flush=False)
    refused = "CLIENT_ERROR flush_all not allowed"
    assert (
        talk.say("set a 0 0 0;;flush_all;get a") == f"STORED;{refused};VALUE a 0 0;;END"
    )


def test_bug_is_answered_and_logged(
    talk: Talk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its traceback; the connection is to be closed."""
    monkeypatch.setattr(Service, "report", lambda _service, _argument: 1 / 0)
    assert talk.say("stats;mn") == "SERVER_ERROR internal error"
    assert talk.is_closed
    records = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert [record.exc_info is not None for record in records] == [True]


def test_statistics_have_the_names_of_memcached(talk: Talk) -> None:
    """Numbers since the last reset; unknown ones are not found."""

    def stats(argument: str = "") -> dict[str, str]:
        lines = talk.say(f"stats {argument}").removesuffix("END").split(";")[:-1]
        return dict(line.removeprefix("STAT ").split(" ", 1) for line in lines)

    talk.say("set a 0 0 5;value;get a;gat 9 b")
    expected = {"cmd_get": "2", "get_hits": "1", "get_misses": "1", "cmd_set": "1"}
    expected |= {"cmd_touch": "1", "curr_items": "1", "threads": "1"}
    found = stats()
    assert expected.items() <= found.items()
    assert int(found["bytes"]) > 5
    assert talk.say("stats reset;stats detail dump") == "RESET;ERROR"
    assert {"cmd_get": "0", "curr_items": "1"}.items() <= stats().items()
    versions = {"version": "1.6.18", "volcache_version": __version__}
    assert versions.items() <= stats().items()
    assert stats("settings")["tcpport"] == "11211"


def test_statistics_in_binary_end_with_an_empty_response(talk: Talk) -> None:
    """Each pair is a response."""
    *pairs, last = wire.replies(talk.ask(wire.request(wire.STAT)))
    assert {pair.key: pair.value for pair in pairs}[b"threads"] == b"1"
    assert (last.opcode, last.status, last.key, last.value) == (wire.STAT, 0, b"", b"")
