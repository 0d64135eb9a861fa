"""The binary protocol of memcached: what is sent and what is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from support import binary_protocol as wire
from support.binary_protocol import Reply, request
from support.memcache_talk import Talk
from volcache.access import Access

OPAQUE: Final = b"\1\2\3\4"
NOOP: Final = request(wire.NOOP)
# Status and text of replies.
DONE: Final = (0, b"")
ABSENT: Final = (1, b"Not found")
EXISTS: Final = (2, b"Data exists for key.")
NOT_STORED: Final = (5, b"Not stored.")
INVALID: Final = (4, b"Invalid arguments")
TOO_LARGE: Final = (3, b"Too large.")
NOT_NUMERIC: Final = [
    *(DONE, (6, b"Non-numeric server-side value for incr or decr"), (0, b"uv")),
]
UNKNOWN: Final = (0x81, b"Unknown command")
UNAUTHORIZED: Final = (0x20, b"Auth failure.")


def get(opcode: int = wire.GET) -> bytes:
    """Return a request for the key."""
    return request(opcode, b"a")


def put(opcode: int, value: bytes = b"v", time: int = 0, cas: int = 0) -> bytes:
    """Return a request that stores."""
    return request(opcode, b"a", value, extras=wire.put_extras(5, time), cas=cas)


def edit(opcode: int, value: bytes = b"v", cas: int = 0) -> bytes:
    """Return a request that appends or prepends."""
    return request(opcode, b"a", value, cas=cas)


def count(opcode: int, *numbers: int, cas: int = 0) -> bytes:
    """Return a request with delta, initial number and time."""
    return request(opcode, b"a", extras=wire.arithmetic_extras(*numbers), cas=cas)


def timed(opcode: int, time: int) -> bytes:
    """Return a request for the key with a time."""
    return request(opcode, b"a", extras=wire.time_extras(time))


def replies(talk: Talk, *requests: bytes) -> list[Reply]:
    """Return the replies to requests."""
    return list(wire.replies(talk.ask(*requests)))


def answers(talk: Talk, *requests: bytes) -> list[tuple[int, bytes]]:
    """Return status and value of the replies."""
    return [(reply.status, reply.value) for reply in replies(talk, *requests)]


def test_what_differs_from_memcached_or_is_rare(talk: Talk) -> None:
    """All else is compared with it in tests/property/test_memcache_binary.py."""
    store, past = put(wire.SET), 30 * 24 * 3600 + 1
    wrong = [put(wire.SET, cas=9), edit(wire.APPEND, cas=9)]
    wrong += [count(wire.DECR, 3, cas=9), request(wire.DELETE, b"a", cas=9)]
    later, large = wire.time_extras(60), bytes(1001)
    for asked, expected in (
        ([store, timed(wire.TOUCH, past), timed(wire.TOUCH, 9)], [DONE, DONE, ABSENT]),
        ([store, request(wire.FLUSH, extras=later), get()], [DONE, DONE, (0, b"v")]),
        ([put(wire.SETQ), put(wire.ADDQ), get(wire.GETQ)], [EXISTS, (0, b"v")]),
        ([put(wire.REPLACE), put(wire.SET, cas=9)], [ABSENT, ABSENT]),
        ([store, count(wire.INCRQ, 1), edit(wire.PREPENDQ, b"u"), get()], NOT_NUMERIC),
        ([store, *[request(wire.DELETEQ, b"a")] * 2, get(wire.GETQ)], [DONE, ABSENT]),
        ([count(wire.INCR, 2, 10), *wrong], [(0, bytes(7) + b"\n"), *[EXISTS] * 4]),
        ([count(wire.INCR, 2, 10, past), get()], [(0, bytes(7) + b"\n"), ABSENT]),
        ([put(wire.SET, large), NOOP], [TOO_LARGE, DONE]),
        ([edit(wire.APPEND, large), NOOP], [TOO_LARGE, DONE]),
        ([put(wire.SET, bytes(1000)), edit(wire.APPEND)], [DONE, NOT_STORED]),
        ([request(wire.SET, b"../b", b"v", extras=bytes(8)), NOOP], [INVALID, DONE]),
        ([request(wire.STAT, b"items"), request(wire.STAT, b"x")], [DONE, ABSENT]),
        ([request(wire.VERBOSITY, extras=bytes(4)), NOOP], [DONE, DONE]),
        ([request(0x77, b"key", bytes(10**6), extras=bytes(8)), NOOP], [UNKNOWN, DONE]),
        ([request(wire.VERSION)], [(0, b"1.6.18")]),
        ([request(wire.QUIT), NOOP], [DONE]),
        ([request(wire.QUITQ), NOOP], []),
    ):
        assert answers(talk.connect(), *asked) == expected, asked


def test_a_reply_has_opcode_opaque_and_version(talk: Talk) -> None:
    """And the key, if the request asks for that; an expired value has no version."""
    stored, found, key, absent, expired = replies(
        talk,
        put(wire.SET),
        *(get(wire.GETQ), get(wire.GETK), request(wire.GETK, b"b")),
        put(wire.SET, time=30 * 24 * 3600 + 1),
    )
    flags = wire.put_extras(5)[:4]
    assert stored == Reply(wire.SET, 0, b"", b"", b"", OPAQUE, stored.cas)
    assert found == Reply(wire.GETQ, 0, flags, b"", b"v", OPAQUE, stored.cas)
    assert key == Reply(wire.GETK, 0, flags, b"a", b"v", OPAQUE, stored.cas)
    assert absent == Reply(wire.GETK, 1, b"", b"b", b"", OPAQUE, 0)
    assert (stored.cas > 0, expired.status, expired.cas) == (True, 0, 0)
    talk.ask(put(wire.SET))
    (again,) = replies(talk, get())
    put_again = [put(wire.REPLACE, cas=again.cas), put(wire.REPLACE, cas=again.cas)]
    assert answers(talk, *put_again) == [DONE, EXISTS]


def test_statistics_end_with_an_empty_reply(talk: Talk) -> None:
    """Each pair is a reply."""
    *pairs, last = replies(talk, request(wire.STAT))
    assert {pair.key: pair.value for pair in pairs}[b"threads"] == b"1"
    assert last == Reply(wire.STAT, 0, b"", b"", b"", OPAQUE, 0)


def test_the_reason_of_the_disk_is_in_the_reply(talk: Talk) -> None:
    """With the status that memcached has for want of memory; also of a quiet request."""
    talk.disk.refuses_writes = True
    for opcode in (wire.SET, wire.SETQ):
        [(status, text)] = answers(talk, put(opcode))
        assert status == 0x82
        assert text.startswith(b"disk refused to write")


def test_a_wrong_request_closes_the_connection(talk: Talk) -> None:
    """After a reply. What follows is not read."""
    for data in (
        *(request(wire.GET), request(wire.GET, b"k" * 251)),
        *(request(wire.GET, b"a", extras=b"1234"), request(wire.GET, b"a", b"v")),
        *(request(wire.TOUCH, b"a"), request(wire.TOUCH, b"a", b"v", extras=bytes(4))),
        request(wire.SET, b"a", b"v"),
        request(wire.SETQ, b"a", b"v", extras=bytes(4)),
        *(request(wire.APPEND, b"a", extras=bytes(8)), request(wire.NOOP, b"a")),
        *(request(wire.INCR, b"a", extras=bytes(8)), request(wire.FLUSH, extras=b"12")),
        *(request(wire.STAT, b"", b"v"), request(wire.SASL_LIST, b"a")),
        request(wire.SASL_AUTH),
    ):
        assert answers(talk.connect(), data, NOOP) == [INVALID], data
        assert talk.is_closed
    # A body smaller than its parts.
    assert answers(talk.connect(), request(wire.GET, b"a", body_size=0), NOOP) == [
        UNKNOWN
    ]
    for data in (b"get a\r\n", b"\x81" + bytes(23), b"\0"):
        assert answers(talk.connect(), NOOP + data, NOOP) == [DONE]
        assert talk.is_closed


def test_a_value_above_the_limit_is_skipped(talk: Talk) -> None:
    """It is answered before it arrives, and takes no memory."""
    left, piece = 2**32 - 20, bytes(1 << 20)
    head = request(wire.SET, b"a", extras=wire.put_extras(), body_size=8 + 1 + left)
    assert answers(talk, head) == [(3, b"Too large.")]
    while left >= len(piece):
        assert not talk.ask(piece)
        left -= len(piece)
        assert talk.buffered == 0
    assert answers(talk, bytes(left) + NOOP) == [DONE]


# --- SASL ------------------------------------------------------------------------------


def auth(
    message: bytes, mechanism: bytes = b"PLAIN", opcode: int = wire.SASL_AUTH
) -> bytes:
    """Return a request with a message of SASL."""
    return request(opcode, mechanism, message)


def test_sasl_is_unknown_to_a_server_without_tokens(talk: Talk) -> None:
    """As to memcached without -S: clients go on without it then."""
    asked = [request(wire.SASL_LIST), auth(b"\0u\0p"), NOOP]
    assert answers(talk, *asked) == [UNKNOWN, UNKNOWN, DONE]


def test_sasl_plain_gives_a_token(tmp_path: Path) -> None:
    """In whose name is of no importance; it stays known after the token was given."""
    listed, right = request(wire.SASL_LIST), (0, b"Authenticated")
    step = auth(b"\0u\0to ken", opcode=wire.SASL_STEP)
    too_long = (0x82, b"Out of memory")
    with Talk(tmp_path, Access(write="to ken")) as talk:
        for asked, expected in (
            ([listed, auth(b"", b"CRAM-MD5")], [(0, b"PLAIN"), UNAUTHORIZED]),
            (
                [auth(b"r\0u\0to ken"), put(wire.SET), listed],
                [right, DONE, (0, b"PLAIN")],
            ),
            ([auth(b"\0u\0wrong"), put(wire.SET)], [UNAUTHORIZED, UNAUTHORIZED]),
            # The message may follow in a step, after an empty one.
            (
                [step, auth(b""), step, step],
                [UNAUTHORIZED, (0x21, b""), right, UNAUTHORIZED],
            ),
            ([auth(b"to ken"), auth(b"\0to ken")], [UNAUTHORIZED, UNAUTHORIZED]),
            ([auth(b"\0u\0to ken\0"), NOOP], [UNAUTHORIZED, DONE]),
            ([auth(b"\0u\0" + bytes(5000)), NOOP], [too_long, DONE]),
            ([auth(b"\0u\0to ken", b"P" * 33), NOOP], [INVALID, DONE]),
        ):
            assert answers(talk.connect("2.2.2.2"), *asked) == expected, asked


def test_without_a_token_the_reply_is_auth_failure(tmp_path: Path) -> None:
    """Whatever the request is, also a quiet one."""
    with Talk(tmp_path, Access(read="r", write="w")) as talk:
        for asked in (
            *(get(wire.GETQ), put(wire.SETQ), count(wire.INCR, 1)),
            timed(wire.TOUCH, 1),
            *(request(wire.DELETEQ, b"a"), request(wire.FLUSH), request(wire.STAT)),
        ):
            assert answers(talk, asked, NOOP) == [UNAUTHORIZED, DONE]
