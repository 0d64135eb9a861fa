"""
Streams of commands: those in C have the replies, the counters and the effects of Python.

Two stores, whose clocks show the same, get the same streams: commands, and any bytes. Each
store gets them in other pieces, so that nothing depends on these.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import binary_protocol as wire
from support.binary_requests import KEYS as BINARY_PROTOCOL_KEYS
from support.binary_requests import commands, last
from support.extent import EXTENT
from support.memcache_talk import NativeTalk, Talk
from support.memcache_twins import BINARY_KEYS, KEYS, STEPS, cut
from support.tiers import FakeServer, make_tier
from volcache.access import Access
from volcache.front import Copies
from volcache.hot.tier import HotTier
from volcache.memcache.commands import WireLimits
from volcache.memcache.protocol import decoder_for
from volcache.memcache.text import GET_LINE_BYTES_MAX

pytestmark = pytest.mark.property

VALUE_SIZE = 3000
LIMITS = {"default_ttl": 0, "max_ttl": 0}
TTLS = {"default_ttl": 100, "max_ttl": 3000}
# Take the place of the version of the first key.
_CAS, _BINARY_CAS = b"{cas}", 0x5A5A5A5A5A5A5A5A
_FIRST = KEYS[0]
SENT = STEPS.map(lambda step: step.sent)
# What is nearly a command: mutations reach what random bytes do not.
JUNK = [b"\r\n", b" ", b"\0", b"9" * 30, b"x" * 3000, b"noreply", b"b ", b"\xff", b"-"]
LINES = [
    *(b"set a 0 0 2147483647\r\n", b"set a 0 0 99999999999999999999\r\n"),
    *(b"set a 0 0 4294967301\r\nhello\r\n", b"flush_all 10 noreply\r\n"),
    *(b"set a 0 0 9\r\nuser word\r\n", b"mg a N30 R10 T60 C9\r\n"),
    b"POST / HTTP/1.1\r\n",
]
MUTATED = st.builds(
    lambda seed, at, junk, gone: seed[:at] + junk + seed[at + gone :],
    SENT | st.sampled_from(LINES),
    st.integers(0, 40),
    st.binary(max_size=4) | st.sampled_from(JUNK),
    st.integers(0, 4),
)
# Statistics are not the same.
OPCODES = st.sampled_from([code for code in range(0x26) if code != wire.STAT])
HEADERS = st.builds(
    wire.HEADER.pack,
    st.sampled_from([0x80, 0x80, 0x80, 0x80, 0x81, 0]),
    OPCODES,
    st.integers(0, 8) | st.integers(0, 2**16 - 1),
    st.sampled_from([0, 4, 8, 20]) | st.integers(0, 255),
    *(st.integers(0, 255), st.integers(0, 2**16 - 1)),
    st.integers(0, 60) | st.integers(0, 2**32 - 1),
    *(st.binary(min_size=4, max_size=4), st.integers(0, 2**64 - 1)),
)
REQUESTS = st.builds(
    wire.request,
    OPCODES,
    st.binary(max_size=5),
    st.binary(max_size=40),
    extras=st.sampled_from([b"", bytes(4), bytes(8), bytes(20)]),
    cas=st.integers(0, 3),
)
PARTS: list[st.SearchStrategy[bytes]] = [
    SENT,
    (commands | commands | last).map(lambda one: one.encoded(_BINARY_CAS, b"more")),
    SENT | st.binary(max_size=40) | st.sampled_from(JUNK + LINES) | MUTATED,
    REQUESTS | HEADERS | st.binary(max_size=60),
]
STREAMS = st.one_of([st.lists(part, min_size=1, max_size=18) for part in PARTS])
CUTS = st.lists(st.integers(0, 5000), max_size=6)


class Both:
    """Sends the same to Python alone, and to C before it."""

    def __init__(
        self,
        directory: Path,
        closing: ExitStack,
        *,
        is_hot: bool,
        **options: Any,
    ) -> None:
        """Open two stores; hot: a key is copied to memcached at its second read."""
        self._is_hot = is_hot
        self._sides = [
            closing.enter_context(
                kind(
                    directory / kind.__name__,
                    value_size_max=VALUE_SIZE,
                    keys=[*KEYS, *BINARY_PROTOCOL_KEYS, *map(b64decode, BINARY_KEYS)],
                    hot=_make_tier() if is_hot else None,
                    **options,
                )
            )
            for kind in (Talk, NativeTalk)
        ]

    def run(
        self, stream: list[bytes], cuts: list[list[int]], seconds: list[int]
    ) -> None:
        """Send a stream in pieces, with time between parts; compare all there is."""
        now_ms = max(side.clock.now_ms for side in self._sides)
        for side in self._sides:
            side.clock.now_ms = now_ms
            side.connect()
        counted = [(side, _counts(side)) for side in self._sides]
        for batch in _batches(stream):
            first, _ = (side.store.peek(_FIRST) for side in self._sides)
            version = first.stored_us if first else 1
            sent = batch.replace(_CAS, b"%d" % version).replace(
                _BINARY_CAS.to_bytes(8, "big"), version.to_bytes(8, "big")
            )
            one, other = (
                side.ask(*cut(sent, places))
                for side, places in zip(self._sides, cuts, strict=True)
            )
            assert one == other, (stream, cuts, seconds, sent)
            for side in self._sides:
                assert sent[:1] != b"\x80" or side.buffered <= 4000
                side.clock.advance(seconds[0])
            seconds = seconds[1:] + seconds[:1]
        facts, other_facts = map(_facts, self._sides)
        assert facts == other_facts
        if self._is_hot:
            return  # A key is promoted when Python learns that it is hot: later.
        new, other_new = (_counts(side) - counts for side, counts in counted)
        assert new == other_new, stream


def _batches(stream: list[bytes]) -> list[bytes]:
    """Return parts of a stream; one that names a version begins with it."""
    batches = [b""]
    for sent in stream:
        if _CAS in sent or _BINARY_CAS.to_bytes(8, "big") in sent:
            batches.append(b"")
        batches[-1] += sent
    return batches


def _make_tier() -> HotTier:
    with mock.patch("volcache.hot.servers.Server", return_value=FakeServer()):
        return make_tier(["m"], Copies(reads=2, seconds=60), item_size_max=100_000)


def _facts(side: Talk) -> list[object]:
    records = [side.store.peek(key) for key in (*KEYS, *BINARY_PROTOCOL_KEYS)]
    # A get that is passed counts as two hits, so that a reclaim may copy other records.
    moved = [one and one._replace(volume=0, offset=0) for one in records]
    return [side.is_closed, *moved]


def _counts(side: Talk) -> Counter[str]:
    stats = side.store.stats
    counts = Counter({str(name): n for name, n in side.stats.commands().items()})
    counts["reads"] = stats.reads.count
    counts["writes"] = stats.writes.count
    # Which of them a key is depends on what a reclaim has copied; see `_facts`.
    counts["absent"] = stats.absent_reads + stats.evicted_reads
    counts["expired"] = stats.expired_reads
    return counts


@pytest.fixture(scope="module", params=["forever", "expiring", "hot", "login"])
def both(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Both]:
    """Both sides: plain, with times to live, with a hot tier, and with a token."""
    options: dict[str, Any] = TTLS if request.param == "expiring" else LIMITS
    if request.param == "login":
        options = options | {"access": Access(write="word")}
    folder, is_hot = tmp_path_factory.mktemp("both"), request.param == "hot"
    with ExitStack() as closing:
        yield Both(folder, closing, is_hot=is_hot, **options)


@settings(max_examples=600 * EXTENT or 6000)
@given(
    STREAMS,
    st.tuples(CUTS, CUTS),
    st.lists(st.sampled_from([0, 0, 1, 60]), min_size=1, max_size=3),
)
def test_commands_in_c_do_what_those_in_python_do(
    both: Both, stream: list[bytes], cuts: list[list[int]], seconds: list[int]
) -> None:
    """Byte for byte, with the same cas uniques, whatever is sent."""
    both.run(stream, cuts, seconds)


@pytest.mark.parametrize(
    "start",
    [b"", b"get ", b"gets ", b"set ", b"mg ", b"set a 0 0 %d\r\n" % 10**12, b" " * 99],
)
@pytest.mark.parametrize("junk", [b"x", b"x ", b"\0", b"  ", b"\r"])
def test_endless_input_is_not_held(start: bytes, junk: bytes) -> None:
    """Neither lines nor values without an end fill the memory."""
    decoder = decoder_for(WireLimits(250, VALUE_SIZE), start + junk)
    commands = 0
    for piece in [start, *[junk * (50_000 // len(junk))] * 60]:
        decoder.receive(piece)
        commands += sum(1 for _ in iter(decoder.next_command, None))
        assert decoder.buffered <= GET_LINE_BYTES_MAX
    assert commands <= 1
