"""service.py: who may do what, flush with a delay, statistics, bugs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from support.stores import open_store
from volcache.cache import Cache
from volcache.memcache.commands import (
    Authenticate,
    Command,
    FlushAll,
    Get,
    Put,
    Result,
    Simple,
    Stats,
    Status,
)
from volcache.memcache.executor import Executor, Limits
from volcache.memcache.service import Access, Facts, Service
from volcache.monitoring.commands import CommandStats
from volcache.tokens import GUESS_SECONDS, GUESSES_MAX, Refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GET = Get("get", b"key")
SET = Put("set", b"key", "set", b"value")
GAT = Get("gat", b"key", exptime=60)
VIVIFY = Get("mg", b"key", is_meta=True, vivify=60)
STATS = Stats("stats")
FLUSH = FlushAll("flush_all")
MN = Simple("mn")


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


class Case:
    """A service over a real cache."""

    def __init__(self, cache: Cache) -> None:
        """Make one without tokens."""
        self.clock = Clock()
        self.counts = {"read": 0, "write": 0, "admin": 0}
        self.stats = CommandStats()
        self.cache = cache
        self.executor = Executor(cache, Limits(key_size=250, value_size=1000))
        self.service = Service(
            cache,
            self.executor,
            self.stats,
            Refusals(self.counts, clock=self.clock),
            Facts(listen="127.0.0.1:11211", connections_max=100, value_size=1000),
            clock=self.clock,
        )

    def status(self, command: Command, password: bytes | None = None) -> Status:
        """Return what becomes of a command of a client that gave this password."""
        session = self.service.session("1.2.3.4")
        if password is not None:
            self.service.execute(session, Authenticate("auth", b"user", password))
        return self.service.execute(session, command).status


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """Return a service."""
    store = open_store(tmp_path)
    yield Case(Cache(store))
    store.close()


READS: list[Command] = [GET, STATS]
WRITES: list[Command] = [SET, GAT, VIVIFY, FLUSH]


@pytest.mark.parametrize("password", [None, b"wrong", b"reading", b"writing"])
@pytest.mark.parametrize(
    ("read", "write"),
    [("", ""), ("reading", ""), ("", "writing"), ("reading", "writing")],
)
def test_tokens_allow_what_those_of_http_allow(
    case: Case, read: str, write: str, password: bytes | None
) -> None:
    """The one for writing also allows reading; without one, everyone may."""
    case.service.change(Access(read=read, write=write), may_flush=True)
    right = {token.encode() for token in (read, write) if token}
    may_read = not read or password in right
    may_write = not write or password == write.encode()
    for command in READS:
        status = case.status(command, password)
        assert (status is not Status.UNAUTHORIZED) is may_read
    for command in WRITES:
        status = case.status(command, password)
        is_allowed = may_write and (may_read or not isinstance(command, Get))
        assert (status is not Status.UNAUTHORIZED) is is_allowed
    assert case.status(MN, password) is Status.OK


def test_session_wants_credentials_until_it_gave_a_right_token(case: Case) -> None:
    """With a token for writing only, too."""
    assert not case.service.session("").wants_credentials
    case.service.change(Access(write="writing"), may_flush=False)
    session = case.service.session("")
    assert session.wants_credentials
    wrong = Authenticate("auth", b"", b"wrong")
    assert case.service.execute(session, wrong).status is Status.DENIED
    assert session.wants_credentials
    right = Authenticate("auth", b"", b"writing")
    assert case.service.execute(session, right).status is Status.AUTHENTICATED
    assert not session.wants_credentials


def test_changed_tokens_affect_open_connections(case: Case) -> None:
    """In both directions."""
    session = case.service.session("")
    execute = case.service.execute
    assert execute(session, SET).status is Status.STORED
    case.service.change(Access(read="reading", write="writing"), may_flush=False)
    assert execute(session, GET).status is Status.UNAUTHORIZED
    execute(session, Authenticate("auth", b"", b"reading"))
    assert execute(session, GET).status is Status.HIT
    assert execute(session, SET).status is Status.UNAUTHORIZED
    case.service.change(Access(read="other", write="writing"), may_flush=False)
    assert execute(session, GET).status is Status.UNAUTHORIZED


def test_guesses_are_limited_and_counted(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """By address; passwords are not logged."""
    case.service.change(Access(write="writing"), may_flush=False)
    session, other = case.service.session("1.1.1.1"), case.service.session("1.1.1.2")
    wrong = Authenticate("auth", b"user", b"guess")
    right = Authenticate("auth", b"user", b"writing")
    for _ in range(GUESSES_MAX):
        assert case.service.execute(session, wrong).status is Status.DENIED
    assert case.service.execute(session, right).status is Status.DENIED
    assert case.service.execute(other, right).status is Status.AUTHENTICATED
    assert case.counts["write"] == GUESSES_MAX + 1
    case.clock.now += GUESS_SECONDS
    assert case.service.execute(session, right).status is Status.AUTHENTICATED
    assert "reason=wrong address=1.1.1.1" in caplog.text
    assert "guess" not in caplog.text


def test_flush_needs_the_setting(case: Case) -> None:
    """With the words of memcached."""
    case.status(SET)
    result = case.service.execute(case.service.session(""), FLUSH)
    assert result == Result(Status.FORBIDDEN, text="flush_all not allowed")
    assert case.status(GET) is Status.HIT


def test_delayed_flush_waits(case: Case) -> None:
    """The next one replaces it; what is stored meanwhile is flushed, too."""
    case.service.change(Access(), may_flush=True)
    assert case.service.seconds_to_flush() is None
    assert case.status(FlushAll("flush_all", 10)) is Status.OK
    assert case.status(FlushAll("flush_all", 20)) is Status.OK
    assert case.service.seconds_to_flush() == 20
    case.status(SET)
    case.clock.now += 19
    case.service.flush_if_due()
    assert case.status(GET) is Status.HIT
    case.clock.now += 1
    case.service.flush_if_due()
    assert case.status(GET) is Status.MISS
    assert case.service.seconds_to_flush() is None
    case.status(SET)
    case.status(FlushAll("flush_all", 10))
    assert case.status(FLUSH) is Status.OK
    assert (case.status(GET), case.service.seconds_to_flush()) == (Status.MISS, None)


def test_bug_is_answered_and_logged(
    case: Case, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its traceback; the connection is to be closed."""

    def fail(_cache: Any, _key: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Cache, "get", fail)
    session = case.service.session("")
    result = case.service.execute(session, GET)
    assert result == Result(Status.FAILED, text="internal error")
    assert session.is_broken
    records = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert [record.exc_info is not None for record in records] == [True]


def test_statistics_have_the_names_of_memcached(case: Case) -> None:
    """Numbers since the last reset; unknown ones are not found."""

    def stats(argument: bytes = b"") -> dict[str, str]:
        command = Stats("stats", argument)
        result = case.service.execute(case.service.session(""), command)
        assert result.status is Status.OK
        return dict(result.pairs)

    case.status(SET)
    for name, status in (("get", "hit"), ("gat", "miss"), ("set", "stored")):
        case.stats.answers[name, status].observe(0, 1)
    found = stats()
    assert (found["cmd_get"], found["get_hits"], found["get_misses"]) == ("2", "1", "1")
    assert (found["cmd_set"], found["cmd_touch"]) == ("1", "1")
    assert (found["curr_items"], found["threads"]) == ("1", "1")
    assert int(found["bytes"]) > len(SET.value)
    assert stats(b"reset") == {}
    assert stats()["cmd_get"] == "0"
    assert stats()["curr_items"] == "1"
    assert stats(b"settings")["tcpport"] == "11211"
    assert case.status(Stats("stats", b"detail dump")) is Status.NOT_FOUND
