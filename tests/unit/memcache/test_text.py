"""The text protocol: bytes to commands, results to bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.tables import each_row
from volcache.memcache.commands import (
    VERSION,
    Arithmetic,
    Authenticate,
    Delete,
    FlushAll,
    Get,
    Put,
    Result,
    Simple,
    Stats,
    Status,
    Touch,
)
from volcache.memcache.protocol import Connection, WireLimits
from volcache.memcache.replies import NO_VERSION, signed, unsigned
from volcache.store import Record

if TYPE_CHECKING:
    from volcache.memcache.commands import Command

LIMITS = WireLimits(key_size=250, value_size=100)
MISSED = Result(Status.MISS)
OK = Result(Status.OK)


def record(value: bytes, flags: int = 0, stored_us: int = 7) -> Record:
    """Return a record with a value."""
    return Record(value, b"", b"", b"", stored_us, 0, flags, 0, 0, 0, len(value), 0)


def hit(value: bytes, flags: int = 0) -> Result:
    """Return the result of a get."""
    return Result(Status.HIT, record(value, flags))


def commands_of(data: bytes) -> list[Command]:
    """Return the commands in some bytes."""
    connection = Connection(LIMITS)
    connection.receive(data)
    commands = []
    while (command := connection.next_command()) is not None:
        commands.append(command)
    return commands


def reply_to(data: bytes, *results: Result) -> bytes:
    """Return the replies to some bytes, given the result of each command."""
    connection = Connection(LIMITS)
    connection.receive(data)
    replies = []
    for result in results:
        command = connection.next_command()
        assert command is not None
        replies.append(connection.reply(command, result))
    assert connection.next_command() is None
    return b"".join(replies)


def error_of(data: bytes) -> bytes:
    """Return the reply to the first line, which is an error."""
    command = commands_of(data)[0]
    assert isinstance(command, Simple)
    assert command.is_error
    return bytes(command.reply(command, OK))


@each_row(
    ("data", "command"),
    [
        (b"get a\r\n", Get("get", b"a")),
        (b"get a\n", Get("get", b"a")),
        (b"  get   a  \r\n", Get("get", b"a")),
        (b"gets a/b\r\n", Get("gets", b"a/b")),
        (b"gat 10 a\r\n", Get("gat", b"a", 10)),
        (b"gats -1 a\r\n", Get("gats", b"a", -1)),
        (b"set a 1 2 3\r\nabc\r\n", Put("set", b"a", "set", b"abc", 1, 2)),
        (b"set a 0 0 0\r\n\r\n", Put("set", b"a", "set", b"")),
        (b"set a +1 -2 +3\r\nabc\r\n", Put("set", b"a", "set", b"abc", 1, -2)),
        (b"set a 0 0 4\r\n\r\n\r\n\r\n", Put("set", b"a", "set", b"\r\n\r\n")),
        (b"add a 0 0 1\r\nx\r\n", Put("add", b"a", "add", b"x")),
        (b"replace a 0 0 1\r\nx\r\n", Put("replace", b"a", "replace", b"x")),
        (b"append a 0 0 1\r\nx\r\n", Put("append", b"a", "append", b"x")),
        (b"prepend a 0 0 1\r\nx\r\n", Put("prepend", b"a", "prepend", b"x")),
        (b"cas a 0 0 1 9\r\nx\r\n", Put("cas", b"a", "set", b"x", cas=9)),
        (b"cas a 0 0 1 0\r\nx\r\n", Put("cas", b"a", "set", b"x", cas=NO_VERSION)),
        (b"incr a 5\r\n", Arithmetic("incr", b"a", 5)),
        (b"decr a 5\r\n", Arithmetic("decr", b"a", 5, is_decrement=True)),
        (b"touch a 60\r\n", Touch("touch", b"a", 60)),
        (b"delete a\r\n", Delete("delete", b"a")),
        (b"delete a 0\r\n", Delete("delete", b"a")),
        (b"flush_all\r\n", FlushAll("flush_all")),
        (b"flush_all 30\r\n", FlushAll("flush_all", 30)),
        (b"stats\r\n", Stats("stats")),
        (b"stats items\r\n", Stats("stats", b"items")),
    ],
)
def test_a_line_becomes_its_command(data: bytes, command: Command) -> None:
    """Words are separated by any number of spaces; the line may end without CR."""
    (found,) = commands_of(data)
    assert found._replace(reply=None) == command


def test_several_keys_become_commands_of_one_reply() -> None:
    """Only the last says END."""
    data = b"get a b c\r\n"
    assert [command.key for command in commands_of(data) if isinstance(command, Get)] == [
        b"a", b"b", b"c",
    ]  # fmt: skip
    reply = reply_to(data, hit(b"1", 5), MISSED, hit(b"33"))
    assert reply == b"VALUE a 5 1\r\n1\r\nVALUE c 0 2\r\n33\r\nEND\r\n"


def test_gets_shows_the_cas_unique() -> None:
    """It is the time at which the record was stored."""
    reply = reply_to(b"gets a b\r\n", hit(b"1"), hit(b"2"))
    assert reply == b"VALUE a 0 1 7\r\n1\r\nVALUE b 0 1 7\r\n2\r\nEND\r\n"


def test_an_error_ends_the_reply_to_a_get() -> None:
    """No key after it is looked up, and no END follows."""
    failed = Result(Status.FAILED, text="the disk refused")
    reply = reply_to(b"get a b c\r\nmn\r\n", hit(b"1"), failed, OK)
    assert reply == b"VALUE a 0 1\r\n1\r\nSERVER_ERROR the disk refused\r\nMN\r\n"


@each_row(
    ("line", "result", "reply"),
    [
        (b"set a 0 0 0\r\n", Result(Status.STORED), b"STORED\r\n"),
        (b"add a 0 0 0\r\n", Result(Status.NOT_STORED), b"NOT_STORED\r\n"),
        (b"cas a 0 0 0 1\r\n", Result(Status.EXISTS), b"EXISTS\r\n"),
        (b"cas a 0 0 0 1\r\n", Result(Status.NOT_FOUND), b"NOT_FOUND\r\n"),
        (
            b"set a 0 0 0\r\n",
            Result(Status.TOO_LARGE),
            b"SERVER_ERROR object too large for cache\r\n",
        ),
        (
            b"set a 0 0 0\r\n",
            Result(Status.BAD_KEY, text="bad key: x"),
            b"CLIENT_ERROR bad key: x\r\n",
        ),
        (
            b"set a 0 0 0\r\n",
            Result(Status.UNAUTHORIZED),
            b"CLIENT_ERROR unauthenticated\r\n",
        ),
    ],
)
def test_a_put_is_answered_as_by_memcached(
    line: bytes, result: Result, reply: bytes
) -> None:
    """With "noreply", nothing is answered, not even an error."""
    assert reply_to(line + b"\r\n", result) == reply
    assert reply_to(line[:-2] + b" noreply\r\n\r\n", result) == b""


@each_row(
    ("line", "result", "reply"),
    [
        (b"delete a", Result(Status.DELETED), b"DELETED\r\n"),
        (b"delete a", Result(Status.NOT_FOUND), b"NOT_FOUND\r\n"),
        (b"touch a 0", Result(Status.TOUCHED), b"TOUCHED\r\n"),
        (b"incr a 1", Result(Status.STORED, number=12), b"12\r\n"),
        (b"incr a 1", Result(Status.NOT_FOUND), b"NOT_FOUND\r\n"),
        (
            b"decr a 1",
            Result(Status.NON_NUMERIC),
            b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        (b"flush_all", OK, b"OK\r\n"),
        (
            b"flush_all",
            Result(Status.FORBIDDEN, text="flush_all not allowed"),
            b"CLIENT_ERROR flush_all not allowed\r\n",
        ),
        (b"verbosity 1", OK, b"OK\r\n"),
    ],
)
def test_other_commands_are_answered_as_by_memcached(
    line: bytes, result: Result, reply: bytes
) -> None:
    """With "noreply", nothing is answered."""
    assert reply_to(line + b"\r\n", result) == reply
    assert reply_to(line + b" noreply\r\n", result) == b""


def test_version_is_that_of_volcache() -> None:
    """Whatever follows it."""
    reply = b"VERSION " + VERSION.encode() + b"\r\n"
    assert reply_to(b"version x\r\n", OK) == reply


def test_statistics_are_lines() -> None:
    """An unknown argument is an error; "reset" has a reply of its own."""
    result = Result(Status.OK, pairs=(("pid", "1"), ("uptime", "2")))
    assert reply_to(b"stats\r\n", result) == b"STAT pid 1\r\nSTAT uptime 2\r\nEND\r\n"
    assert reply_to(b"stats bogus\r\n", Result(Status.NOT_FOUND)) == b"ERROR\r\n"
    assert reply_to(b"stats reset\r\n", OK) == b"RESET\r\n"


_BAD_FORMAT = b"CLIENT_ERROR bad command line format\r\n"


@each_row(
    ("data", "reply"),
    [
        (b"\r\n", b"ERROR\r\n"),
        (b"bogus\r\n", b"ERROR\r\n"),
        (b"GET a\r\n", b"ERROR\r\n"),
        (b"get\r\n", b"ERROR\r\n"),
        (b"set a 0 0\r\n", b"ERROR\r\n"),
        (b"set a 0 0 1 x y\r\n", b"ERROR\r\n"),
        (b"set a 0 0 -1\r\n", _BAD_FORMAT),
        (b"set a 0 0 x\r\n", _BAD_FORMAT),
        (b"set a x 0 1\r\n", _BAD_FORMAT),
        (b"set a 4294967296 0 1\r\n", _BAD_FORMAT),
        (b"set a -1 0 1\r\n", _BAD_FORMAT),
        (b"set a 0 1.5 1\r\n", _BAD_FORMAT),
        (b"cas a 0 0 1 x\r\n", _BAD_FORMAT),
        (b"get " + b"k" * 251 + b"\r\n", _BAD_FORMAT),
        (b"delete " + b"k" * 251 + b"\r\n", _BAD_FORMAT),
        (b"touch a x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
        (b"gat x a\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
        (b"flush_all x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
        (b"incr a x\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n"),
        (b"incr a -1\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n"),
        (
            b"delete a 1\r\n",
            b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        (b"shutdown\r\n", b"ERROR: shutdown not enabled\r\n"),
        (b"set a 0 0 1\r\nabc\r\n", b"CLIENT_ERROR bad data chunk\r\n"),
    ],
)
def test_a_bad_line_is_answered_as_by_memcached(data: bytes, reply: bytes) -> None:
    """The error takes its place among the replies."""
    assert error_of(data) == reply


def test_what_follows_a_bad_data_chunk_is_read_as_commands() -> None:
    """As by memcached: after the length of the value and its line end."""
    replies = reply_to(b"set a 0 0 3\r\nabcde\r\nversion\r\n", OK, OK, OK)
    assert replies.startswith(b"CLIENT_ERROR bad data chunk\r\nERROR\r\nVERSION ")


def test_the_value_of_a_bad_line_is_skipped() -> None:
    """A value must not become a command because its key was too long."""
    key = b"k" * 251
    for line in (b"set " + key + b" 0 0 9", b"cas a 0 0 9 x", b"ms " + key + b" 9"):
        commands = commands_of(line + b"\r\nflush_all\r\nmn\r\n")
        assert [type(command) for command in commands] == [Simple, Simple]
        assert [command.name for command in commands][1] == "mn"


@each_row("size", [101, 2**31 - 1, 2**31, 2**63 - 1])
def test_a_value_above_the_limit_is_skipped(size: int) -> None:
    """Its command comes at once; its bytes are dropped as they arrive."""
    connection = Connection(LIMITS)
    connection.receive(b"set a 0 0 %d\r\n" % size)
    command = connection.next_command()
    assert isinstance(command, Put)
    assert command.is_too_large
    assert command.value == b""
    for _ in range(20):
        connection.receive(b"version\r\n" * 1000 if size > 10**6 else b"x")
        assert connection.next_command() is None
        assert connection.buffered == 0


def test_the_command_after_a_skipped_value_is_understood() -> None:
    """The line end is skipped, too."""
    data = b"set a 0 0 101\r\n" + b"x" * 101 + b"\r\nget b\r\n"
    first, second = commands_of(data)
    assert isinstance(first, Put)
    assert second._replace(reply=None) == Get("get", b"b")


def test_quit_ends_the_commands() -> None:
    """What follows is discarded, and nothing is answered."""
    (command,) = commands_of(b"quit\r\nversion\r\n")
    assert isinstance(command, Simple)
    assert command.closes
    assert not command.is_error
    assert reply_to(b"quit\r\nversion\r\n", OK) == b""


@each_row("data", [b"x" * 3000, b"set " + b"k" * 3000 + b" 0 0 1\r\n"])
def test_an_endless_line_closes_the_connection(data: bytes) -> None:
    """It is not known where the next command begins."""
    (command,) = commands_of(data)
    assert isinstance(command, Simple)
    assert command.closes
    assert command.reply(command, OK) == b"CLIENT_ERROR line too long\r\n"


def test_a_get_may_have_thousands_of_keys() -> None:
    """Its line is longer than that of any other command."""
    keys = [b"key-%d" % number for number in range(20_000)]
    found = commands_of(b"get " + b" ".join(keys) + b"\r\n")
    assert [command.key for command in found if isinstance(command, Get)] == keys


def test_the_line_of_a_get_has_a_limit() -> None:
    """Its beginning must not fill the memory."""
    connection = Connection(LIMITS)
    connection.receive(b"get ")
    piece = b"k " * 10_000
    command = None
    for _ in range(100):
        connection.receive(piece)
        command = connection.next_command()
        if command is not None:
            break
        assert connection.buffered <= 1 << 20
    assert isinstance(command, Simple)
    assert command.closes
    assert connection.buffered == 0


def test_a_request_of_a_browser_closes_the_connection() -> None:
    """A page of another site must not be able to send commands in a body."""
    (command,) = commands_of(b"POST / HTTP/1.1\r\nContent-Type: x\r\n\r\nflush_all\r\n")
    assert isinstance(command, Simple)
    assert command.closes


# --- Credentials ---------------------------------------------------------------------


def test_a_set_is_taken_for_credentials() -> None:
    """Its key is ignored, as by memcached with -Y."""
    connection = Connection(LIMITS, wants_credentials=True)
    connection.receive(b"set x 0 0 9\r\nuser word\r\nset x 0 0 1\r\n1\r\n")
    command = connection.next_command()
    assert command is not None
    assert command._replace(reply=None) == Authenticate("auth", b"user", b"word")
    assert connection.reply(command, Result(Status.AUTHENTICATED)) == b"STORED\r\n"
    connection.wants_credentials = False
    assert isinstance(connection.next_command(), Put)


@each_row(
    ("data", "reply"),
    [
        (b"set x 0 0\r\n", b"CLIENT_ERROR unauthenticated\r\n"),
        (b"set x 0 0 -5\r\n", b"CLIENT_ERROR unauthenticated\r\n"),
        (
            b"set x 0 0 4\r\nuser\r\n",
            b"CLIENT_ERROR bad authentication token format\r\n",
        ),
        (
            b"set x 0 0 9999\r\n",
            b"CLIENT_ERROR bad authentication token format\r\n",
        ),
        (
            b"set x 0 0 9\r\nuser wordxx\r\n",
            b"CLIENT_ERROR bad command line termination\r\n",
        ),
    ],
)
def test_bad_credentials_are_an_error(data: bytes, reply: bytes) -> None:
    """They are no command that stores."""
    connection = Connection(LIMITS, wants_credentials=True)
    connection.receive(data)
    command = connection.next_command()
    assert isinstance(command, Simple)
    assert connection.reply(command, OK) == reply


def test_a_wrong_token_is_answered_as_by_memcached() -> None:
    """The next `set` is taken for credentials again."""
    connection = Connection(LIMITS, wants_credentials=True)
    for _ in range(2):
        connection.receive(b"set x 0 0 9 noreply\r\nuser word\r\n")
        command = connection.next_command()
        assert isinstance(command, Authenticate)
        reply = connection.reply(command, Result(Status.DENIED))
        assert reply == b"CLIENT_ERROR authentication failure\r\n"


# --- Numbers -------------------------------------------------------------------------


@each_row(
    ("word", "number"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"+7", 7),
        (b"007", 7),
        (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", None),
        (b"1\tx", 1),
        (b"\t1", 1),
        (b"1x", None),
        (b"1_0", None),
        (b"", None),
        (b"-", None),
        (b"\xb2", None),
        (b"9" * 5000, None),
    ],
)
def test_a_signed_number_is_read_as_by_strtol(word: bytes, number: int | None) -> None:
    """A number of more than 64 bits is none."""
    assert signed(word) == number


@each_row(
    ("word", "number"),
    [
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None),
        (b"-1", None),
        (b"-0", 0),
        (b"+5", 5),
        (b"x", None),
    ],
)
def test_an_unsigned_number_is_read_as_by_strtoull(
    word: bytes, number: int | None
) -> None:
    """One below 0 is none."""
    assert unsigned(word) == number
