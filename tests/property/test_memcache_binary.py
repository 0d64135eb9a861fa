"""
The binary protocol against a real memcached: the same requests to both.

The property: the replies are the same to the byte, and so is whether the connection is
closed, except for version, statistics and the numbers of cas uniques; but those are equal
for both servers at the same time. docs/MEMCACHE.md lists where the two differ by design;
such requests are not generated here.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import binary_protocol as wire
from support.binary_protocol import Reply, request
from support.extent import examples
from support.memcached import MemcachedProcess
from support.stores import open_store
from volcache.cache import Cache
from volcache.memcache.commands import Simple
from volcache.memcache.executor import Executor, Limits
from volcache.memcache.protocol import Connection, WireLimits
from volcache.memcache.service import Facts, Service
from volcache.monitoring.commands import CommandStats
from volcache.tokens import Refusals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


# What each stream begins with. A flush would take a volume each time.
FORGET: Final = [Request(wire.DELETE, key) for key in (*KEYS, LARGE_KEY)]


class Side(NamedTuple):
    """What came from one of the two."""

    replies: list[Reply]
    is_closed: bool


class Server(Protocol):
    """One of the two."""

    def exchange(self, pieces: list[bytes]) -> Side:
        """Send all; return the replies until that to the last, or the end."""


class Memcached:
    """A connection to memcached."""

    def __init__(self, server: MemcachedProcess) -> None:
        """Connect."""
        self._socket = socket.create_connection(("127.0.0.1", server.port), 2)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._socket.close()

    def exchange(self, pieces: list[bytes]) -> Side:
        """Send all; return the replies until that to the last, or the end."""
        received = b""
        with suppress(ConnectionError):  # It may close before all is sent.
            for piece in pieces:
                self._socket.sendall(piece)
        with suppress(ConnectionError):
            while data := self._socket.recv(65_536):
                received += data
                found = list(wire.replies(received))
                if found and found[-1].opaque == END:
                    return Side(found, is_closed=False)
        return Side(list(wire.replies(received)), is_closed=True)


class Volcache:
    """A connection without a socket."""

    def __init__(self, service: Service) -> None:
        """Connect."""
        self._service = service
        self._session = service.session("127.0.0.1")
        self._connection = Connection(WireLimits(250, VALUE_SIZE))

    def exchange(self, pieces: list[bytes]) -> Side:
        """Do the same."""
        sent = b""
        for piece in pieces:
            self._connection.receive(piece)
            while (command := self._connection.next_command()) is not None:
                result = self._service.execute(self._session, command)
                assert not self._session.is_broken
                sent += self._connection.reply(command, result)
                if isinstance(command, Simple) and command.closes:
                    return Side(list(wire.replies(sent)), is_closed=True)
        return Side(list(wire.replies(sent)), is_closed=False)


class Comparison:
    """Sends to both sides what hypothesis made, and compares."""

    def __init__(self, memcached: Memcached, volcache: Volcache) -> None:
        """Begin."""
        self._sides: tuple[Server, Server] = (memcached, volcache)
        self._known: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {})
        self._cas: dict[int, int] = {}

    def run(self, requests: list[Request], sizes: list[int]) -> None:
        """Send all, in pieces of these sizes."""
        batch: list[Request] = []
        for one in requests:
            # A known cas must have been returned. And memcached counts in place only if
            # it is not sending the value at the same time.
            if batch and (one.cas == "known" or one.opcode in COUNTS):
                if self._send(batch, sizes):
                    return
                batch = []
            batch.append(one)
        self._send(batch, sizes)

    def _send(self, batch: list[Request], sizes: list[int]) -> bool:
        sides = []
        for side, known in zip(self._sides, self._known, strict=True):
            data = b"".join(
                request(
                    one.opcode,
                    one.key,
                    one.value,
                    extras=one.extras,
                    cas=self._resolve(one, known),
                    opaque=number.to_bytes(4, "little"),
                    body_size=one.body_size,
                )
                for number, one in enumerate(batch)
            )
            data += request(wire.NOOP, opaque=END)
            sides.append(side.exchange(list(cut(data, sizes))))
        theirs, ours = sides
        assert ours.is_closed == theirs.is_closed
        assert self._plain(ours, batch) == self._plain(theirs, batch)
        self._compare_cas(theirs, ours, batch)
        return ours.is_closed

    @staticmethod
    def _resolve(one: Request, known: dict[bytes, int]) -> int:
        if one.cas == "known":
            return known.get(one.key, WRONG_CAS)
        return WRONG_CAS if one.cas else 0

    @staticmethod
    def _plain(side: Side, batch: list[Request]) -> list[Reply]:
        """Leave out what cannot be the same."""
        plain = []
        for reply in side.replies:
            if reply.opcode == wire.STAT and reply.key:
                continue
            is_version = reply.opcode == wire.VERSION and not reply.status
            value = b"" if is_version else reply.value
            plain.append(reply._replace(cas=0, value=value))
        assert len(batch) < 2**24
        return plain

    def _compare_cas(self, theirs: Side, ours: Side, batch: list[Request]) -> None:
        mine = [reply for reply in ours.replies if not reply.key or not is_stat(reply)]
        other = [
            reply for reply in theirs.replies if not reply.key or not is_stat(reply)
        ]
        for one, two in zip(other, mine, strict=True):
            if one.opaque == END:
                continue
            key = batch[int.from_bytes(one.opaque, "little")].key
            if one.cas and not two.cas:  # It has expired at once.
                continue
            assert bool(one.cas) == bool(two.cas)
            if not one.cas:
                continue
            assert self._cas.setdefault(one.cas, two.cas) == two.cas
            self._known[0][key] = one.cas
            self._known[1][key] = two.cas


def is_stat(reply: Reply) -> bool:
    """Whether this is a reply to "stat"."""
    return reply.opcode == wire.STAT


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """Cut into pieces; what is left is the last."""
    for size in sizes:
        if size < len(data):
            yield data[:size]
            data = data[size:]
    yield data


# --- What is sent ---------------------------------------------------------------------


def make(*fields: Any, **named: Any) -> Request:
    """Return a request; hypothesis would choose what is left out of a `Request`."""
    return Request(*fields, **named)


keys = st.sampled_from(KEYS)
cas = st.sampled_from(["", "", "", "known", "wrong"])
times = st.sampled_from(TIMES)
small = st.binary(max_size=3)
numbers = st.sampled_from(
    [
        *(b"0", b"9", b"10", b"99", b"007", b" 5", b"5 ", b"+5", b"-5", b"-0"),
        *(b"5x", b"5 x"),
        b"18446744073709551615",
        b"18446744073709551616",
        b"0" * 30 + b"1",
        b"\t7",
        b"5\0",
    ]
)
values = st.one_of(small, numbers)
large = st.sampled_from(LARGE)
deltas = st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1))
puts = st.builds(
    make,
    st.sampled_from(PUTS),
    keys,
    values,
    st.builds(wire.put_extras, st.integers(0, 2**32 - 1), times),
    cas,
)
edits = st.builds(
    make,
    st.sampled_from(EDITS),
    keys,
    small,
    st.just(b""),
    cas,
)
large_puts = st.builds(
    make,
    st.sampled_from(PUTS),
    st.just(LARGE_KEY),
    large,
    st.builds(wire.put_extras, st.just(7), times),
    cas,
)
large_edits = st.builds(
    make, st.sampled_from(EDITS), st.just(LARGE_KEY), large, st.just(b""), cas
)
gets = st.builds(make, st.sampled_from(GETS), st.one_of(keys, keys, st.just(LARGE_KEY)))
time_extras = st.builds(wire.time_extras, times)
gats = st.builds(
    make, st.sampled_from((*GATS, wire.TOUCH)), keys, st.just(b""), time_extras
)
counts = st.builds(
    make,
    st.sampled_from(COUNTS),
    keys,
    st.just(b""),
    st.builds(wire.arithmetic_extras, deltas, deltas, times),
    cas,
)
deletes = st.builds(
    make,
    st.sampled_from((wire.DELETE, wire.DELETEQ)),
    keys,
    st.just(b""),
    st.just(b""),
    cas,
)
flushes = st.builds(
    make,
    st.sampled_from((wire.FLUSH, wire.FLUSHQ)),
    # Without a delay: in memcached, a delayed flush undoes the one before it.
    extras=st.sampled_from([b"", bytes(4)]),
)
plain = st.sampled_from(
    [
        Request(wire.NOOP),
        Request(wire.VERSION),
        Request(wire.STAT),
        Request(wire.STAT, b"settings"),
        Request(wire.STAT, b"nothing"),
        Request(wire.SASL_LIST),
        Request(wire.SASL_AUTH, b"PLAIN", b"\0a\0b"),
        Request(wire.SASL_STEP, b"PLAIN", b""),
    ]
)
unknown = st.builds(
    make,
    st.one_of(st.just(0x1F), st.integers(0x25, 0xFF)),
    value=st.one_of(small, st.just(b"x" * 5000)),
)
small_ones = st.one_of(puts, puts, gets, gets, gats, counts, edits, deletes, plain)
good = st.one_of(*[small_ones] * 12, large_puts, large_edits, unknown, flushes)
# After these the connection is closed.
last = st.one_of(
    st.sampled_from([Request(wire.QUIT), Request(wire.QUITQ)]),
    # Keys of no or too many bytes.
    st.builds(
        make,
        st.sampled_from((*GETS, wire.DELETE, wire.DELETEQ, *EDITS)),
        st.sampled_from([b"", b"k" * 251, b"k" * 3000]),
    ),
    # Extras where none belong, or of the wrong size.
    st.builds(
        make,
        st.sampled_from(
            (
                *(*GETS, *GATS, *PUTS, *COUNTS, *EDITS),
                *(
                    wire.TOUCH,
                    wire.NOOP,
                    wire.VERSION,
                    wire.FLUSH,
                    wire.STAT,
                    wire.QUIT,
                ),
            )
        ),
        keys,
        st.just(b""),
        st.sampled_from([b"x", b"12", b"x" * 30]),
    ),
    # Values where none belong. memcached does not look in all cases.
    st.builds(
        make,
        st.sampled_from((*GETS, wire.DELETE, wire.DELETEQ)),
        keys,
        st.sampled_from([b"x", b"x" * 100]),
    ),
    # A body that is smaller than what is in it.
    st.builds(
        make,
        st.integers(0, 0xFF),
        st.just(b"key"),
        extras=st.sampled_from([b"", bytes(8)]),
        body_size=st.integers(0, 2),
    ),
)
streams = st.builds(
    lambda requests, end: [*requests, *end],
    st.lists(good, max_size=25),
    st.one_of(st.just([]), st.just([]), st.just([]), st.lists(last, max_size=1)),
)
sizes = st.lists(st.sampled_from([1, 2, 23, 24, 25, 40, 300]), max_size=8)


@pytest.fixture(scope="module")
def memcached() -> Iterator[MemcachedProcess]:
    """One with the limits that it has by itself."""
    with MemcachedProcess() as process:
        yield process


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """All of the memcached protocol but the sockets."""
    directory: Path = tmp_path_factory.mktemp("store")
    store = open_store(directory, volume_size=1 << 24)
    cache = Cache(store)
    yield Service(
        cache,
        Executor(cache, Limits(250, VALUE_SIZE)),
        CommandStats(),
        Refusals({"read": 0, "write": 0}),
        Facts("127.0.0.1:1", 1, VALUE_SIZE),
        may_flush=True,
    )
    store.close()


@settings(
    max_examples=examples(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(requests=streams, sizes=sizes)
def test_memcached_sends_the_same_replies(
    memcached: MemcachedProcess,
    service: Service,
    requests: list[Request],
    sizes: list[int],
) -> None:
    """See above. Each example begins with nothing stored."""
    with Memcached(memcached) as theirs:
        comparison = Comparison(theirs, Volcache(service))
        comparison.run([*FORGET, *requests], sizes)
