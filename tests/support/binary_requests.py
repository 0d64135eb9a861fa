"""Requests of the binary protocol of memcached, as hypothesis draws them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from support import binary_protocol as wire

# As in memcached, which counts the key and its header, too; no value below is near it.
VALUE_SIZE: Final = 1_000_000
KEYS: Final = (b"a", b"b/c", b"d\xff", b"k" * 250)
# Of values that memcached keeps in several chunks, which it does not count.
LARGE_KEY: Final = b"large"
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

    def encoded(self, known: int, opaque: bytes) -> bytes:
        """Return the bytes, with the cas unique that is known of its key."""
        cas = {"": 0, "known": known}.get(self.cas, WRONG_CAS)
        return wire.request(
            self.opcode,
            self.key,
            self.value,
            extras=self.extras,
            cas=cas,
            opaque=opaque,
            body_size=self.body_size,
        )


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
rare = st.one_of(
    requests((wire.STAT, wire.SASL_LIST)),
    requests(wire.STAT, (b"settings", b"nothing")),
    requests((wire.SASL_AUTH, wire.SASL_STEP), b"PLAIN", (b"\0a\0b", b"")),
)
commands = st.one_of(
    *(puts, puts, gets, gets, requests((wire.NOOP, wire.VERSION))),
    requests((*GATS, wire.TOUCH), KEYS, extras=time_extras),
    requests(PUTS, KEYS, (b"y" * 2999, b"z" * 3001), put_extras, cas),
    requests(COUNTS, KEYS, extras=count_extras, cas=cas),
    requests(EDITS, KEYS, small, cas=cas),
    requests(DELETES, KEYS, cas=cas),
)
good = st.one_of(
    *[st.one_of(commands, rare)] * 12,
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
