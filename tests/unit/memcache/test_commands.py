"""Commands in C: what they count, log and hold, which may take long; disk and hot tier."""

from __future__ import annotations

import errno
import socket
from base64 import b64encode
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from select import select
from unittest import mock

import pytest

from support import binary_protocol as wire
from support.memcache_talk import Talk
from support.stores import fill_volume
from support.tiers import FakeServer, make_tier
from support.waiting import wait_until
from volcache.errors import ClientError
from volcache.front import Copies
from volcache.keys import parse_key

# Of input: a line of 2 KiB, and room for more.
HELD_MAX = 6 << 10


def test_commands_are_logged_and_counted(talk: Talk) -> None:
    """A line for each; of errors and numbers, too."""
    talk.say("set a 0 0 1;1;get a;get b;mg a;incr a 1;incr b 1;delete a;bogus;mn")
    logged = talk.lines()[:9]  # Then there is what ends the replies.
    lines = [line.split('"') for line in logged]
    assert [(one[1], one[2].split()[:2]) for one in lines] == [
        ("set /a memcache", ["201", "8"]),
        ("get /a memcache", ["200", "21"]),
        ("get /b memcache", ["404", "5"]),
        ("mg /a memcache", ["200", "4"]),
        ("incr /a memcache", ["201", "3"]),
        ("incr /b memcache", ["404", "11"]),
        ("delete /a memcache", ["204", "9"]),
        ("unknown - memcache", ["400", "7"]),
        ("mn - memcache", ["200", "4"]),
    ]
    assert all(line.startswith("127.0.0.1 ") for line in logged)
    assert talk.stats.hits == 2
    assert talk.store.stats.reads.count == 3


def test_command_on_a_record_in_memory_waits_for_no_call(talk: Talk) -> None:
    """Nor does an error. It does while another thread has the write lock: hence again."""

    def is_answered(line: str) -> bool:
        talk.connect()
        talk.store.put(b"a", b"1")
        with talk.client() as client:
            client.send(line.replace(";", "\r\n").encode() + b"\r\n")
            return bool(select([client.socket], [], [], 1)[0])

    with talk.held_calls():
        for line in (
            *("append a 0 0 1;1", "prepend a 0 0 1;1", "incr a 1", "decr a 1"),
            *("ma a N0 J5 T60 v", "mg a N60 R30", "ms a 1 MA;1", "gat 60 a b"),
            *("get a b", "touch a 5", "version", "bogus", "set .. 0 0 1;1"),
            *("delete a", "set a 0 -1 1;1"),
        ):
            assert any(is_answered(line) for _ in range(9)), line


def test_command_that_may_take_long_waits_for_another(tmp_path: Path) -> None:
    """As does a get of a value that a loop has no room for; each is executed after it."""
    size = 2 << 20
    with Talk(tmp_path, value_size_max=size) as talk:
        stored = talk.ask(b"set a 0 0 %d\r\n%b\r\n" % (size, b"x" * size))
        assert stored == b"STORED\r\n"
        for line, reply in (
            (b"stats none", b"ERROR"),
            (b"flush_all 100", b"OK"),
            (b"get a", b"VALUE a 0 %d" % size),
        ):
            with talk.client() as client:
                with talk.held_calls():
                    client.send(line + b"\r\n")
                    assert talk.say("mn") == "MN"
                    assert not select([client.socket], [], [], 0)[0]
                assert client.line() == reply


def test_get_of_an_expired_record_is_a_miss_without_a_call(talk: Talk) -> None:
    """It is counted as such."""
    talk.say("set a 0 10 1;1")
    talk.clock.advance(11)
    with talk.held_calls():
        found = talk.say("get a;mg a;incr a 1;add a 0 0 1;2")
    assert found == "END;EN;NOT_FOUND;STORED"
    assert talk.store.stats.expired_reads == 4


def test_touch_to_the_same_second_writes_nothing(talk: Talk) -> None:
    """The times of memcached have whole seconds, too."""
    talk.say("set a 0 100 1;1")
    for touch in ("touch a 100", "gat 100 a", "mg a T100"):
        for step_ms, writes in ((900, 0), (100, 1)):
            before = talk.store.stats.writes.count
            talk.clock.now_ms += step_ms
            talk.say(touch)
            assert talk.store.stats.writes.count - before == writes
            assert talk.say("mg a t") == "HD t100"


@pytest.mark.parametrize("name", [b"get", b"gets", b"gat 100", b"gats 100"])
def test_get_of_any_number_of_keys_holds_little_input(talk: Talk, name: bytes) -> None:
    """However many there are; a key that is too long ends it."""
    talk.say("set a 0 0 1;x")
    for keys in range(1, 1500):
        talk.deliver((name + b" ") * (keys == 1) + b"a b%d " % keys)
        assert talk.held() <= HELD_MAX
    found = talk.ask(b"a", b"\r", b"\nmn\r\n")
    assert found.count(b"VALUE a 0 1") == 1500
    assert found.endswith(b"x\r\nEND\r\nMN\r\n")
    long = talk.ask(
        name + b" b" * 2000 + b" " + b"k" * 251, b"k" * 99999 + b" a\r\nmn\r\n"
    )
    assert long == b"CLIENT_ERROR bad command line format\r\nMN\r\n"
    assert talk.ask(name + b" " * 5000, b"\r\nmn\r\n").endswith(b"MN\r\n")


@pytest.mark.parametrize(
    "start",
    [
        *(b"", b"get ", b"gats ", b"set ", b"mg ", b" " * 99),
        *(b"set a 0 0 %d\r\n" % 10**12, b"set a 0 0 %d\r\n" % (2**63 - 1)),
        wire.request(wire.SET, b"a", extras=bytes(8), body_size=2**32 - 1),
    ],
)
@pytest.mark.parametrize("junk", [b"x", b"x ", b"\0", b"  ", b"\r"])
def test_input_without_an_end_is_not_held(
    talk: Talk, start: bytes, junk: bytes
) -> None:
    """Neither lines nor values without an end fill the memory."""
    for piece in [start, *[junk * (9000 // len(junk))] * 9]:
        talk.deliver(piece)
        assert talk.held() <= HELD_MAX


def test_set_of_2_gib_and_more_is_refused_at_once_and_skipped(talk: Talk) -> None:
    for size in (2**31 - 1, 2**31, 2**63 - 1):
        with talk.client() as client:
            client.send(b"set a 0 0 %d\r\nversion\r\nversion\r\n" % size)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.rest() == b"SERVER_ERROR object too large for cache\r\n"


def test_change_of_a_hot_key_invalidates_its_copy(tmp_path: Path) -> None:
    """A get of a key that memcached may have reads the disk."""
    with mock.patch("volcache.hot.memcached.Server", return_value=FakeServer()):
        hot = make_tier(["m"], Copies(reads=2, seconds=60), item_size_max=1000)
    with Talk(tmp_path, hot=hot) as talk:
        talk.say("set a 0 0 1;1")
        for change, invalidates in (
            *(("set a 0 0 1;2", True), ("ms a 1;2", True), ("touch a 50", True)),
            *(("incr a 1", True), ("append a 0 0 1;1", True), ("delete a", True)),
            *(("add a 0 0 1;1", False), ("cas a 0 0 1 5;1", False)),
        ):
            talk.say("set a 0 0 1;1;get a")
            assert not hot.keys.may_hold(b"a")
            talk.say("mg a v")
            wait_until(lambda: hot.keys.may_hold(b"a"), "the promotion")
            # Whether memcached has it decides on the reply to a delete.
            with nullcontext() if change == "delete a" else talk.held_calls():
                talk.say(f"get a;{change}")
            assert hot.keys.may_hold(b"a") is not invalidates, change


def test_command_on_a_key_of_the_hot_tier_only_finds_it(tmp_path: Path) -> None:
    """By all commands; one that stores makes it a record of the disk again."""
    with mock.patch("volcache.hot.memcached.Server", return_value=FakeServer()):
        hot = make_tier(["m"], Copies(reads=2, seconds=60), item_size_max=1000)
    with Talk(tmp_path, hot=hot, eviction="fifo") as talk:
        for line, reply in (
            ("get a", "VALUE a 7 2;10;END"),
            ("mg a v s f", "VA 2 s2 f7;10"),
            ("incr a 5", "15"),
            ("append a 0 0 1;x", "STORED"),
            ("gat 60 a", "VALUE a 7 2;10;END"),
            ("add a 0 0 1;x", "NOT_STORED"),
            ("delete a", "DELETED"),
        ):
            talk.connect().say("set a 7 0 2;10;get a;get a")
            wait_until(lambda: hot.keys.may_hold(b"a"), "the promotion")
            while talk.store.peek(b"a") is not None:
                fill_volume(talk.store)
            assert talk.say(line) == reply, line


def test_set_with_ttl_settings_lives_as_they_say(tmp_path: Path) -> None:
    """`default_ttl` takes the place of 0, `max_ttl` that of what is longer."""
    with Talk(tmp_path, default_ttl=60, max_ttl=100) as talk:
        for exptime, ttl in ((0, 60), (80, 80), (5000, 100)):
            assert talk.say(f"set a 0 {exptime} 1;x;mg a t") == f"STORED;HD t{ttl}"


def test_set_of_any_bytes_accepts_the_keys_of_http(tmp_path: Path) -> None:
    """However they begin and wherever a dot is."""
    size_max = 4

    def is_key(key: bytes) -> bool:
        try:
            return parse_key("/" + key.decode("latin-1"), size_max) == key
        except ClientError:
            return False

    with Talk(tmp_path, key_size=size_max) as talk:
        for length in range(1, size_max + 2):
            letters = product("a.-/ \x00\xe9", repeat=length)
            keys = ["".join(key).encode("latin-1") for key in letters]
            # What is stored as expired takes no space.
            sent = [b"ms %s 0 T-1 b\r\n\r\n" % b64encode(key) for key in keys]
            replies = talk.ask(b"".join(sent)).splitlines()
            for key, reply in zip(keys, replies, strict=True):
                assert (reply == b"HD") is is_key(key), key
                assert is_key(key) or reply.startswith(b"CLIENT_ERROR "), key


@pytest.mark.parametrize("is_quiet", [False, True])
def test_change_that_the_disk_refuses_is_answered_with_the_reason(
    talk: Talk, *, is_quiet: bool
) -> None:
    """With its reason, unless none is wanted; the old value stays."""
    talk.say("set a 0 0 1;5")
    talk.disk.failing["pwritev"] = errno.ENOSPC
    put = ("set a 0 0 1;x", "append a 0 0 1;x")
    for line in (*put, "incr a 1", "touch a 10", "delete a"):
        words, *value = line.split(";")
        reply = talk.say(";".join([words + " noreply" * is_quiet, *value]))
        assert reply == "" if is_quiet else reply.startswith("SERVER_ERROR ")
    talk.disk.recover()
    assert talk.say("get a") == "VALUE a 0 1;5;END"


def test_get_of_several_keys_ends_at_a_read_that_fails(talk: Talk) -> None:
    """No key after it is looked up, and no END follows."""
    talk.say("set a 0 0 1;x;set b 0 0 1;x")
    talk.disk.failing["pread"] = errno.EIO
    for name in ("get", "gets"):
        error, last = talk.say(f"{name} x a b;mn").split(";")
        assert error.startswith("SERVER_ERROR the disk cannot be read")
        assert last == "MN"


def test_quiet_set_that_the_disk_refuses_is_answered(talk: Talk) -> None:
    """With the status that memcached has for want of memory, and the reason."""
    talk.disk.failing["pwritev"] = errno.ENOSPC
    for opcode in (wire.SET, wire.SETQ):
        asked = wire.request(opcode, b"a", b"v", extras=wire.put_extras())
        (reply,) = wire.replies(talk.ask(asked))
        assert reply.status == 0x82
        assert reply.value.startswith(b"disk refused to write")
