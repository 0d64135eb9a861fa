"""memcached.txt says what each command answers: an instance does, and memcached does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from support import binary_protocol as wire
from support.memcache_talk import Talk
from support.memcache_twins import VALUE_SIZE, Theirs
from support.memcached import MemcachedProcess
from support.rows import Row, expanded, read_rows
from support.stores import FakeClock
from volcache.access import Access

KEYS: Final = (b"a", b"b", b"c", b"x", b"viv", b"none")
# What is sent last, and how the reply to it ends.
END: Final = (b"mg END_OF_ROW k\r\n", b"EN kEND_OF_ROW\r\n")
END_IN_BINARY: Final = (
    wire.request(wire.NOOP, opaque=b"\xfe\xed\xbe\xef"),
    b"\xfe\xed\xbe\xef" + bytes(8),
)


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
    talk.service.change(Access(write=token), may_flush=True)
    for size in (1 << 20, 1):

        def exchange(data: bytes, size: int = size) -> tuple[bytes, bool]:
            step = size if len(data) < 10_000 else 1 << 16
            pieces = [data[at : at + step] for at in range(0, len(data), step)]
            return talk.ask(*pieces), talk.is_closed

        # Wrong tokens are counted by address.
        talk.connect(f"192.0.2.{ROWS.index(row) % 256}")
        Side("v", exchange, talk.clock).check(row)
        assert talk.buffered == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if is_of_memcached(row)],
    ids=lambda row: row.name[:100],
)
def test_memcached_answers_as_the_row_says(theirs: Theirs, row: Row) -> None:
    """Otherwise the row says what differs by design."""
    is_binary = any(mark == ">>" for mark, _ in row.lines)
    end, last = END_IN_BINARY if is_binary else END

    def exchange(data: bytes) -> tuple[bytes, bool]:
        replies, is_closed = theirs.exchange(
            [data + end], lambda got: got.endswith(last)
        )
        size = 24 if is_binary else len(last)
        return replies if is_closed else replies[:-size], is_closed

    theirs.connect()
    Side("m", exchange, FakeClock()).check(row)
