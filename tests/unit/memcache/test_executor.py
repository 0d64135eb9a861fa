"""What the commands do in the cache."""

from __future__ import annotations

from base64 import b64encode
from itertools import product
from pathlib import Path

import pytest

from support.memcache_talk import Talk
from volcache.errors import ClientError
from volcache.keys import parse_key

DAY = 24 * 60 * 60


def test_times_up_to_thirty_days_are_from_now(talk: Talk) -> None:
    """Longer ones are since the epoch; one in the past deletes, as if it had stored."""
    now = talk.clock.now_ms // 1000
    times = {0: -1, 1: 1, 30 * DAY: 30 * DAY, now + 40: 40, now + 400 * DAY: 400 * DAY}
    for exptime, ttl in times.items():
        assert talk.say(f"set a 0 {exptime} 1;x;mg a t") == f"STORED;HD t{ttl}"
    for exptime in (-1, -(2**40), 30 * DAY + 1, now):
        assert (
            talk.say(f"set a 0 0 1;x;set a 0 {exptime} 1;y;get a")
            == "STORED;STORED;END"
        )


def test_the_settings_limit_times_to_live(tmp_path: Path) -> None:
    """`default_ttl` takes the place of 0, `max_ttl` that of what is longer."""
    with Talk(tmp_path, default_ttl=60, max_ttl=100) as talk:
        for exptime, ttl in ((0, 60), (80, 80), (5000, 100)):
            assert talk.say(f"set a 0 {exptime} 1;x;mg a t") == f"STORED;HD t{ttl}"


def test_numbers_are_read_as_by_memcached(talk: Talk) -> None:
    """As strtoull reads them."""
    numbers = {
        "0": 0,
        "0" * 34 + "12": 12,
        "18446744073709551615": 2**64 - 1,
        "12   ": 12,
        " 12 abc": 12,
        "+12": 12,
        "-0": 0,
        "12\0": 12,
        "0" * 900 + "7": 7,
    }
    wrong = ("18446744073709551616", "-1", "12abc", "", " ", "1.5", "9" * 900, "\xb2")
    for value in (*numbers, *wrong):
        reply = talk.say(f"set a 0 0 {len(value)};{value};incr a 0")
        number = numbers.get(
            value, "CLIENT_ERROR cannot increment or decrement non-numeric"
        )
        assert reply.removesuffix(" value") == f"STORED;{number}"


def test_what_is_no_key_over_http_is_never_found(talk: Talk) -> None:
    """It cannot be stored, either; other keys can, by the meta commands all of them."""
    for key in ("../a", "a/./b", "a/..", "-/x", "a\tb", "a\0"):
        for line in (f"set {key} 0 0 1;x", f"mg {key} N0", f"ma {key} N0"):
            assert talk.say(line).startswith("CLIENT_ERROR bad key: ")
        for name in ("get", "gat 5"):
            assert talk.say(f"{name} {key}") == "END"
        for line in (f"delete {key}", f"touch {key} 5", f"incr {key} 1"):
            assert talk.say(line) == "NOT_FOUND"
    for key in ("\xff", "\xc3\xbc", ".git", "a//b", "-"):
        assert (
            talk.say(f"set {key} 0 0 1;x;get {key}") == f"STORED;VALUE {key} 0 1;x;END"
        )


def test_keys_are_those_of_http(tmp_path: Path) -> None:
    """However they begin and wherever a dot is."""
    size_max = 4

    def is_key(key: bytes) -> bool:
        try:
            return parse_key("/" + key.decode("latin-1"), size_max) == key
        except ClientError:
            return False

    with Talk(tmp_path, key_size=size_max) as talk:
        for length in range(1, size_max + 2):
            for letters in product("a.-/ \x00\xe9", repeat=length):
                key = "".join(letters).encode("latin-1")
                # What is stored as expired takes no space.
                reply = talk.ask(b"ms %s 0 T-1 b\r\n\r\n" % b64encode(key))
                assert (reply == b"HD\r\n") is is_key(key), key
                assert is_key(key) or reply.startswith(b"CLIENT_ERROR "), key


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_disk_that_refuses_is_an_answer(talk: Talk, *, is_quiet: bool) -> None:
    """With its reason, unless none is wanted; the old value stays."""
    talk.say("set a 0 0 1;5")
    talk.disk.refuses_writes = True
    put = ("set a 0 0 1;x", "append a 0 0 1;x")
    for line in (*put, "incr a 1", "touch a 10", "delete a"):
        words, *value = line.split(";")
        reply = talk.say(";".join([words + " noreply" * is_quiet, *value]))
        assert reply == "" if is_quiet else reply.startswith("SERVER_ERROR ")
    talk.disk.refuses_writes = False
    assert talk.say("get a") == "VALUE a 0 1;5;END"


def test_one_client_wins_the_right_to_store_or_renew_a_value(talk: Talk) -> None:
    """The others see that another has, until a value is stored; flags have an order."""
    talk.check("""
        > mg a N30 v t;mg a N30;mg a;ms a 1;x;mg a N30
        < VA 0 t30 W;;HD Z;HD Z;HD;HD
        > ms a 1 T60;x;mg a R30;mg a R70;mg a R70;mg a R70 T60;mg a
        < HD;HD;HD W;HD Z;HD Z;HD Z
        > ms a 1;x;mg a R30
        < HD;HD
        > ms a 1 T60;x;mg a R30 T10
        < HD;HD
        > ms a 1 T60;x;mg a T10 R30
        < HD;HD W
    """)
