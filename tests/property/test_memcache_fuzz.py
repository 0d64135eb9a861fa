"""
Any bytes for the text protocol with the meta commands, and for the binary protocol.

`CRASH_EXTENT` says how much is tried; `make crash` tries everything.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import binary_protocol as wire
from support.extent import examples
from support.memcache_twins import STEPS
from volcache.memcache.commands import (
    Arithmetic,
    Authenticate,
    Command,
    Delete,
    FlushAll,
    Get,
    Put,
    Result,
    Simple,
    Statistics,
    Status,
    Touch,
    WireLimits,
    silent,
)
from volcache.memcache.protocol import decoder_for
from volcache.memcache.text import GET_LINE_BYTES_MAX
from volcache.store import Record

pytestmark = pytest.mark.property

LIMITS = WireLimits(key_size=250, value_size=3000)
RECORD = Record(b"value", b"", b"", b"", 7, 0, 3, 0, 0, 90, 5, 0)
# What the executor may answer.
RESULTS: dict[type, list[Result]] = {
    Get: [Result(Status.HIT, RECORD, token=b"W"), Result(Status.MISS)],
    Put: [Result(Status.STORED, RECORD), Result(Status.STORED), Result(Status.EXISTS)],
    Arithmetic: [Result(Status.STORED, RECORD, 5), Result(Status.NON_NUMERIC)],
    Delete: [Result(Status.DELETED), Result(Status.NOT_FOUND)],
    Touch: [Result(Status.TOUCHED, RECORD), Result(Status.NOT_FOUND)],
    FlushAll: [Result(Status.OK), Result(Status.FORBIDDEN, text="not allowed")],
    Statistics: [Result(Status.OK, pairs=(("a", "b"),)), Result(Status.NOT_FOUND)],
    Authenticate: [Result(Status.DENIED)],
    Simple: [Result(Status.OK)],
}
# A longer input is not sent byte by byte.
BYTEWISE_MAX = 500
FAILED = Result(Status.FAILED, text="the disk refused")

# Commands, and what is nearly one: mutations reach what random bytes do not.
SENT = STEPS.map(lambda step: step.sent)
JUNK = [b"\r\n", b" ", b"\0", b"9" * 30, b"x" * 3000, b"noreply", b"b ", b"\xff", b"-"]
LINES = [
    *(b"set a 0 0 2147483647\r\n", b"set a 0 0 99999999999999999999\r\n"),
    *(b"set a 0 0 4294967301\r\nhello\r\n", b"flush_all 10 noreply\r\n"),
    *(
        b"set a 0 0 9\r\nuser word\r\n",
        b"stats settings\r\n",
        b"mg a N30 R10 T60 C9\r\n",
    ),
    b"POST / HTTP/1.1\r\n",
]
PIECES = st.one_of(
    SENT,
    st.binary(max_size=40),
    st.sampled_from(JUNK + LINES),
    st.builds(
        lambda seed, at, junk, gone: seed[:at] + junk + seed[at + gone :],
        SENT | st.sampled_from(LINES),
        st.integers(0, 40),
        st.binary(max_size=4) | st.sampled_from(JUNK),
        st.integers(0, 4),
    ),
)
CREDENTIALS = st.sampled_from([{}, {"wants_credentials": True}])
TEXTS = st.lists(PIECES, max_size=15).map(b"".join)


def numbers(usual: list[int], size: int) -> st.SearchStrategy[int]:
    """Return a number of some bytes that is often one of the usual ones."""
    return st.sampled_from(usual) | st.integers(0, 256**size - 1)


REQUESTS = st.builds(
    wire.request,
    st.sampled_from(range(0x26)),
    st.binary(max_size=5),
    st.binary(max_size=40),
    extras=st.sampled_from([b"", bytes(4), bytes(8), bytes(20)]),
    cas=st.integers(0, 3),
)
HEADERS = st.builds(
    wire.HEADER.pack,
    st.sampled_from([0x80, 0x80, 0x80, 0x80, 0x81, 0]),
    st.integers(0, 0x26),
    numbers([*range(9)], 2),
    numbers([0, 4, 8, 20], 1),
    *(st.integers(0, 255), st.integers(0, 2**16 - 1), numbers([*range(61)], 4)),
    *(st.binary(min_size=4, max_size=4), st.integers(0, 2**64 - 1)),
)
BINARY = st.lists(
    REQUESTS | REQUESTS | HEADERS | st.binary(max_size=60), min_size=1, max_size=12
).map(b"".join)


def drive(
    pieces: list[bytes], choose: Any, **options: Any
) -> list[tuple[Command, bytes]]:
    """Receive pieces and answer; return commands and replies. Checks what always holds."""
    data = b"".join(pieces)
    decoder = decoder_for(LIMITS, data, **options)
    found: list[tuple[Command, bytes]] = []
    is_closed = False
    for piece in pieces:
        decoder.receive(piece)
        while (command := decoder.next_command()) is not None:
            assert not is_closed
            result = choose(RESULTS[type(command)])
            reply = command.reply(command, result)
            assert reply[:1] == b"\x81" or reply == b"" or reply.endswith(b"\r\n")
            found.append((command._replace(reply=silent), reply))
            is_closed = isinstance(command, Simple) and command.closes
            if isinstance(command, Put):
                assert len(command.value) <= LIMITS.value_size
            assert 1 <= len(getattr(command, "key", b"k")) <= 250
        is_binary = data[:1] == b"\x80"
        assert decoder.buffered <= (4000 if is_binary else GET_LINE_BYTES_MAX)
        assert not is_closed or decoder.buffered == 0
    return found


@settings(max_examples=examples(900))
@given(TEXTS | BINARY, st.lists(st.integers(0, 5000), max_size=6), CREDENTIALS)
def test_any_input_becomes_commands(
    data: bytes, cuts: list[int], credentials: dict[str, bool]
) -> None:
    """It raises nothing, holds little, and does not depend on the pieces."""
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(ends)]
    one = drive([data], lambda results: results[0], **credentials)
    assert drive(pieces, lambda results: results[0], **credentials) == one
    drive(pieces, lambda results: results[-1], **credentials)
    drive(pieces, lambda _: FAILED, **credentials)
    if len(data) < BYTEWISE_MAX:
        bytewise = [bytes([byte]) for byte in data]
        assert drive(bytewise, lambda results: results[0], **credentials) == one


@pytest.mark.parametrize(
    "start",
    [b"", b"get ", b"gets ", b"set ", b"mg ", b"set a 0 0 %d\r\n" % 10**12, b" " * 99],
)
@pytest.mark.parametrize("junk", [b"x", b"x ", b"\0", b"  ", b"\r"])
def test_endless_input_is_not_held(start: bytes, junk: bytes) -> None:
    """Neither lines nor values without an end fill the memory."""
    pieces = [start, *[junk * (50_000 // len(junk))] * 60]
    commands = drive(pieces, lambda results: results[0])
    assert len(commands) <= 1
