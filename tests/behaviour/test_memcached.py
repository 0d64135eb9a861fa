"""memcached.txt says what each command answers: an instance does, and memcached does."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import binary_protocol as wire
from support.extent import examples
from support.memcache import RawClient
from support.memcache_talk import END, END_IN_BINARY, Talk
from support.memcached import MemcachedProcess
from support.rows import Row, expanded, read_rows
from support.stores import FakeClock
from volcache.access import Access

VALUE_SIZE: Final = 1 << 20
KEYS: Final = (b"a", b"b", b"c", b"x", b"viv", b"none")


def is_of_memcached(row: Row) -> bool:
    """Whether memcached answers it, and at once."""
    marks = {mark for mark, _ in row.lines}
    return not marks & {"+", "t"} and ("m", "-") not in row.lines


ROWS: Final = list(read_rows(Path(__file__).with_name("memcached.txt")))

# --- The binary protocol ---------------------------------------------------------------

OPCODES: Final = {
    name: code
    for name, code in vars(wire).items()
    if isinstance(code, int) and name != "MAGIC"
}
NAMES: Final = {code: name for name, code in OPCODES.items()}


def request(line: str) -> bytes:
    """Return a request, from opcode, key, value and what has a name."""
    name, *words = line.split(" ")
    if name.startswith("raw="):
        return name[4:].encode()
    key, value, *_ = [*(word for word in words if "=" not in word), "", ""]
    given = dict(word.split("=") for word in words if "=" in word)
    value = given.pop("value", value)
    n = {name: int(number) for name, number in given.items()}
    ttl, extras = n.get("ttl", 0), b""
    if "extras" in n:
        extras = bytes(n["extras"])
    elif re.match("SET|ADD|REPLACE", name):
        extras = wire.put_extras(n.get("flags", 0), ttl)
    elif re.match("INCR|DECR", name):
        extras = wire.arithmetic_extras(n.get("delta", 0), n.get("initial", 0), ttl)
    elif "ttl" in n:
        extras = wire.time_extras(ttl)
    opcode = OPCODES[name] if name in OPCODES else int(name, 16)
    return wire.request(
        opcode,
        key.encode(),
        value.encode("latin-1"),
        extras=extras,
        cas=n.get("cas", 0),
        body_size=n.get("body"),
    )


def shown(replies: bytes, *, has_cas: bool) -> Iterator[str]:
    """Yield responses in the form of the rows."""
    for reply in wire.replies(replies):
        value = reply.value.decode("latin-1")
        if re.match("INCR|DECR", NAMES.get(reply.opcode, "")) and not reply.status:
            value = str(int.from_bytes(reply.value, "big"))
        yield (
            " ".join(
                [
                    f"{NAMES.get(reply.opcode, hex(reply.opcode))} {reply.status}",
                    *([f"key={reply.key.decode()}"] if reply.key else []),
                    *(
                        [f"flags={int.from_bytes(reply.extras, 'big')}"]
                        if reply.extras
                        else []
                    ),
                    *([value] if value else []),
                    *([f"cas={reply.cas}"] if has_cas and reply.cas else []),
                ]
            )
            + ";"
        )


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

    def ask(self, *pieces: bytes, is_binary: bool) -> tuple[bytes, bool]:
        """Send pieces; return the replies, and whether it closes after them."""
        assert self._socket is not None
        end, last = END_IN_BINARY if is_binary else END
        received = b""
        *first, rest = pieces
        with suppress(ConnectionError):  # It may close before all is sent.
            for piece in (*first, rest + end):
                self._socket.sendall(piece)
        with suppress(ConnectionError):
            while data := self._socket.recv(1 << 16):
                received += data
                if received.endswith(last):
                    return received[: -24 if is_binary else -len(last)], False
        return received, True


# --- Both sides ------------------------------------------------------------------------


class Side:
    """A connection to an empty server: "v" is an instance, "m" memcached."""

    def __init__(
        self,
        name: str,
        exchange: Callable[[bytes], tuple[bytes, bool]],
        clock: FakeClock,
    ) -> None:
        """`exchange` sends, and returns all replies, and whether it was closed."""
        self._name, self._exchange, self._clock = name, exchange, clock
        self._known: dict[str, str] = {}

    def check(self, row: Row) -> None:
        """Do what a row says; fail if it is not answered as that says."""
        asked: list[tuple[str, str]] = []
        for is_answer, group in groupby(row.lines, lambda line: line[0] in "<v<<m"):
            lines = list(group)
            if is_answer:
                marks = {"<", "<<", self._name}
                expected = [line for mark, line in lines if mark in marks]
                self._compare(asked, ";".join(expected))
            asked = [line for line in lines if line[0] in {">", ">>"}]
            for mark, line in lines:
                if mark == "+":
                    self._clock.advance(int(line))

    def _compare(self, lines: list[tuple[str, str]], expected: str) -> None:
        sent = expanded(";".join(line for _, line in lines))
        sent = re.sub(r"\$([a-z])", lambda found: self._known[found[1]], sent)
        if lines[0][0] == ">":
            data = f"{sent};".replace(";", "\r\n").encode("latin-1")
            replies, is_closed = self._exchange(data)
            answered = replies.decode("latin-1").replace("\r\n", ";")
        else:
            replies, is_closed = self._exchange(b"".join(map(request, sent.split(";"))))
            answered = "".join(shown(replies, has_cas="cas=" in expected))
        answered = (answered + "closed" * is_closed).removesuffix(";")
        found = re.fullmatch(self._pattern(expected), answered, re.DOTALL)
        assert found, f"{sent[:300]!r} is answered {answered[:300]!r}"
        self._known |= found.groupdict()

    def _pattern(self, expected: str) -> str:
        """Return a pattern whose groups are the numbers that are not known yet."""
        pattern = re.escape(expanded(expected)).replace(r"\.\.\.", ".*")
        for name in dict.fromkeys(re.findall(r"\\\$([a-z])", pattern)):
            number = self._known.get(name, rf"(?P<{name}>\d+)")
            pattern = pattern.replace(rf"\${name}", number, 1)
            pattern = pattern.replace(
                rf"\${name}", self._known.get(name, f"(?P={name})")
            )
        return pattern


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """A client of a server without tokens."""
    folder = tmp_path_factory.mktemp("rows")
    with Talk(folder, value_size_max=VALUE_SIZE, keys=KEYS) as opened:
        yield opened


@pytest.fixture(scope="module")
def theirs() -> Iterator[Theirs]:
    """A connection to memcached."""
    with MemcachedProcess() as process:
        client = Theirs(process.port)
        yield client
        client.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name[:100])
def test_an_instance_answers_as_the_row_says(talk: Talk, row: Row) -> None:
    """At once and byte by byte. Nothing is held afterwards."""
    token = "".join(line for mark, line in row.lines if mark == "t")
    talk.change(Access(write=token))
    for size in (1 << 20, 1):

        def exchange(data: bytes, size: int = size) -> tuple[bytes, bool]:
            step = size if len(data) < 10_000 else 1 << 16
            pieces = [data[at : at + step] for at in range(0, len(data), step)]
            return talk.ask(*pieces), talk.is_closed

        # Wrong tokens are counted by address.
        talk.connect(f"127.0.1.{ROWS.index(row) % 256}")
        Side("v", exchange, talk.clock).check(row)
        assert talk.held() == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if is_of_memcached(row)],
    ids=lambda row: row.name[:100],
)
def test_memcached_answers_as_the_row_says(theirs: Theirs, row: Row) -> None:
    """Otherwise the row says what differs by design."""
    is_binary = any(mark == ">>" for mark, _ in row.lines)
    theirs.connect()
    Side("m", partial(theirs.ask, is_binary=is_binary), FakeClock()).check(row)


# --- Rows one after the other ----------------------------------------------------------


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


def is_alike(row: Row) -> bool:
    """Whether memcached answers it as an instance does, and it is one exchange."""
    # It pads a shorter number, unless a reply that it has not sent yet holds the value.
    if "number" in row.name:
        return False
    marks = [mark for mark, _ in row.lines]
    return len(marks) == 2 and marks[1][0] == "<" and "$" not in row.lines[0][1]


ALIKE: Final = {
    mark: [row for row in ROWS if is_alike(row) and row.lines[0][0] == mark]
    for mark in (">", ">>")
}
CUTS: Final = st.lists(st.integers(0, 5000), max_size=5)


@pytest.mark.integration
@pytest.mark.property
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ALIKE)
def test_rows_one_after_the_other_are_answered_as_by_memcached(
    talk: Talk, theirs: Theirs, protocol: str
) -> None:
    """On a connection, in any order and in any pieces: what is stored stays."""

    def replies_to(sent: bytes, cuts: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
        ours = talk.ask(*cut(sent, cuts))
        other, _ = theirs.ask(*cut(sent, cuts), is_binary=protocol == ">>")
        if protocol == ">>":
            first, second = (
                "".join(shown(one, has_cas=False)) for one in (ours, other)
            )
            return [first.encode()], [second.encode()]
        return normal_form(ours, {}), normal_form(other, {})

    @settings(max_examples=examples(1000))
    @given(st.lists(st.sampled_from(ALIKE[protocol]), min_size=1, max_size=12), CUTS)
    def run(rows: list[Row], cuts: list[int]) -> None:
        talk.connect()
        theirs.connect()
        for row in rows:
            line = row.lines[0][1]
            text = f"{expanded(line)};".replace(";", "\r\n").encode("latin-1")
            if protocol == ">>":
                text = b"".join(map(request, expanded(line).split(";")))
            ours, other = replies_to(text, cuts)
            assert ours == other, [one.name for one in rows]
            if talk.is_closed:
                break

    run()
