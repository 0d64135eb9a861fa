"""
Streams of commands: those in C have the replies, the counters and the effects of Python.

Two stores, whose clocks show the same, get the same streams in the same pieces.
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
from support.extent import EXTENT
from support.memcache_talk import NativeTalk, Talk
from support.memcache_twins import BINARY_KEYS, KEYS, STEPS, cut
from support.tiers import FakeServer, make_tier
from volcache.front import Copies
from volcache.hot.tier import HotTier

pytestmark = pytest.mark.property

VALUE_SIZE = 3000
LIMITS = {"default_ttl": 0, "max_ttl": 0}
TTLS = {"default_ttl": 100, "max_ttl": 3000}
OPCODES = [*range(0x06), *range(0x09, 0x0F), *range(0x11, 0x16), 0x19, 0x1C, 0x1D, 0x24]
# Of every command in C, in all forms; those before have more that is odd.
_KEYS = [b"a", b"a", b"b", b"c/d"]
# Take the place of the version of the first key.
_CAS, _BINARY_CAS = b"{cas}", 0x5A5A5A5A5A5A5A5A
_key = st.sampled_from(_KEYS)
_number = st.sampled_from([b"0", b"0", b"5", b"100", b"2592000", b"4000000000", b"-1"])
_value = st.sampled_from([b"", b"1", b"x" * 100, b"y" * 2999, b"z" * 3001, b"\r\n"])
_noreply = st.sampled_from([b"", b"", b" noreply"])


def _flags(*usual: bytes) -> st.SearchStrategy[bytes]:
    """Return flags of a meta command; now and then one that is odd."""
    odd = [b"N30", b"R40", b"C0", b"I", b"b", b"v1", b"T0", b"T-1", b"MA", b"Fx", b"k"]
    flag = st.sampled_from([*usual * 3, *odd])
    return st.lists(flag, max_size=5).map(
        lambda flags: b"".join(b" " + one for one in dict.fromkeys(flags))
    )


def _put(name: bytes, key: bytes, exptime: bytes, value: bytes, end: bytes) -> bytes:
    cas = b" " + _CAS if name == b"cas" else b""
    line = b"%b %b 7 %b %d%b%b\r\n" % (name, key, exptime, len(value), cas, end)
    return line + value + b"\r\n"


def _put_meta(key: bytes, value: bytes, flags: bytes) -> bytes:
    return b"ms %b %d%b\r\n%b\r\n" % (key, len(value), flags, value)


def _binary(opcode: int, key: bytes, value: bytes, exptime: int, cas: int) -> bytes:
    extras, has_value = b"", opcode in {wire.APPEND, wire.APPENDQ}
    if opcode in {1, 2, 3, wire.SETQ, wire.ADDQ, wire.REPLACEQ}:
        extras, has_value = wire.put_extras(7, exptime), True
    elif opcode in {wire.INCR, wire.INCRQ}:
        extras = wire.arithmetic_extras(1, 2, exptime)
    elif opcode in {wire.TOUCH, wire.GAT, wire.GATKQ}:
        extras = wire.time_extras(exptime)
    has_key = opcode not in {wire.NOOP, wire.VERSION}
    return wire.request(
        opcode, key * has_key, value * has_value, extras=extras, cas=cas
    )


_PLAIN = st.one_of(
    st.builds(
        _put,
        st.sampled_from([b"set", b"add", b"replace", b"cas", b"append"]),
        *(_key, _number, _value, _noreply),
    ),
    st.builds(
        lambda name, keys: b" ".join([name, *keys]) + b"\r\n",
        st.sampled_from([b"get", b"gets", b"gat 50", b"gats 0"]),
        st.lists(_key, min_size=1, max_size=4),
    ),
    st.builds(lambda key, end: b"delete %b%b\r\n" % (key, end), _key, _noreply),
    st.builds(b"touch %b %b%b\r\n".__mod__, st.tuples(_key, _number, _noreply)),
    st.builds(
        b"mg %b%b\r\n".__mod__,
        st.tuples(_key, _flags(*b"k t c f s v q u h l O1 T50".split())),
    ),
    st.builds(
        b"md %b%b\r\n".__mod__, st.tuples(_key, _flags(*b"k q O1 C{cas}".split()))
    ),
    st.builds(
        _put_meta, _key, _value, _flags(*b"k c s q O1 F7 T50 MS ME MR C{cas}".split())
    ),
    st.just(b"mn\r\n"),
)


def _streams(
    first: st.SearchStrategy[bytes], rest: st.SearchStrategy[bytes]
) -> st.SearchStrategy[list[bytes]]:
    """Return streams of which many begin with values."""
    return st.builds(
        list.__add__,
        st.lists(first, max_size=3),
        st.lists(rest, min_size=1, max_size=15),
    )


_exptime = st.sampled_from([0, 0, 100, 2**32 - 1])
_cas = st.sampled_from([0, 0, 0, 5, _BINARY_CAS])
TEXTS = _streams(
    st.builds(_put, st.just(b"set"), _key, st.just(b"0"), _value, st.just(b"")),
    st.one_of(_PLAIN, _PLAIN, STEPS.map(lambda step: step.sent)),
)
BINARIES = _streams(
    st.builds(_binary, st.just(wire.SET), _key, _value, _exptime, st.just(0)),
    st.builds(_binary, st.sampled_from(OPCODES), _key, _value, _exptime, _cas),
)


class Both:
    """Sends the same to Python alone, and to C before it."""

    def __init__(
        self,
        directory: Path,
        closing: ExitStack,
        limits: dict[str, Any],
        *,
        is_hot: bool,
    ) -> None:
        """Open two stores; hot: a key is copied to memcached at its second read."""
        self._is_hot = is_hot
        self._sides = [
            closing.enter_context(
                kind(
                    directory / kind.__name__,
                    value_size_max=VALUE_SIZE,
                    keys=[*KEYS, *map(b64decode, BINARY_KEYS)],
                    hot=_make_tier() if is_hot else None,
                    **limits,
                )
            )
            for kind in (Talk, NativeTalk)
        ]

    def run(self, stream: list[bytes], cuts: list[int], seconds: list[int]) -> None:
        """Send a stream in pieces, with time between them; compare all there is."""
        now_ms = max(side.clock.now_ms for side in self._sides)
        for side in self._sides:
            side.clock.now_ms = now_ms
            side.connect()
        counted = [(side, _counts(side)) for side in self._sides]
        for batch in _batches(stream):
            first, _ = (side.store.peek(_KEYS[0]) for side in self._sides)
            version = first.stored_us if first else 1
            sent = batch.replace(_CAS, b"%d" % version).replace(
                _BINARY_CAS.to_bytes(8, "big"), version.to_bytes(8, "big")
            )
            for piece in cut(sent, cuts):
                one, other = (side.ask(piece) for side in self._sides)
                assert one == other, (stream, cuts, seconds, sent)
            for side in self._sides:
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
    records = [side.store.peek(key) for key in (*KEYS, *_KEYS)]
    # A get that is passed counts as two hits, so that a reclaim may copy other records.
    moved = [one and one._replace(volume=0, offset=0) for one in records]
    return [side.is_closed, side.buffered, *moved]


def _counts(side: Talk) -> Counter[str]:
    stats = side.store.stats
    counts = Counter({str(name): n for name, n in side.stats.commands().items()})
    counts["reads"] = stats.reads.count
    counts["writes"] = stats.writes.count
    # Which of them a key is depends on what a reclaim has copied; see `_facts`.
    counts["absent"] = stats.absent_reads + stats.evicted_reads
    counts["expired"] = stats.expired_reads
    return counts


@pytest.fixture(scope="module", params=["forever", "expiring", "hot"])
def both(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Both]:
    """Both sides: without, with times to live in the settings, and with a hot tier."""
    limits = TTLS if request.param == "expiring" else LIMITS
    is_hot = request.param == "hot"
    with ExitStack() as closing:
        yield Both(tmp_path_factory.mktemp("both"), closing, limits, is_hot=is_hot)


@settings(max_examples=400 * EXTENT or 5000)
@given(
    TEXTS | BINARIES,
    st.lists(st.integers(0, 5000), max_size=6),
    st.lists(st.sampled_from([0, 0, 1, 60]), min_size=1, max_size=3),
)
def test_commands_in_c_do_what_those_in_python_do(
    both: Both, stream: list[bytes], cuts: list[int], seconds: list[int]
) -> None:
    """Byte for byte, with the same cas uniques."""
    both.run(stream, cuts, seconds)
