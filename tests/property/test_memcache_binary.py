"""
The binary protocol against a real memcached: the same requests to both.

The property: the replies are the same to the byte, and so is whether the connection is
closed, except for version, statistics and the numbers of cas uniques; but those are equal
for both servers at the same time. docs/MEMCACHE.md lists where the two differ by design;
such requests are not generated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import pytest
from hypothesis import given, settings

from support import binary_protocol as wire
from support.binary_protocol import Reply, request
from support.binary_requests import (
    COUNTS,
    KEYS,
    LARGE_KEY,
    VALUE_SIZE,
    WRONG_CAS,
    Request,
    sizes,
    streams,
)
from support.extent import examples
from support.memcache_twins import Pair, cut
from support.memcached import MemcachedProcess

pytestmark = [pytest.mark.property, pytest.mark.integration]

END: Final = b"\xfe\xed\xbe\xef"


class BinaryTwins(Pair):
    """Sends to both sides what hypothesis made, and compares."""

    def run(self, requests: list[Request], sizes: list[int]) -> None:
        """Send all, in pieces of these sizes."""
        self.connect()
        self._known: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {})
        self._cas: dict[int, int] = {}
        batch: list[Request] = []
        for one in requests:
            # A known cas must have been returned. And memcached counts in place only if
            # it is not sending the value at the same time.
            if batch and (one.cas == "known" or one.opcode in COUNTS):
                self._send(batch, sizes)
                if self.is_closed:
                    return
                batch = []
            batch.append(one)
        self._send(batch, sizes)

    def _send(self, batch: list[Request], sizes: list[int]) -> None:
        mine, other = (
            cut(self._encoded(batch, known), list(accumulate(sizes)))
            for known in self._known
        )
        both = self.exchange(mine, other, _is_end)
        # How many statistics there are differs.
        ours, theirs = (
            [
                one
                for one in wire.replies(data)
                if one.opcode != wire.STAT or not one.key
            ]
            for data in both
        )
        assert list(map(_plain, ours)) == list(map(_plain, theirs))
        self._note_cas(ours, theirs, batch)

    @staticmethod
    def _encoded(batch: list[Request], known: dict[bytes, int]) -> bytes:
        parts = [
            one.encoded(known.get(one.key, WRONG_CAS), number.to_bytes(4, "little"))
            for number, one in enumerate(batch)
        ]
        return b"".join(parts) + request(wire.NOOP, opaque=END)

    def _note_cas(
        self, ours: list[Reply], theirs: list[Reply], batch: list[Request]
    ) -> None:
        """Compare what is equal at the same time."""
        for first, second in zip(ours, theirs, strict=True):
            if first.opaque == END or (second.cas and not first.cas):
                continue  # It has expired at once.
            assert bool(first.cas) == bool(second.cas)
            if first.cas:
                assert self._cas.setdefault(second.cas, first.cas) == first.cas
                key = batch[int.from_bytes(first.opaque, "little")].key
                self._known[0][key], self._known[1][key] = first.cas, second.cas


def _is_end(received: bytes) -> bool:
    """Whether these are all replies to a batch."""
    return END in received[-24:] and [*wire.replies(received)][-1].opaque == END


def _plain(reply: Reply) -> Reply:
    """Return a reply without what cannot be the same."""
    is_version = reply.opcode == wire.VERSION and not reply.status
    return reply._replace(cas=0, value=b"" if is_version else reply.value)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinaryTwins]:
    """Both sides; memcached has its own limits."""
    with (
        MemcachedProcess() as memcached,
        BinaryTwins(
            tmp_path_factory.mktemp("store"),
            memcached.port,
            VALUE_SIZE,
            (*KEYS, LARGE_KEY),
        ) as opened,
    ):
        yield opened


@settings(
    max_examples=examples(600),
)
@given(requests=streams, sizes=sizes)
def test_memcached_sends_the_same_replies(
    twins: BinaryTwins, requests: list[Request], sizes: list[int]
) -> None:
    """See above. Each example begins with nothing stored."""
    twins.run(requests, sizes)
