"""The flags "h" and "l" of "mg": whether a value was read before, and when."""

from __future__ import annotations

from typing import Final

from support.memcache_talk import Talk

# Commands after which the key "a" was read, as memcached says.
READING: Final = (
    *("get a", "gets none a", "gat 100 a", "touch a 100", "mg a", "mg a v h l"),
    *("mg a T50", "mg a R50", "md a;mg a N50"),
    # It is changed in place.
    *("get a;incr a 1", "get a;ma a T50", "get a;add a 0 0 1;2"),
)
# And commands after which it was not read.
OTHERS: Final = (
    *("mn", "get none", "mg a u", "me a", "ma a h l t", "append a 0 0 1;2"),
    "cas a 0 0 1 1;2",
    # It is another value.
    *("get a;set a 0 0 1;2", "get a;ms a 1 h l;2", "get a;append a 0 0 1;2"),
    *("get a;incr a 10", "get a;md a h l;add a 0 0 1;2"),
)


def test_it_is_told_whether_a_value_was_read(talk: Talk) -> None:
    """The value of "incr" takes the place of another one if it needs more bytes."""
    for commands in (*READING, *OTHERS):
        said = talk.connect().say(f"set a 0 0 1;1;{commands};mg a h").split(";")
        assert said[-1].startswith(f"HD h{int(commands in READING)}"), commands


def test_a_value_stored_as_expired_was_not_read(talk: Talk) -> None:
    """However often it is stored; others that were read do not count."""
    assert talk.say("mg none h N0 T-1;mg none h N0 T-1") == "HD h0 W;HD h0 W"


def test_the_time_since_the_last_read_is_told(talk: Talk) -> None:
    """Before this read; 0 if it was not read."""
    assert talk.say("set a 0 0 1;1;mg a l") == "STORED;HD l0"
    talk.clock.advance(70)
    assert talk.say("mg a k h l t;mg a t u h l") == "HD ka h1 l70 t-1;HD t-1 h1 l0"
    talk.clock.advance(5)
    assert talk.say("mg a u l;mg a l;mg none h l t") == "HD l5;HD l5;EN"
