"""Commands in C: which of them are passed, and what Python learns of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from support import binary_protocol as wire
from support.memcache_talk import NativeTalk
from support.tiers import FakeServer, make_tier
from volcache.access import Access
from volcache.front import Copies

# Volumes have room for all that a test stores.
SIZE_MAX = 50_000
KEEPING = "set a 0 0 1;1;"
PLAIN = (
    "get a|gets a b|get  a  b |gat 10 a|gats 0 a b|touch a 10|delete a|delete none"
    "|set a 4294967295 100 3;abc|add a 0 0 1;2|replace a 0 4000000000 0;"
    "|cas a 0 0 1 5;1|cas a 0 0 1 0;1|set a 0 0 1 noreply;1"
    "|mg a|mg a k t s v c f h l q Oabc|mg a v u|mg a T50 t|mg YQ== b k v"
    "|ms a 1;1|ms a 1 T50 F7 c s k O1 q;1|ms a 1 ME;1|ms a 1 MR C5;1|ms YQ== 1 b;1"
    "|md a|md a q k O1|md a C5|mn|mn x"
)


@pytest.fixture
def native(tmp_path: Path) -> Iterator[NativeTalk]:
    """Return a client whose plain commands are executed in C."""
    with NativeTalk(tmp_path, value_size_max=SIZE_MAX) as opened:
        yield opened


def test_plain_commands_are_executed_in_c(native: NativeTalk) -> None:
    """None of them is passed; a key in a form that no encoder writes is."""
    for command in PLAIN.split("|"):
        native.connect().say(f"{KEEPING}{command}")
        assert native.passed == 0, command
    native.say("mg YR== b")
    assert native.passed == 1


def test_what_a_client_may_not_do_is_passed(tmp_path: Path) -> None:
    """Python counts it, and answers."""
    access = Access(write="writing")
    with NativeTalk(tmp_path, access, value_size_max=SIZE_MAX) as native:
        native.session.password = b""  # It has given another one.
        for command in ("set a 0 0 1;1", "delete a", "touch a 5", "gat 5 a", "mg a T5"):
            native.passed = 0
            assert native.say(command) == "CLIENT_ERROR unauthenticated"
            assert native.passed == 1, command
        native.passed = 0
        assert native.say("get a;mg a;mn") == "END;EN;MN"
        assert native.passed == 0


def test_binary_requests_are_executed_in_c(native: NativeTalk) -> None:
    """All but those that are rare."""
    extras = wire.put_extras(7, 100)
    puts = (wire.SET, wire.ADD, wire.REPLACE, wire.SETQ, wire.ADDQ, wire.REPLACEQ)
    for opcode in puts:
        native.ask(wire.request(opcode, b"a b", b"1", extras=extras[:8]))
    gets = (wire.GET, wire.GETQ, wire.GETK, wire.GETKQ)
    for opcode in (*gets, wire.DELETE, wire.DELETEQ):
        native.ask(wire.request(opcode, b"a"))
    native.ask(wire.request(wire.NOOP))
    assert native.passed == 6  # A key with a space is compared with HTTP's rules.
    native.ask(wire.request(wire.VERSION))
    assert native.passed == 7


def test_the_rest_of_a_get_is_passed_when_one_of_its_keys_has_to(
    native: NativeTalk,
) -> None:
    """Its replies are those of one get."""
    native.say("set a 0 0 1;1;set b 0 10 1;2;set c 0 0 1;3")
    native.clock.advance(11)
    native.passed = 0
    assert native.say("gets a b c") == "VALUE a 0 1 @0;1;VALUE c 0 1 @2;3;END"
    assert native.passed == 1
    assert native.say("gat 100 a none a") == "VALUE a 0 1;1;VALUE a 0 1;1;END"
    assert native.passed == 1


def test_what_is_executed_is_logged_and_counted(native: NativeTalk) -> None:
    """With the fields that Python gives a line."""
    native.say("set a 0 0 1;1;get a;get b;mg a;delete a;mn")
    lines = [line.split('"') for line in native.lines]
    assert [(one[1], one[2].split()[:2]) for one in lines] == [
        ("set /a memcache", ["201", "8"]),
        ("get /a memcache", ["200", "21"]),
        ("get /b memcache", ["404", "5"]),
        ("mg /a memcache", ["200", "4"]),
        ("delete /a memcache", ["204", "9"]),
        ("mn - memcache", ["200", "4"]),
    ]
    assert all(line.startswith("1.1.1.1 ") for line in native.lines)
    assert native.stats.hits == 2
    assert native.store.stats.reads.count == 2


def test_copies_are_invalidated_with_each_change(tmp_path: Path) -> None:
    """A get of a key that memcached may have reads the disk, without Python."""
    with mock.patch("volcache.hot.servers.Server", return_value=FakeServer()):
        hot = make_tier(["m"], Copies(reads=2, seconds=60), item_size_max=1000)
    with NativeTalk(tmp_path, hot=hot) as native:
        native.say("set a 0 0 1;1")
        for change in ("set a 0 0 1;2", "ms a 1;2"):
            assert native.say("get a") != "END"
            assert not hot.keys.may_hold(b"a")
            native.say("mg a v")
            assert hot.keys.may_hold(b"a")
            passed = native.passed
            native.say("get a")
            native.say(change)
            assert native.passed == passed
            assert not hot.keys.may_hold(b"a")
        for change, passes, invalidates in (
            ("touch a 50", False, True),
            ("add a 0 0 1;1", False, False),
            ("cas a 0 0 1 5;1", False, False),
            ("delete a", True, True),  # Whether memcached has it decides on the reply.
        ):
            native.say("set a 0 0 1;1;get a;get a")
            passed = native.passed
            native.say(change)
            assert native.passed == passed + passes, change
            assert hot.keys.may_hold(b"a") is not invalidates, change
