"""
The same commands for a real memcached and for an instance.

A stream is a list of steps. Both sides get the same bytes, except where a step says what
differs. Replies are compared after `normal_form` has replaced what differs by design.
"""

from __future__ import annotations

import re
import socket
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from hypothesis import strategies as st

from support.memcache import MemcacheServer, RawClient

VALUE_SIZE: Final = 1 << 20
# The longest number of pieces that a batch is sent in.
PIECES_MAX: Final = 6
_END: Final = b"mg END_OF_BATCH k\r\n"
_END_REPLY: Final = b"EN kEND_OF_BATCH\r\n"
_NO_CAS: Final = b"999"


class Step(NamedTuple):
    """One command, or bytes that look like one."""

    sent: bytes
    other: bytes | None = None  # what memcached gets, if that is not the same
    # The key whose cas unique takes the place of "{cas}", and whether it is its newest.
    cas_key: bytes = b""
    is_fresh: bool = True
    # What memcached does depends on the replies before this one that it has not sent yet:
    # it drops them after some errors, and replaces no number that they hold in place.
    is_alone: bool = False


class Theirs:
    """A connection to a real memcached."""

    def __init__(self, port: int) -> None:
        """Connect to a port of this machine."""
        self._port = port
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()

    def connect(self) -> None:
        """Begin a connection, with an empty cache."""
        if self._socket is not None:
            self._socket.close()
        self.empty()
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def empty(self) -> None:
        """Let it forget all values."""
        # A connection keeps the protocol that is spoken first.
        with RawClient(("127.0.0.1", self._port)) as other:
            assert other.ask(b"flush_all\r\n") == b"OK"

    def exchange(
        self, pieces: Sequence[bytes], is_end: Callable[[bytes], bool]
    ) -> tuple[bytes, bool]:
        """Send pieces; return the replies, and whether it closes before their end."""
        assert self._socket is not None
        received = b""
        with suppress(ConnectionError):  # It may close before all is sent.
            for piece in pieces:
                self._socket.sendall(piece)
        with suppress(ConnectionError):
            while data := self._socket.recv(1 << 16):
                received += data
                if is_end(received):
                    return received, False
        return received, True


class Instance(Theirs):
    """A connection to an instance of our own."""

    def __init__(
        self, directory: Path, value_size_max: int, keys: Iterable[bytes]
    ) -> None:
        """Start it; `keys` are those that a connection finds deleted."""
        settings = {
            "volume_size": 16 * value_size_max,
            "volume_num": 4,
            "max_value_size": value_size_max,
            "memcache_flush": True,
        }
        self._stack = ExitStack()
        server = MemcacheServer(directory, settings=settings)
        self._server = self._stack.enter_context(server)
        super().__init__(self._server.memcache_port)
        self._deletes = [
            b"md %s b\r\n" % b64encode(key) if b" " in key else b"md %s\r\n" % key
            for key in keys
        ]

    def empty(self) -> None:
        """Delete the keys: a flush would take a volume each time."""
        with self._server.client() as client:
            client.send(b"".join(self._deletes))
            assert {client.line() for _ in self._deletes} <= {b"HD", b"NF"}

    def close(self) -> None:
        """Close the connection, and end the instance."""
        super().close()
        self._stack.close()


class Pair:
    """A connection to memcached, and one to an instance; both begin empty."""

    def __init__(
        self, directory: Path, port: int, value_size_max: int, keys: Iterable[bytes]
    ) -> None:
        """Use a directory, and the memcached at a port; `keys` are those that are sent."""
        self.ours = Instance(directory, value_size_max, keys)
        self.is_closed = False
        self._theirs = Theirs(port)

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close both."""
        self.ours.close()
        self._theirs.close()

    def connect(self) -> None:
        """Begin new connections."""
        self.ours.connect()
        self._theirs.connect()
        self.is_closed = False

    def exchange(
        self, mine: list[bytes], other: list[bytes], is_end: Callable[[bytes], bool]
    ) -> tuple[bytes, bytes]:
        """Send pieces to each; return the replies of both. Both close, or none."""
        ours, self.is_closed = self.ours.exchange(mine, is_end)
        theirs, is_closed = self._theirs.exchange(other, is_end)
        assert self.is_closed == is_closed, f"{ours!r}\ninstead of\n{theirs!r}"
        return ours, theirs


class Twins(Pair):
    """Both sides, with the text protocol."""

    def __init__(self, directory: Path, port: int) -> None:
        """Use a directory, and the memcached at a port."""
        keys = (*KEYS, *map(b64decode, BINARY_KEYS))
        super().__init__(directory, port, VALUE_SIZE, keys)

    def run(self, steps: Sequence[Step], cuts: Sequence[int] = ()) -> None:
        """
        Run a stream on both sides, from an empty cache.

        Raises:
            AssertionError: The replies differ.
        """
        self.connect()
        self._versions: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
        known: dict[bytes, tuple[bytes, bytes]] = {}
        batch: list[Step] = []
        for step in steps:
            if step.cas_key or step.is_alone:
                self._send(batch, known, cuts)
                batch = []
                if self.is_closed:
                    return
            if step.cas_key and (step.is_fresh or step.cas_key not in known):
                known[step.cas_key] = self._cas(step.cas_key)
            batch.append(step)
        self._send(batch, known, cuts)

    def _cas(self, key: bytes) -> tuple[bytes, bytes]:
        line = b"gets " + key + b"\r\n"
        found = [
            re.match(rb"VALUE \S+ \d+ \d+ (\d+)\r\n", one)
            for one in self._compare((line, line), ())
        ]
        mine, other = (_NO_CAS if one is None else one[1] for one in found)
        return mine, other

    def _send(
        self,
        batch: list[Step],
        known: dict[bytes, tuple[bytes, bytes]],
        cuts: Sequence[int],
    ) -> None:
        ours = theirs = b""
        for step in batch:
            first, second = known.get(step.cas_key, (b"{cas}", b"{cas}"))
            ours += step.sent.replace(b"{cas}", first)
            other = step.sent if step.other is None else step.other
            theirs += other.replace(b"{cas}", second)
        self._compare((ours, theirs), cuts)

    def _compare(
        self, sent: tuple[bytes, bytes], cuts: Sequence[int]
    ) -> tuple[bytes, bytes]:
        """Send bytes to each side; return the replies, which are alike."""
        mine, other = (cut(one + _END, cuts) for one in sent)
        replies = self.exchange(mine, other, lambda got: got.endswith(_END_REPLY))
        first, second = map(normal_form, replies, self._versions)
        assert first == second, f"{first}\ninstead of\n{second}\nafter\n{sent}"
        return replies


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return pieces of data, cut at places that are taken modulo its size."""
    places = sorted({place % len(data) for place in cuts}) if data else []
    ends = [*places, len(data)]
    return [data[start:end] for start, end in zip([0, *places], ends, strict=True)]


def normal_form(replies: bytes, versions: dict[bytes, bytes]) -> list[bytes]:
    """
    Return the lines and values of replies, without what differs by design.

    Args:
        replies: Of one side.
        versions: What takes the place of a cas unique that was there before.
    """
    parts: list[bytes] = []
    rest = replies
    while rest:
        line, end, rest = rest.partition(b"\r\n")
        words = line.split(b" ")
        code = words[0]
        size = 0
        if code == b"VALUE":
            size = int(words[3]) + 2
            words[4:] = [_version(word, versions) for word in words[4:]]
        elif code in {b"VA", b"HD", b"EX", b"NF", b"NS", b"EN"}:
            words = [_normal_flag(word, versions) for word in words]
            size = int(words[1]) + 2 if code == b"VA" else 0
        elif code in {b"VERSION", b"ME"}:
            words = words[: 1 if code == b"VERSION" else 2]
        parts += [b" ".join(words) + end, rest[:size]]
        rest = rest[size:]
    return parts


def _version(cas: bytes, versions: dict[bytes, bytes]) -> bytes:
    """Return which of the versions so far this is."""
    return versions.setdefault(cas, b"version %d" % len(versions))


def _normal_flag(word: bytes, versions: dict[bytes, bytes]) -> bytes:
    """Return a flag of a reply; times to live may differ by seconds."""
    letter, number = word[:1], word[1:]
    if letter == b"c" and number.isdigit():
        return word if number == b"0" else _version(number, versions)
    if letter == b"t" and number.isdigit():
        return b"t%d" % ((int(number) + 5) // 10 * 10)
    if letter == b"l" and number.isdigit():
        return b"l%d" % (int(number) // 10)
    return word


# --- Streams -------------------------------------------------------------------------

KEYS: Final = [b"a", b"b", b"c/d", b"x" * 250]
LONG_KEY: Final = b"y" * 251
BINARY_KEYS: Final = [b64encode(key) for key in (b"a b", b"  ", "\u00fc".encode() * 9)]
_VALUES: Final = [
    b"", b"0", b"5", b"10", b"99", b"007", b" 7", b"7 x", b"+3", b"1\t", b"5\0", b"abc",
    b"9" * 19, b"18446744073709551615", b"18446744073709551616", b"0" * 30 + b"4",
    b"get a\r\n", b"x\n", b"x" * 2999, b"x" * 3001, b"1\n2",
]  # fmt: skip
_BAD_NUMBERS: Final = [b"abc", b"1x", b"-", b"9" * 25]
_DELTAS: Final = [b"0", b"1", b"5", b"100", b"18446744073709551615", b"+2", b"-0"]

_key = st.sampled_from(KEYS)
_value = st.one_of(
    st.sampled_from(_VALUES),
    # Not only spaces: memcached would look for the number in the memory after them.
    st.text("0123456789ax \r\n", max_size=30)
    .map(str.encode)
    .filter(lambda value: value.strip()),
)


def _mostly(usual: Sequence[Any], odd: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from(usual), st.sampled_from(usual), st.sampled_from([*usual, *odd])
    )


_exptime = _mostly(
    [b"0", b"50", b"1000", b"-1", b"100000", b"2592001", b"2592000"], _BAD_NUMBERS
)
_flags = _mostly([b"0", b"1", b"4294967295"], [b"abc", b"-1", b"1x", b"+7"])
_noreply = _mostly([b""], [b" noreply", b" Noreply", b" 0"])
_space = _mostly([b" "], [b"  ", b"   "])
_end = _mostly([b"\r\n"], [b"\n", b" \r\n"])
_any_key = _mostly(KEYS, [LONG_KEY])


@st.composite
def _puts(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from([b"set", b"set", b"add", b"replace", b"append",
                                 b"prepend", b"cas"]))  # fmt: skip
    key, flags, exptime = draw(_any_key), draw(_flags), draw(_exptime)
    value = draw(_value)
    words = [name, key, flags, exptime, b"%d" % len(value)]
    cas_key, is_fresh, is_bad_cas = b"", True, False
    if name == b"cas":
        cas = draw(_mostly([b"{cas}"], [b"0", b"1", b"abc"]))
        is_bad_cas = cas == b"abc"
        words.append(cas)
        if cas == b"{cas}" and key != LONG_KEY:
            cas_key, is_fresh = key, draw(st.booleans())
        elif cas == b"{cas}":
            words[-1] = b"1"
    line = draw(_space).join(words) + draw(_noreply) + draw(_end)
    data = value + b"\r\n"
    is_refused = (
        key == LONG_KEY
        or is_bad_cas
        or flags in {b"abc", b"-1", b"1x"}
        or exptime in _BAD_NUMBERS
    )
    if is_refused:
        # memcached reads the value as commands; newer versions skip it, as ours does.
        return Step(line + data, line)
    return Step(line + data, None, cas_key, is_fresh)


@st.composite
def _bad_chunks(draw: st.DrawFn) -> Step:
    """A value that is not as long as the line says."""
    name = draw(st.sampled_from([b"set", b"add", b"append", b"ms"]))
    key, size = draw(_key), draw(st.integers(0, 40))
    data = draw(_value)[:100] + draw(
        st.sampled_from([b"\r\n", b"\n", b"", b"\r\nmn\r\n"])
    )
    if len(data) < size + 2:
        data = data.ljust(size + 2, b"x")
    if not data.endswith(b"\n"):
        data += b"\r\n"
    noreply = draw(_noreply)
    middle = b" " if name == b"ms" else b" 0 0 "
    if name == b"ms":
        noreply = draw(st.sampled_from([b"", b" q", b" k", b" T0"]))
    return Step(name + b" " + key + middle + b"%d" % size + noreply + b"\r\n" + data)


@st.composite
def _gets(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from([b"get", b"get", b"gets", b"gat", b"gats", b"bget"]))
    keys = draw(st.lists(_mostly(KEYS, [b"none", b"../x", b"\xff"]), max_size=4))
    if name in {b"get", b"gets"} and draw(st.integers(0, 30)) == 7:
        keys = keys * 20 + KEYS
    if not name.startswith(b"gat") and draw(st.integers(0, 20)) == 7:
        # memcached reads the keys before it, and with "gat" touches them.
        keys = [*(key for key in keys if key not in KEYS), LONG_KEY]
    words = [name, *keys]
    if name in {b"gat", b"gats"}:
        words.insert(1, draw(_exptime))
    line = draw(_space).join(words) + draw(_end)
    return Step(line, is_alone=LONG_KEY in keys)


_LINES: Final = [
    b"version", b"mn", b"verbosity 1", b"verbosity", b"verbosity x", b"", b" ", b"bogus",
    b"GET a", b"m", b"mx", b"mx a", b"get", b"set", b"set a", b"set a 0 0", b"incr",
    b"touch a", b"delete", b"stats reset", b"shutdown", b"shutdown graceful",
    b"set a 0 0 1 x y", b"me a", b"me none", b"me", b"ms a", b"ms", b"ms a -1", b"ms a b",
    b"set a 0 0 -1", b"set a 0 0 abc", b"set a 0 0 -1 noreply", b"stats bogus", b"lru",
    b"gat", b"gat 0", b"gats x", b"a", b"x", b"version x y", b"mn x", b"quit", b"quit x",
    b"x / HTTP/1.1", b"POST / HTTP/1.1", b"sx / HTTP/1.1", b"mx / HTTP/1.1", b"slabs",
    b"lru_crawler", b"lru x", b"get a\rb", b"flush_all", b"flush_all 0", b"flush_all abc",
    b"flush_all -1", b"flush_all noreply 0", b"flush_all 0 noreply x", b"flush_all noreply",
]  # fmt: skip
_DELETE_OPTIONS: Final = [
    b"", b"", b"", b" 0", b" 1", b" 0 noreply", b" noreply", b" 1 noreply",
]  # fmt: skip


@st.composite
def _others(draw: st.DrawFn) -> Step:
    key = draw(_any_key)
    kind = draw(st.sampled_from([b"incr ", b"decr ", b"touch ", b"delete ", b"", b""]))
    if kind in {b"incr ", b"decr "}:
        line = kind + key + draw(_space) + draw(_mostly(_DELTAS, _BAD_NUMBERS))
        return Step(line + draw(_noreply) + draw(_end), is_alone=True)
    if kind == b"touch ":
        return Step(kind + key + b" " + draw(_exptime) + draw(_noreply) + draw(_end))
    if kind == b"delete ":
        return Step(kind + key + draw(st.sampled_from(_DELETE_OPTIONS)) + draw(_end))
    line = draw(st.sampled_from(_LINES))
    is_alone = b"HTTP" in line or line.startswith(b"quit")
    return Step(line + draw(_end), is_alone=is_alone)


_META_FLAGS: Final = [
    b"k", b"O123", b"Oabc", b"q", b"c", b"t", b"s", b"f", b"v", b"u", b"P", b"Lx", b"h",
    b"h", b"l",
]  # fmt: skip
_ODD_FLAGS: Final = [
    b"k", b"O" + b"o" * 31, b"O" + b"o" * 32, b"!", b"\xff", b"T", b"Tx", b"Nx", b"Cx",
    b"Fx", b"M", b"MXX", b"Mx", b"Jx", b"Dx", b"x", b"vv", b"k1", b"C0",
]  # fmt: skip


def _maybe(letter: bytes, values: st.SearchStrategy[bytes], one_in: int) -> Any:
    """Return a flag, one time in several."""
    given = values.map(lambda value: [letter + value])
    return st.one_of(*[st.just([])] * (one_in - 1), given)


_ttl = _mostly([b"0", b"1000", b"100000", b"50000"], [b"-1"])
_set_ttl = _mostly([b"0", b"50", b"1000"], [b"-1"])
_delta = st.sampled_from(_DELTAS)
_mode = st.sampled_from([b"S", b"E", b"R", b"A", b"P"])
_direction = st.sampled_from([b"I", b"D", b"+", b"-"])
_OPTIONS: Final[dict[bytes, list[Any]]] = {
    b"mg": [
        _maybe(b"T", _ttl, 4),
        _maybe(b"R", _ttl, 4),
        _maybe(b"N", st.sampled_from([b"0", b"1000", b"50000"]), 4),
    ],
    b"ms": [_maybe(b"M", _mode, 2), _maybe(b"F", _flags, 2), _maybe(b"T", _set_ttl, 2)],
    b"md": [],
    b"ma": [
        _maybe(b"M", _direction, 2),
        _maybe(b"D", _delta, 2),
        _maybe(b"T", _ttl, 3),
        _maybe(b"N", _ttl, 2),
        _maybe(b"J", _delta, 2),
    ],
}


def _unlisted(name: bytes, flags: list[bytes], options: list[bytes]) -> list[bytes]:
    """Return the flags whose replies do not differ by design."""
    letters = {option[:1] for option in options}
    differing = b""
    if name == b"ms":
        differing += b"s"  # Of newer versions.
    if name == b"ma" and b"N" in letters:
        differing += b"q"
    if b"T-1" in options or b"N-1" in options:
        differing += b"tc"
    if {b"N", b"T"} <= letters:
        differing += b"t"
    return [flag for flag in flags if flag[:1] not in differing]


@st.composite
def _meta_words(draw: st.DrawFn, name: bytes, *, is_binary: bool) -> list[bytes]:
    flags: list[bytes] = draw(st.lists(st.sampled_from(_META_FLAGS), max_size=5))
    flags = list({flag[:1]: flag for flag in flags}.values())
    options = [flag for option in _OPTIONS[name] for flag in draw(option)]
    if is_binary:  # What they store is not returned in base64.
        options = [option for option in options if option[:1] != b"N"]
    elif name != b"mg" and draw(st.integers(0, 3)) == 0:
        options.append(b"C{cas}")
    words = draw(st.permutations(_unlisted(name, flags, options) + options))
    if draw(st.integers(0, 5)) == 0:
        odd = draw(st.sampled_from(_ODD_FLAGS))
        # memcached executes "ma" and "mg" before it looks at a long opaque.
        if name in {b"md", b"ms"} or not (len(odd) > 32 or odd == b"C0"):
            words = [*words, odd]
    if is_binary:
        words = [b"b", *words] if draw(st.booleans()) else [*words, b"b"]
    return words * 10 if draw(st.integers(0, 40)) == 7 else words


@st.composite
def _meta(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from([b"mg", b"mg", b"ms", b"ms", b"md", b"ma"]))
    is_binary = draw(st.integers(0, 7)) == 0
    key = draw(st.sampled_from(BINARY_KEYS) if is_binary else _any_key)
    words = draw(_meta_words(name, is_binary=is_binary))
    cas_key, is_fresh = b"", True
    if key == LONG_KEY:
        words = [word for word in words if word != b"C{cas}"]
    elif b"C{cas}" in words:
        cas_key, is_fresh = key, draw(st.booleans())
    if name != b"ms":
        line = b" ".join([name, key, *words]) + draw(_end)
        return Step(line, None, cas_key, is_fresh, is_alone=name == b"ma")
    value = draw(_value)
    line = b" ".join([name, key, b"%d" % len(value), *words]) + b"\r\n"
    is_refused = key == LONG_KEY or len(words) > 16
    return Step(line + value + b"\r\n", line if is_refused else None, cas_key, is_fresh)


@st.composite
def _too_large(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from([b"set", b"add", b"replace", b"append", b"prepend"]))
    size = draw(st.integers(VALUE_SIZE + 1000, VALUE_SIZE + 2000))
    line = name + b" " + draw(_key) + b" 0 0 %d" % size + draw(_noreply) + b"\r\n"
    return Step(line + b"x" * size + b"\r\n")


_SMALL: Final = st.one_of(
    _puts(), _puts(), _gets(), _gets(), _others(), _meta(), _meta()
)
STEPS: Final = st.one_of(*[_SMALL] * 9, _bad_chunks())
# Values above the limit are slow, so only one in 65 is.
STREAMS: Final = st.tuples(
    st.lists(STEPS | _too_large(), min_size=1, max_size=25),
    st.lists(st.integers(0, 5000), max_size=PIECES_MAX - 1),
)
