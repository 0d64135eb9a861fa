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

from support.binary_requests import KEYS as BINARY_PROTOCOL_KEYS
from support.binary_requests import commands
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
# Take the place of the version of the first key.
_CAS, _BINARY_CAS = b"{cas}", 0x5A5A5A5A5A5A5A5A
_FIRST = KEYS[0]
TEXTS = st.lists(STEPS.map(lambda step: step.sent), min_size=1, max_size=18)
BINARIES = st.lists(
    commands.map(lambda one: one.encoded(_BINARY_CAS, b"more")),
    min_size=1,
    max_size=18,
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
                    keys=[*KEYS, *BINARY_PROTOCOL_KEYS, *map(b64decode, BINARY_KEYS)],
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
            first, _ = (side.store.peek(_FIRST) for side in self._sides)
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
    records = [side.store.peek(key) for key in (*KEYS, *BINARY_PROTOCOL_KEYS)]
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
