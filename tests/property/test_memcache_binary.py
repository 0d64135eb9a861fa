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
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import binary_protocol as wire
from support.binary_protocol import Reply, request
from support.extent import examples
from support.memcache_twins import Pair, cut
from support.memcached import MemcachedProcess

pytestmark = [pytest.mark.property, pytest.mark.integration]

# As in memcached, which counts the key and its header, too; no value below is near it.
VALUE_SIZE: Final = 1_000_000
KEYS: Final = (b"a", b"b/c", b"d\xff", b"k" * 250)
# Of values that memcached keeps in several chunks, which it does not count.
LARGE_KEY: Final = b"large"
END: Final = b"\xfe\xed\xbe\xef"
WRONG_CAS: Final = 3
GETS: Final = (wire.GET, wire.GETQ, wire.GETK, wire.GETKQ)
GATS: Final = (wire.GAT, wire.GATQ, wire.GATK, wire.GATKQ)
PUTS: Final = (
    *(wire.SET, wire.SETQ, wire.ADD, wire.ADDQ),
    *(wire.REPLACE, wire.REPLACEQ),
)
EDITS: Final = (wire.APPEND, wire.APPENDQ, wire.PREPEND, wire.PREPENDQ)
COUNTS: Final = (wire.INCR, wire.INCRQ, wire.DECR, wire.DECRQ)
# Never, in a while, in the past, now and in the year 2106.
TIMES: Final = (0, 100, 60 * 60 * 24 * 30 + 1, 60 * 60 * 24 * 30, 2**32 - 1)


class Large(bytes):
    """A value that is not printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Large({len(self)})"


# The second is too large at once; the first, if another is appended to it.
LARGE: Final = (Large(b"v" * 600_000), Large(b"w" * 1_200_000))


class Request(NamedTuple):
    """A request; `cas` "known" is the last one that was returned for its key."""

    opcode: int
    key: bytes = b""
    value: bytes = b""
    extras: bytes = b""
    cas: str = ""
    body_size: int | None = None


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
        parts = []
        for number, one in enumerate(batch):
            cas = known.get(one.key, WRONG_CAS) if one.cas == "known" else WRONG_CAS
            parts.append(
                request(
                    one.opcode,
                    one.key,
                    one.value,
                    extras=one.extras,
                    cas=cas if one.cas else 0,
                    opaque=number.to_bytes(4, "little"),
                    body_size=one.body_size,
                )
            )
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


# --- What is sent ---------------------------------------------------------------------


def requests(
    opcodes: Any,
    keys: Any = b"",
    values: Any = b"",
    extras: Any = b"",
    cas: Any = "",
    body_size: Any = None,
) -> st.SearchStrategy[Request]:
    """Return requests; of several opcodes, keys or values one is chosen."""
    fields = [
        field
        if isinstance(field, st.SearchStrategy)
        else st.sampled_from(field if isinstance(field, tuple) else (field,))
        for field in (opcodes, keys, values, extras, cas, body_size)
    ]
    return st.builds(Request, *fields)


cas = ("", "", "", "known", "wrong")
times = st.sampled_from(TIMES)
time_extras = st.builds(wire.time_extras, times)
small = st.binary(max_size=3)
numbers = st.sampled_from(
    [
        *(b"0", b"9", b"10", b"99", b"007", b" 5", b"5 ", b"+5", b"-5", b"-0"),
        *(b"5x", b"5 x", b"\t7", b"5\0", b"0" * 30 + b"1"),
        *(b"18446744073709551615", b"18446744073709551616"),
    ]
)
deltas = st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1))
put_extras = st.builds(wire.put_extras, st.integers(0, 2**32 - 1), times)
count_extras = st.builds(wire.arithmetic_extras, deltas, deltas, times)
DELETES: Final = (wire.DELETE, wire.DELETEQ)
puts = requests(PUTS, KEYS, st.one_of(small, numbers), put_extras, cas)
gets = requests(GETS, (*KEYS, *KEYS, LARGE_KEY))
plain = st.one_of(
    requests((wire.NOOP, wire.VERSION, wire.STAT, wire.SASL_LIST)),
    requests(wire.STAT, (b"settings", b"nothing")),
    requests((wire.SASL_AUTH, wire.SASL_STEP), b"PLAIN", (b"\0a\0b", b"")),
)
small_ones = st.one_of(
    *(puts, puts, gets, gets, plain),
    requests((*GATS, wire.TOUCH), KEYS, extras=time_extras),
    requests(COUNTS, KEYS, extras=count_extras, cas=cas),
    requests(EDITS, KEYS, small, cas=cas),
    requests(DELETES, KEYS, cas=cas),
)
good = st.one_of(
    *[small_ones] * 12,
    requests(
        PUTS, LARGE_KEY, LARGE, st.builds(wire.put_extras, st.just(7), times), cas
    ),
    requests(EDITS, LARGE_KEY, LARGE, cas=cas),
    # Unknown.
    requests(
        st.one_of(st.just(0x1F), st.integers(0x25, 0xFF)),
        values=st.one_of(small, st.just(b"x" * 5000)),
    ),
    # Without a delay: in memcached, a delayed flush undoes the one before it.
    requests((wire.FLUSH, wire.FLUSHQ), extras=(b"", bytes(4))),
)
WITH_EXTRAS: Final = (*GETS, *GATS, *PUTS, *COUNTS, *EDITS, wire.TOUCH, wire.NOOP)
# After these the connection is closed.
last = st.one_of(
    requests((wire.QUIT, wire.QUITQ)),
    # Keys of no or too many bytes.
    requests((*GETS, *DELETES, *EDITS), (b"", b"k" * 251, b"k" * 3000)),
    # Extras where none belong, or of the wrong size.
    requests(
        (*WITH_EXTRAS, wire.VERSION, wire.FLUSH, wire.STAT, wire.QUIT),
        KEYS,
        extras=(b"x", b"12", b"x" * 30),
    ),
    # Values where none belong. memcached does not look in all cases.
    requests((*GETS, *DELETES), KEYS, (b"x", b"x" * 100)),
    # A body that is smaller than what is in it.
    requests(
        st.integers(0, 0xFF),
        b"key",
        extras=(b"", bytes(8)),
        body_size=st.integers(0, 2),
    ),
)
streams = st.builds(
    lambda requests, end: [*requests, *end],
    st.lists(good, max_size=25),
    st.one_of(st.just([]), st.just([]), st.just([]), st.lists(last, max_size=1)),
)
sizes = st.lists(st.sampled_from([1, 2, 23, 24, 25, 40, 300]), max_size=8)


@pytest.fixture(scope="module", params=["alone", "instance"])
def twins(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BinaryTwins]:
    """Both sides, ours as in the text protocol; memcached has its own limits."""
    with (
        MemcachedProcess() as memcached,
        BinaryTwins(
            tmp_path_factory.mktemp("store"),
            memcached.port,
            VALUE_SIZE,
            (*KEYS, LARGE_KEY),
            has_process=request.param == "instance",
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
