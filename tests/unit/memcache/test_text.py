"""The text protocol: what is sent and what is answered."""

from __future__ import annotations

from pathlib import Path

from support.memcache_talk import VALUE_SIZE_MAX, Talk
from volcache.access import Access

LARGE = "x" * (VALUE_SIZE_MAX + 1)
LONG_KEY = "k" * 251
TOO_LARGE = "SERVER_ERROR object too large for cache"
BAD_FORMAT = "CLIENT_ERROR bad command line format"
BAD_TIME = "CLIENT_ERROR invalid exptime argument"
BAD_DELTA = "CLIENT_ERROR invalid numeric delta argument"


def test_what_differs_from_memcached_or_is_rare(talk: Talk) -> None:
    """All else is compared with memcached in tests/property/test_memcache_twins.py."""
    assert talk.ask(b"mn\nmn x\n") == b"MN\r\nMN\r\n"
    talk.check("""
        > verbosity 1;version x;mn;stats bogus;stats reset;stats items;stats slabs
        < OK;VERSION 1.6.18;MN;ERROR;RESET;END;END
        > set b +1 +0 +0;;set a 0 0 1;1;get b x a;gets b x a;gat 10
        < STORED;STORED;VALUE b 1 0;;VALUE a 0 1;1;END
        < VALUE b 1 0 @0;;VALUE a 0 1 @1;1;END;END
        > replace a 0 0 0;;add a 0 0 1;x;add a 0 0 1;y;replace a 0 0 0;;get a
        < NOT_STORED;STORED;NOT_STORED;STORED;VALUE a 0 0;;END
        > cas a 0 0 1 5;x;set a 0 0 1;1;cas a 0 0 1 @0;2;cas a 0 0 1 @0;3;cas a 0 0 1 0;x
        < NOT_FOUND;STORED;STORED;EXISTS;EXISTS
        > set a 0 0 3;abcde;mn;set a 0 0 3 noreply;abcde;mn
        < CLIENT_ERROR bad data chunk;ERROR;MN;ERROR;MN
        > shutdown;quit;mn
        < ERROR: shutdown not enabled
    """)


def test_a_request_of_a_browser_closes_the_connection(talk: Talk) -> None:
    """A page of another site must not be able to send commands in a body."""
    assert talk.say("POST / HTTP/1.1;Content-Type: x;;flush_all") == ""
    assert talk.is_closed


def test_errors_are_those_of_memcached(talk: Talk) -> None:
    """Also of a number, which is read as strtol and strtoull read it."""
    usage = f"{BAD_FORMAT}.  Usage: delete <key> [noreply]"
    rows = {
        "ERROR": "|   |bogus|GET a|get|gat|set a 0 0|set a 0 0 1 x y|incr a|touch a|delete|"
        "flush_all 1 2 3|verbosity|m|\x81",
        BAD_FORMAT: "set a 0 0 -1|set a 0 0 x|set a x 0 1|set a 4294967296 0 1|"
        f"set a -1 0 1|set a 0 1.5 1|cas a 0 0 1 x|get {LONG_KEY}|delete {LONG_KEY}|"
        f"touch {LONG_KEY} 1|incr {LONG_KEY} 1|verbosity x",
        BAD_TIME: "touch a x|gat x a|flush_all x|touch a 1x|touch a 1_0|touch a -|"
        f"touch a \xb2|touch a 9223372036854775808|touch a {'9' * 2000}",
        "NOT_FOUND": "touch a -0|touch a +7|touch a 007|touch a -9223372036854775808|"
        "touch a 9223372036854775807|touch a 1\tx|touch a \t1|incr a -0|incr a +5|"
        "incr a 18446744073709551615",
        BAD_DELTA: "incr a x|incr a -1|decr a 18446744073709551616",
        usage: "delete a 1|delete a 0 0",
    }
    for reply, lines in rows.items():
        for line in lines.split("|"):
            assert talk.connect().say(line) == reply, line


def test_nothing_is_answered_if_the_client_wants_no_reply(talk: Talk) -> None:
    """Not even an error; the next command is understood."""
    for line in (
        *("set a 0 0 1 noreply;x", "add a 0 0 1 noreply;x", "append b 0 0 1 noreply;x"),
        *("cas a 0 0 1 5 noreply;x", "set a x 0 1 noreply;x", "set a 0 0 x noreply"),
        *(f"set {LONG_KEY} 0 0 1 noreply;x", f"set a 0 0 1001 noreply;{LARGE}"),
        *("set ../a 0 0 1 noreply;x", "incr a 1 noreply", "incr a x noreply"),
        *("touch a 1 noreply", "touch a x noreply", "delete a noreply"),
        *("delete a 0 noreply", "delete a 1 noreply", "flush_all noreply"),
        *("flush_all x noreply", "verbosity 1 noreply", "verbosity x noreply"),
        *(f"{name} {LONG_KEY} 1 noreply" for name in ("incr", "touch", "delete")),
    ):
        assert talk.connect().say(f"{line};mn") == "MN", line


def test_the_value_of_a_refused_line_is_skipped(talk: Talk) -> None:
    """It must not become a command."""
    for line in (f"set {LONG_KEY} 0 0 9", "cas a 0 0 9 x", f"ms {LONG_KEY} 9"):
        assert talk.connect().say(f"{line};flush_all;mn") == f"{BAD_FORMAT};MN"


def test_a_value_above_the_limit_is_skipped(talk: Talk) -> None:
    """No client may get the value that was to be replaced; only "set" replaces."""
    put = f" a 0 0 1001;{LARGE}"
    half, other = "x" * 600, "y" * 600
    talk.check(f"""
        > set a 0 0 1;1;add{put};replace{put};append{put};ms a 1001 MA;{LARGE};get a
        < STORED;{TOO_LARGE};{TOO_LARGE};{TOO_LARGE};{TOO_LARGE};VALUE a 0 1;1;END
        > set a 0 0 1;1;set{put};get a
        < STORED;{TOO_LARGE};END
        > set a 0 0 600;{half};append a 0 0 600;{other};get a
        < STORED;NOT_STORED;VALUE a 0 600;{half};END
    """)
    for size in (2**31 - 1, 2**31, 2**63 - 1):
        assert talk.connect().say(f"set a 0 0 {size}") == TOO_LARGE
        for _ in range(20):
            assert not talk.say("version;" * 1000)
            assert talk.buffered == 0


def test_an_endless_line_closes_the_connection(talk: Talk) -> None:
    """It is not known where the next command begins; only a get may be long."""
    for line in ("x" * 3000, f"set {'k' * 3000} 0 0 1"):
        assert talk.connect().say(f"{line};mn") == "CLIENT_ERROR line too long"
        assert talk.is_closed
    keys = " ".join(f"key-{number}" for number in range(20_000))
    found = talk.connect().say(f"set a 0 0 1;x;get {keys} a")
    assert found == "STORED;VALUE a 0 1;x;END"


def test_an_error_ends_the_reply_to_a_get(talk: Talk) -> None:
    """No key after it is looked up, and no END follows."""
    talk.say("set a 0 0 1;x;set b 0 0 1;x")
    talk.disk.refuses_reads = True
    for name in ("get", "gets"):
        error, last = talk.say(f"{name} x a b;mn").split(";")
        assert error.startswith("SERVER_ERROR the disk cannot be read")
        assert last == "MN"


def test_a_set_is_taken_for_credentials(tmp_path: Path) -> None:
    """Until the token is given; its key is ignored, as by memcached with -Y."""
    with Talk(tmp_path, Access(write="word")) as talk:
        talk.check(f"""
            > set x 0 0 9;user word;set a 0 0 1;1;get a
            < STORED;STORED;VALUE a 0 1;1;END
            > set x 0 0 9 noreply;user wrng;set x 0 0 9;user wrng
            < CLIENT_ERROR authentication failure;CLIENT_ERROR authentication failure
            > set x 0 0;set x 0 0 -5;add a 0 0 1;x
            < CLIENT_ERROR unauthenticated;CLIENT_ERROR unauthenticated
            < CLIENT_ERROR unauthenticated
            > set x 0 0 4;user;set x 0 0 5005;{LARGE * 5};mn
            < CLIENT_ERROR bad authentication token format
            < CLIENT_ERROR bad authentication token format;MN
            > set x 0 0 9;user wordxx
            < CLIENT_ERROR bad command line termination;ERROR
        """)
