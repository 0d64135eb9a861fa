"""The binary protocol of memcached, in bytes and commands."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import binary_protocol as wire
from support.binary_protocol import Reply, request
from volcache.memcache.binary import BinaryCodec
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
    Stats,
    Status,
    Touch,
)
from volcache.memcache.protocol import WireLimits
from volcache.store import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

VALUE_SIZE = 1000
OPAQUE = b"\1\2\3\4"
RECORD = Record(b"value", b"", b"", b"", 0, 0, 0, 0, 0, 0, 0, 0)._replace(
    stored_us=77, flags=5
)
OK = Result(Status.OK)


def codec_for(*pieces: bytes, wants_credentials: bool = False) -> BinaryCodec:
    """Return a codec that has received bytes."""
    codec = BinaryCodec(
        WireLimits(250, VALUE_SIZE), wants_credentials=wants_credentials
    )
    for piece in pieces:
        codec.receive(piece)
    return codec


def command_in(data: bytes) -> Command:
    """Return the command that a request makes."""
    codec = codec_for(data)
    command = codec.next_command()
    assert command is not None
    assert codec.buffered == 0
    return command


def reply_to(data: bytes, result: Result = OK) -> list[Reply]:
    """Return the replies to a request that has a result."""
    codec = codec_for(data)
    command = codec.next_command()
    assert command is not None
    return list(wire.replies(codec.reply(command, result)))


def errors_of(codec: BinaryCodec) -> list[tuple[int, bytes, bool]]:
    """Return status, text and whether the connection is closed, of all commands."""
    found = []
    while (command := codec.next_command()) is not None:
        assert isinstance(command, Simple)
        found += [
            (reply.status, reply.value, command.closes)
            for reply in wire.replies(codec.reply(command, OK))
        ]
    return found


def plain(command: Command) -> Command:
    """Return a command without what its reply is made of."""
    return command._replace(reply=None)


class TestCommands:
    """Requests become commands."""

    @pytest.mark.parametrize(
        "opcode", [wire.GET, wire.GETQ, wire.GETK, wire.GETKQ], ids=hex
    )
    def test_get(self, opcode: int) -> None:
        """All four forms are the same command."""
        assert plain(command_in(request(opcode, b"key"))) == Get("get", b"key")

    @pytest.mark.parametrize(
        "opcode", [wire.GAT, wire.GATQ, wire.GATK, wire.GATKQ], ids=hex
    )
    def test_get_and_touch(self, opcode: int) -> None:
        """The time is in the extras."""
        data = request(opcode, b"key", extras=wire.time_extras(60))
        assert plain(command_in(data)) == Get("gat", b"key", 60)

    def test_touch(self) -> None:
        """Likewise."""
        data = request(wire.TOUCH, b"key", extras=wire.time_extras(60))
        assert plain(command_in(data)) == Touch("touch", b"key", 60)

    @pytest.mark.parametrize(
        ("opcode", "name"),
        [
            (wire.SET, "set"),
            (wire.SETQ, "set"),
            (wire.ADD, "add"),
            (wire.ADDQ, "add"),
            (wire.REPLACE, "replace"),
            (wire.REPLACEQ, "replace"),
        ],
    )
    def test_put(self, opcode: int, name: str) -> None:
        """Flags and time are in the extras; a cas unique makes a "cas" of each."""
        extras = wire.put_extras(5, 60)
        command = command_in(request(opcode, b"key", b"value", extras=extras))
        assert plain(command) == Put(name, b"key", name, b"value", 5, 60)  # type: ignore[arg-type]
        command = command_in(request(opcode, b"key", b"value", extras=extras, cas=9))
        assert plain(command) == Put("cas", b"key", "set", b"value", 5, 60, 9)

    @pytest.mark.parametrize(
        ("opcode", "name"),
        [
            (wire.APPEND, "append"),
            (wire.APPENDQ, "append"),
            (wire.PREPEND, "prepend"),
            (wire.PREPENDQ, "prepend"),
        ],
    )
    def test_append_and_prepend(self, opcode: int, name: str) -> None:
        """They have no extras."""
        command = command_in(request(opcode, b"key", b"value", cas=9))
        assert plain(command) == Put(name, b"key", name, b"value", cas=9)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("opcode", "name"),
        [
            (wire.INCR, "incr"),
            (wire.INCRQ, "incr"),
            (wire.DECR, "decr"),
            (wire.DECRQ, "decr"),
        ],
    )
    def test_arithmetic(self, opcode: int, name: str) -> None:
        """The time 0xffffffff says that no initial number is stored."""
        extras = wire.arithmetic_extras(2, 10, 60)
        command = command_in(request(opcode, b"key", extras=extras, cas=9))
        assert plain(command) == Arithmetic(
            name, b"key", 2, name == "decr", 10, 60, cas=9
        )
        extras = wire.arithmetic_extras(2, 10, 2**32 - 1)
        command = command_in(request(opcode, b"key", extras=extras))
        assert isinstance(command, Arithmetic)
        assert command.initial is None

    @pytest.mark.parametrize("opcode", [wire.DELETE, wire.DELETEQ], ids=hex)
    def test_delete(self, opcode: int) -> None:
        """A version may be given."""
        command = command_in(request(opcode, b"key", cas=9))
        assert plain(command) == Delete("delete", b"key", 9)

    @pytest.mark.parametrize("opcode", [wire.FLUSH, wire.FLUSHQ], ids=hex)
    def test_flush(self, opcode: int) -> None:
        """A time may be given."""
        assert plain(command_in(request(opcode))) == FlushAll("flush_all")
        command = command_in(request(opcode, extras=wire.time_extras(60)))
        assert plain(command) == FlushAll("flush_all", 60)

    def test_stat(self) -> None:
        """The key says which statistics."""
        assert plain(command_in(request(wire.STAT))) == Stats("stats")
        command = command_in(request(wire.STAT, b"items"))
        assert plain(command) == Stats("stats", b"items")

    def test_quit_closes_the_connection_after_its_reply(self) -> None:
        """Nothing after it is a command; the quiet form has no reply."""
        codec = codec_for(request(wire.QUIT) + request(wire.NOOP))
        command = codec.next_command()
        assert isinstance(command, Simple)
        assert command.closes
        assert codec.reply(command, OK)
        codec.receive(request(wire.NOOP))
        assert codec.next_command() is None
        assert codec.buffered == 0
        command = command_in(request(wire.QUITQ))
        assert isinstance(command, Simple)
        assert command.closes
        assert reply_to(request(wire.QUITQ)) == []


class TestReplies:
    """Results become replies; what memcached replies is tested against memcached."""

    def test_a_reply_has_opcode_opaque_and_version(self) -> None:
        """Of a quiet request, too."""
        result = Result(Status.HIT, RECORD)
        extras = wire.put_extras(5)[:4]
        assert reply_to(request(wire.GETQ, b"key"), result) == [
            Reply(wire.GETQ, 0, extras, b"", b"value", OPAQUE, 77)
        ]
        assert reply_to(request(wire.GETK, b"key"), result) == [
            Reply(wire.GETK, 0, extras, b"key", b"value", OPAQUE, 77)
        ]

    def test_a_quiet_read_does_not_answer_a_miss(self) -> None:
        """A loud one does, with the key if it wants that."""
        miss = Result(Status.MISS)
        assert reply_to(request(wire.GETQ, b"key"), miss) == []
        assert reply_to(request(wire.GETKQ, b"key"), miss) == []
        assert reply_to(request(wire.GETK, b"key"), miss) == [
            Reply(wire.GETK, 1, b"", b"key", b"", OPAQUE, 0)
        ]

    @pytest.mark.parametrize(
        ("data", "success", "failure"),
        [
            (
                request(wire.SETQ, b"key", extras=wire.put_extras()),
                Result(Status.STORED, RECORD),
                Result(Status.FAILED, text="the disk refused: it is full"),
            ),
            (
                request(wire.INCRQ, b"key", extras=wire.arithmetic_extras(1)),
                Result(Status.STORED, RECORD, 1),
                Result(Status.NON_NUMERIC),
            ),
            (
                request(wire.DELETEQ, b"key"),
                Result(Status.DELETED),
                Result(Status.NOT_FOUND),
            ),
            (request(wire.FLUSHQ), OK, Result(Status.FORBIDDEN, text="no")),
        ],
    )
    def test_a_quiet_write_does_not_answer_a_success(
        self, data: bytes, success: Result, failure: Result
    ) -> None:
        """It answers an error."""
        assert reply_to(data, success) == []
        (reply,) = reply_to(data, failure)
        assert reply.status

    def test_the_reason_of_the_disk_is_in_the_reply(self) -> None:
        """With the status that memcached has for want of memory."""
        data = request(wire.SET, b"key", extras=wire.put_extras())
        (reply,) = reply_to(data, Result(Status.FAILED, text="the disk refused"))
        assert (reply.status, reply.value) == (0x82, b"the disk refused")

    def test_an_expired_value_has_no_version(self) -> None:
        """It was not stored."""
        data = request(wire.SET, b"key", extras=wire.put_extras())
        (reply,) = reply_to(data, Result(Status.STORED))
        assert (reply.status, reply.cas) == (0, 0)

    def test_a_key_that_http_does_not_know_is_an_invalid_argument(self) -> None:
        """The connection stays open."""
        data = request(wire.SET, b"a/../b", extras=wire.put_extras())
        (reply,) = reply_to(data, Result(Status.BAD_KEY, text="bad key"))
        assert (reply.status, reply.value) == (0x04, b"Invalid arguments")

    def test_statistics_end_with_an_empty_reply(self) -> None:
        """Each pair is a reply."""
        result = Result(Status.OK, pairs=(("pid", "1"), ("uptime", "20")))
        assert reply_to(request(wire.STAT), result) == [
            Reply(wire.STAT, 0, b"", b"pid", b"1", OPAQUE, 0),
            Reply(wire.STAT, 0, b"", b"uptime", b"20", OPAQUE, 0),
            Reply(wire.STAT, 0, b"", b"", b"", OPAQUE, 0),
        ]

    @pytest.mark.parametrize(
        "data",
        [
            request(wire.GETQ, b"key"),
            request(wire.SETQ, b"key", extras=wire.put_extras()),
            request(wire.INCR, b"key", extras=wire.arithmetic_extras(1)),
            request(wire.TOUCH, b"key", extras=wire.time_extras(1)),
            request(wire.DELETEQ, b"key"),
            request(wire.FLUSH),
            request(wire.STAT),
            request(wire.NOOP),
        ],
    )
    def test_without_a_token_the_reply_is_auth_failure(self, data: bytes) -> None:
        """Whatever the request is."""
        (reply,) = reply_to(data, Result(Status.UNAUTHORIZED))
        assert (reply.status, reply.value) == (0x20, b"Auth failure.")
        assert (reply.opcode, reply.opaque) == (data[1], OPAQUE)

    def test_verbosity_is_accepted(self) -> None:
        """It changes nothing."""
        (reply,) = reply_to(request(wire.VERBOSITY, extras=bytes(4)))
        assert reply.status == 0


class TestErrors:
    """Requests that are none."""

    @pytest.mark.parametrize(
        "data",
        [
            request(wire.GET),
            request(wire.GET, b"k" * 251),
            request(wire.GET, b"key", extras=b"1234"),
            request(wire.GET, b"key", b"value"),
            request(wire.TOUCH, b"key"),
            request(wire.TOUCH, b"key", b"value", extras=bytes(4)),
            request(wire.SET, b"key", b"value"),
            request(wire.SETQ, b"key", b"value", extras=bytes(4)),
            request(wire.APPEND, b"key", b"value", extras=bytes(8)),
            request(wire.INCR, b"key", extras=bytes(8)),
            request(wire.NOOP, b"key"),
            request(wire.FLUSH, extras=b"12"),
            request(wire.STAT, b"", b"value"),
            request(wire.SASL_LIST, b"key"),
            request(wire.SASL_AUTH),
        ],
    )
    def test_a_wrong_request_closes_the_connection(self, data: bytes) -> None:
        """After a reply. What follows is not read."""
        codec = codec_for(data + request(wire.NOOP))
        assert errors_of(codec) == [(0x04, b"Invalid arguments", True)]

    def test_a_body_smaller_than_its_parts_closes_the_connection(self) -> None:
        """As an unknown command."""
        codec = codec_for(request(wire.GET, b"key", body_size=2))
        assert errors_of(codec) == [(0x81, b"Unknown command", True)]

    @pytest.mark.parametrize("data", [b"get a\r\n", b"\x81" + bytes(23), b"\0"])
    def test_what_is_no_request_closes_the_connection_without_a_reply(
        self, data: bytes
    ) -> None:
        """At its first byte."""
        codec = codec_for(request(wire.NOOP) + data)
        command = codec.next_command()
        assert command is not None
        command = codec.next_command()
        assert isinstance(command, Simple)
        assert (command.closes, command.is_error) == (True, True)
        assert codec.reply(command, OK) == b""

    @pytest.mark.parametrize("extras", [b"", b"12345678"])
    @pytest.mark.parametrize("size", [0, 1, 1_000_000])
    def test_an_unknown_request_is_skipped(self, extras: bytes, size: int) -> None:
        """With all of its body. memcached skips key and extras twice."""
        data = request(0x77, b"key", bytes(size), extras=extras)
        codec = codec_for(data[:100], data[100:], request(wire.NOOP))
        assert errors_of(codec) == [
            (0x81, b"Unknown command", False),
            (0, b"", False),
        ]

    def test_a_value_above_the_limit_is_skipped(self) -> None:
        """It is answered before it arrives, and takes no memory."""
        head = request(
            wire.SET, b"key", extras=wire.put_extras(), body_size=8 + 3 + 2**32 - 20
        )
        codec = codec_for(head)
        command = codec.next_command()
        assert isinstance(command, Put)
        assert (command.is_too_large, command.value, command.mode) == (True, b"", "set")
        reply = codec.reply(command, Result(Status.TOO_LARGE))
        assert [one.status for one in wire.replies(reply)] == [0x03]
        piece = bytes(1 << 20)
        left = 2**32 - 20
        while left >= len(piece):
            codec.receive(piece)
            left -= len(piece)
            assert codec.buffered == 0
            assert codec.next_command() is None
        codec.receive(bytes(left) + request(wire.NOOP))
        assert errors_of(codec) == [(0, b"", False)]

    def test_a_value_of_the_limit_is_no_error(self) -> None:
        """One byte more is."""
        for size in (VALUE_SIZE, VALUE_SIZE + 1):
            data = request(wire.APPEND, b"key", bytes(size))
            command = command_in(data)
            assert isinstance(command, Put)
            assert command.is_too_large == (size > VALUE_SIZE)

    def test_a_sum_above_the_limit_is_not_stored(self) -> None:
        """In the words of memcached; only a value that is too large by itself is that."""
        (reply,) = reply_to(
            request(wire.APPEND, b"key", b"v"), Result(Status.TOO_LARGE)
        )
        assert (reply.status, reply.value) == (0x05, b"Not stored.")


class TestSasl:
    """SASL PLAIN gives a token."""

    def test_it_is_unknown_to_a_server_without_tokens(self) -> None:
        """As to memcached without -S: clients go on without it then."""
        codec = codec_for(
            request(wire.SASL_LIST), request(wire.SASL_AUTH, b"PLAIN", b"\0u\0p")
        )
        assert errors_of(codec) == [(0x81, b"Unknown command", False)] * 2

    def test_plain_is_the_only_mechanism(self) -> None:
        """Another is refused."""
        codec = codec_for(
            request(wire.SASL_LIST),
            request(wire.SASL_AUTH, b"CRAM-MD5", b"\0u\0p"),
            wants_credentials=True,
        )
        assert errors_of(codec) == [
            (0, b"PLAIN", False),
            (0x20, b"Auth failure.", False),
        ]

    def test_a_message_becomes_a_command(self) -> None:
        """With who it is, and the token; in whose name is of no importance."""
        codec = codec_for(
            request(wire.SASL_AUTH, b"PLAIN", b"root\0user\0to ken"),
            wants_credentials=True,
        )
        command = codec.next_command()
        assert isinstance(command, Authenticate)
        assert plain(command) == Authenticate("auth", b"user", b"to ken")
        right = codec.reply(command, Result(Status.AUTHENTICATED))
        wrong = codec.reply(command, Result(Status.DENIED))
        found = [(one.status, one.value) for one in wire.replies(right + wrong)]
        assert found == [(0, b"Authenticated"), (0x20, b"Auth failure.")]

    def test_the_message_may_follow_in_a_step(self) -> None:
        """After an empty one; without that there is no step."""
        step = request(wire.SASL_STEP, b"PLAIN", b"\0u\0p")
        codec = codec_for(
            step, request(wire.SASL_AUTH, b"PLAIN"), step, step, wants_credentials=True
        )
        found: list[object] = []
        while (command := codec.next_command()) is not None:
            if isinstance(command, Authenticate):
                found.append(command.password)
            else:
                reply = codec.reply(command, OK)
                found += [one.status for one in wire.replies(reply)]
        assert found == [0x20, 0x21, b"p", 0x20]

    @pytest.mark.parametrize(
        ("mechanism", "message", "status"),
        [
            (b"PLAIN", b"token", 0x20),
            (b"PLAIN", b"\0user", 0x20),
            (b"PLAIN", b"\0user\0token\0", 0x20),
            (b"PLAIN", b"\0u\0" + bytes(5000), 0x82),
            (b"P" * 33, b"\0user\0token", 0x04),
        ],
    )
    def test_a_message_that_is_none_is_refused(
        self, mechanism: bytes, message: bytes, status: int
    ) -> None:
        """The connection stays open."""
        codec = codec_for(
            request(wire.SASL_AUTH, mechanism, message),
            request(wire.NOOP),
            wants_credentials=True,
        )
        assert [one[0] for one in errors_of(codec)] == [status, 0]

    def test_it_stays_known_after_the_token_was_given(self) -> None:
        """A client may give another."""
        codec = codec_for(request(wire.SASL_LIST), wants_credentials=True)
        assert errors_of(codec) == [(0, b"PLAIN", False)]
        codec.wants_credentials = False
        codec.receive(request(wire.SASL_LIST))
        assert errors_of(codec) == [(0, b"PLAIN", False)]


# --- Any input ------------------------------------------------------------------------


def drain(codec: BinaryCodec) -> Iterable[tuple[Command, bytes]]:
    """Return the commands of a codec and the replies to a result of "ok"."""
    while (command := codec.next_command()) is not None:
        yield plain(command), codec.reply(command, OK)


requests = st.builds(
    lambda opcode, key, value, extras, cas: request(
        opcode, key, value, extras=extras, cas=cas
    ),
    st.sampled_from(range(0x26)),
    st.binary(max_size=5),
    st.binary(max_size=40),
    st.sampled_from([b"", bytes(4), bytes(8), bytes(20)]),
    st.integers(0, 3),
)
headers = st.builds(
    wire.HEADER.pack,
    st.sampled_from([0x80, 0x80, 0x80, 0x80, 0x81, 0]),
    st.integers(0, 0x26),
    st.one_of(st.integers(0, 8), st.integers(0, 2**16 - 1)),
    st.one_of(st.sampled_from([0, 4, 8, 20]), st.integers(0, 255)),
    st.integers(0, 255),
    st.integers(0, 2**16 - 1),
    st.one_of(st.integers(0, 60), st.integers(0, 2**32 - 1)),
    st.binary(min_size=4, max_size=4),
    st.integers(0, 2**64 - 1),
)
noise = st.lists(
    st.one_of(requests, requests, headers, st.binary(max_size=60)), max_size=12
).map(b"".join)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=noise, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_any_split_of_the_input_gives_the_same_commands(
    data: bytes, cuts: list[int]
) -> None:
    """And replies. No input is an error, and what is held is bounded."""
    whole = list(drain(codec_for(data)))
    codec = codec_for()
    found: list[tuple[Command, bytes]] = []
    bounds = [0, *sorted(cuts), len(data)]
    for start, stop in pairwise(bounds):
        codec.receive(data[start:stop])
        found += drain(codec)
        assert codec.buffered <= 24 + 255 + 250 + VALUE_SIZE
    assert found == whole


@settings(max_examples=30, deadline=None)
@given(data=noise)
def test_single_bytes_give_the_same_commands(data: bytes) -> None:
    """The smallest pieces."""
    codec = codec_for()
    found: list[tuple[Command, bytes]] = []
    for byte in data:
        codec.receive(bytes((byte,)))
        found += drain(codec)
    assert found == list(drain(codec_for(data)))


def test_a_value_in_small_pieces_takes_little_memory() -> None:
    """At most some copies of it, however small the pieces are."""
    size = 1 << 18
    codec = BinaryCodec(WireLimits(250, size))
    data = request(wire.SET, b"key", bytes(size), extras=wire.put_extras())
    tracemalloc.start()
    try:
        for start in range(0, len(data) - 7, 7):
            codec.receive(data[start : start + 7])
            assert codec.next_command() is None
        codec.receive(data[start + 7 :])
        command = codec.next_command()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(command, Put)
    assert len(command.value) == size
    assert peak < 3.5 * size
