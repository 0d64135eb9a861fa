"""The meta commands: bytes to commands, results to bytes."""

from __future__ import annotations

from typing import Any

import pytest

from support.tables import each_row
from volcache.memcache.commands import (
    Arithmetic,
    Command,
    Delete,
    Get,
    Put,
    Result,
    Simple,
    Status,
)
from volcache.memcache.protocol import Connection, WireLimits
from volcache.memcache.replies import NO_VERSION
from volcache.store import Record

LIMITS = WireLimits(key_size=250, value_size=100)
MISSED = Result(Status.MISS)
STORED = Result(Status.STORED)


def hit(value: bytes, **fields: Any) -> Result:
    """Return the result of a get of a record with flags 5 and cas unique 7."""
    record = Record(value, b"", b"", b"", 7, 0, 5, 0, 0, 90, len(value), 0)
    return Result(Status.HIT, record, **fields)


def command_of(data: bytes) -> Command:
    """Return the only command in some bytes."""
    connection = Connection(LIMITS)
    connection.receive(data)
    command = connection.next_command()
    assert command is not None
    assert connection.next_command() is None
    return command


def reply_to(data: bytes, result: Result) -> bytes:
    """Return the reply to the only command in some bytes."""
    command = command_of(data)
    return bytes(command.reply(command, result))


def error_of(data: bytes) -> bytes:
    """Return the reply to a command that is an error."""
    command = command_of(data)
    assert isinstance(command, Simple)
    assert command.is_error
    return bytes(command.reply(command, STORED))


_GET = Get("mg", b"a", None, wants_value=False, is_meta=True)
_BASE64 = b"YSBi"  # a b


@each_row(
    ("data", "command"),
    [
        (b"mg a\r\n", _GET),
        (b"mg a v\r\n", _GET._replace(wants_value=True)),
        (b"mg YSBi b\r\n", _GET._replace(key=b"a b")),
        (b"mg a T30\r\n", _GET._replace(exptime=30)),
        (b"mg a N30 R10\r\n", _GET._replace(vivify=30, recache=10)),
        (b"mg a N30 T60\r\n", _GET._replace(exptime=60, vivify=60)),
        (b"mg a T60 N30\r\n", _GET._replace(exptime=60, vivify=30)),
        (
            b"mg a T60 R10\r\n",
            _GET._replace(exptime=60, recache=10, is_recache_late=True),
        ),
        (b"mg a t\r\n", _GET._replace(ttl="after")),
        (b"mg a t T60\r\n", _GET._replace(exptime=60, ttl="before")),
        (b"mg a T60 t\r\n", _GET._replace(exptime=60, ttl="after")),
        (b"ms a 1\r\nx\r\n", Put("ms", b"a", "set", b"x")),
        (b"ms a 1 T60 F3\r\nx\r\n", Put("ms", b"a", "set", b"x", 3, 60)),
        (b"ms a 1 ME C5\r\nx\r\n", Put("ms", b"a", "add", b"x")),
        (b"ms a 1 MR\r\nx\r\n", Put("ms", b"a", "replace", b"x")),
        (b"ms a 1 MA N60\r\nx\r\n", Put("ms", b"a", "append", b"x", vivify=60)),
        (b"ms a 1 MP\r\nx\r\n", Put("ms", b"a", "prepend", b"x")),
        (b"ms a 1 C5\r\nx\r\n", Put("ms", b"a", "set", b"x", cas=5)),
        (b"ms a 1 C0\r\nx\r\n", Put("ms", b"a", "set", b"x", cas=NO_VERSION)),
        (b"ms YSBi 1 b\r\nx\r\n", Put("ms", b"a b", "set", b"x")),
        (b"md a\r\n", Delete("md", b"a")),
        (b"md a C5\r\n", Delete("md", b"a", 5)),
        (b"ma a\r\n", Arithmetic("ma", b"a", 1)),
        (b"ma a MD D3\r\n", Arithmetic("ma", b"a", 3, is_decrement=True)),
        (b"ma a N60 J9\r\n", Arithmetic("ma", b"a", 1, False, 9, 60)),  # noqa: FBT003
        (b"ma a T60 C5\r\n", Arithmetic("ma", b"a", 1, exptime=60, cas=5,
                                        initial_exptime=60)),
        (b"me a\r\n", Get("me", b"a", None, wants_value=False, is_peek=True)),
    ],
)  # fmt: skip
def test_a_line_becomes_its_command(data: bytes, command: Command) -> None:
    """Flags are in any order; what "T" and "N" say counts in their order."""
    assert command_of(data)._replace(reply=None) == command


@each_row(
    ("data", "result", "reply"),
    [
        (b"mg a\r\n", hit(b"x"), b"HD\r\n"),
        (b"mg a v\r\n", hit(b"xyz"), b"VA 3\r\nxyz\r\n"),
        (b"mg a s v f c k Oid\r\n", hit(b"xyz"), b"VA 3 s3 f5 c7 ka Oid\r\nxyz\r\n"),
        (b"mg a t\r\n", hit(b"", ttl=60), b"HD t60\r\n"),
        (b"mg a t\r\n", hit(b"", ttl=-1), b"HD t-1\r\n"),
        (b"mg YSBi b k\r\n", hit(b""), b"HD kYSBi b\r\n"),
        (b"mg a N30 v\r\n", hit(b"", token=b"W"), b"VA 0 W\r\n\r\n"),
        (b"mg a v\r\n", hit(b"x", token=b"Z"), b"VA 1 Z\r\nx\r\n"),
        (b"mg a v C7 c\r\n", hit(b"xyz"), b"HD c7\r\n"),
        (b"mg a v C8 c\r\n", hit(b"xyz"), b"VA 3 c7\r\nxyz\r\n"),
        (b"mg a k Oid v t\r\n", MISSED, b"EN ka Oid\r\n"),
        (b"mg a q\r\n", MISSED, b""),
        (b"mg a q\r\n", hit(b"x"), b"HD\r\n"),
        (b"ms a 0\r\n\r\n", STORED, b"HD\r\n"),
        (b"ms a 0 k Oid c b\r\n\r\n", STORED, None),
        (b"ms a 0 q\r\n\r\n", STORED, b""),
        (b"ms a 0 q k\r\n\r\n", Result(Status.NOT_STORED), b"NS ka\r\n"),
        (b"ms a 0\r\n\r\n", Result(Status.EXISTS), b"EX\r\n"),
        (b"ms a 0 c\r\n\r\n", Result(Status.NOT_FOUND), b"NF c0\r\n"),
        (b"md a Oid\r\n", Result(Status.DELETED), b"HD Oid\r\n"),
        (b"md a q\r\n", Result(Status.DELETED), b""),
        (b"md a q\r\n", Result(Status.NOT_FOUND), b"NF\r\n"),
        (b"ma a\r\n", hit(b"5")._replace(status=Status.STORED, number=5), b"HD\r\n"),
        (
            b"ma a v t c\r\n",
            hit(b"15")._replace(status=Status.STORED, number=15, ttl=-1),
            b"VA 2 t-1 c7\r\n15\r\n",
        ),
        (b"ma a q v\r\n", hit(b"5")._replace(status=Status.STORED, number=5), b""),
        (
            b"ma a q\r\n",
            Result(Status.NON_NUMERIC),
            b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        (b"me a\r\n", hit(b"x", ttl=-1), b"ME a exp=-1 cas=7 size=90\r\n"),
        (b"me YSBi b\r\n", hit(b"x", ttl=9), b"ME YSBi exp=-9 cas=7 size=90\r\n"),
        (b"me a\r\n", MISSED, b"EN\r\n"),
        (b"mn\r\n", Result(Status.OK), b"MN\r\n"),
    ],
)
def test_results_are_answered_as_by_memcached(
    data: bytes, result: Result, reply: bytes | None
) -> None:
    """The flags of a reply are in the order of those of the command."""
    if reply is None:  # "a" is no base64.
        reply = b"CLIENT_ERROR error decoding key\r\n"
    assert reply_to(data, result) == reply


@each_row(
    ("data", "reply"),
    [
        (b"mg\r\n", b"ERROR\r\n"),
        (b"mg a k k\r\n", b"CLIENT_ERROR duplicate flag\r\n"),
        (b"mg a !\r\n", b"CLIENT_ERROR invalid flag\r\n"),
        (b"mg a Tx\r\n", b"CLIENT_ERROR bad token in command line format\r\n"),
        (b"mg a O" + b"o" * 32 + b"\r\n", b"CLIENT_ERROR opaque token too long\r\n"),
        (b"mg " + b"k" * 251 + b"\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (
            b"mg a" + b" k" * 18 + b"\r\n",
            b"CLIENT_ERROR options flags are too long\r\n",
        ),
        (b"ms a\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (b"ms a -1\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (b"ms a 1 MX\r\nx\r\n", b"CLIENT_ERROR invalid mode for ms M token\r\n"),
        (b"ms a 1 MSS\r\nx\r\n", b"CLIENT_ERROR incorrect length for M token\r\n"),
        (b"ms a 1 Fx\r\nx\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (b"ms !!! 1 b\r\nx\r\n", b"CLIENT_ERROR error decoding key\r\n"),
        (b"md a k k\r\n", b"CLIENT_ERROR invalid or duplicate flag\r\n"),
        (b"ma a Dx\r\n", b"CLIENT_ERROR invalid or duplicate flag\r\n"),
        (b"ma a MX\r\n", b"CLIENT_ERROR invalid mode for ma M token\r\n"),
        (b"me\r\n", b"CLIENT_ERROR bad command line format\r\n"),
        (b"mx a\r\n", b"ERROR\r\n"),
    ],
)
def test_a_bad_line_is_answered_as_by_memcached(data: bytes, reply: bytes) -> None:
    """The value of a bad "ms" is skipped."""
    assert error_of(data) == reply


@pytest.mark.parametrize("flag", [b"I", b"E5"])
@pytest.mark.parametrize("line", [b"mg a", b"ms a 0", b"md a", b"ma a"])
def test_flags_that_a_record_cannot_keep_are_refused(line: bytes, flag: bytes) -> None:
    """An answer must not depend on what a restart would forget."""
    assert b"invalid" in error_of(
        line + b" " + flag + b"\r\n" + b"\r\n" * (b"ms" in line)
    )


def test_a_bad_data_chunk_is_answered_even_if_quiet() -> None:
    """Errors always are."""
    reply = error_of(b"ms a 1 q\r\nx\n\n\n"[:-1])
    assert reply == b"CLIENT_ERROR bad data chunk\r\n"


def test_a_value_above_the_limit_is_skipped() -> None:
    """As by `set`."""
    command = command_of(b"ms a 101 MA\r\n" + b"x" * 101 + b"\r\n")
    assert isinstance(command, Put)
    assert command.is_too_large
    assert command.reply(command, Result(Status.TOO_LARGE)) == (
        b"SERVER_ERROR object too large for cache\r\n"
    )
