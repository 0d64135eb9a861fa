"""The connection: which protocol it speaks, and input in pieces."""

from __future__ import annotations

from support.tables import each_row
from volcache.memcache.commands import Get, Put, Result, Simple, Status
from volcache.memcache.protocol import Connection, WireLimits

LIMITS = WireLimits(key_size=250, value_size=10_000)
STREAM = (
    b"get a b c\r\nset a 1 2 5\r\nhel\r\n\r\nset b 0 0 2 noreply\r\nxyz\r\nbogus\r\n"
    b"ms c 3 k q\r\nabc\r\nset d 0 0 20000\r\n" + b"x" * 20_000 + b"\r\nmg e v t\r\n"
    b"\n set  f 0 0 9000 \r\n" + b"y" * 9000 + b"\r\nincr a 1\r\nquit\r\nget z\r\n"
)


def test_nothing_comes_from_nothing() -> None:
    """Before the first byte, no protocol is known."""
    connection = Connection(LIMITS)
    connection.receive(b"")
    assert connection.next_command() is None
    assert connection.buffered == 0


def test_the_first_byte_decides() -> None:
    """0x80 is the binary protocol; a text that begins with another byte is none."""
    binary = Connection(LIMITS)
    binary.receive(b"\x80" + b"\x0a".ljust(23, b"\0"))
    command = binary.next_command()
    assert command is not None
    assert binary.reply(command, Result(Status.OK))[:1] == b"\x81"
    text = Connection(LIMITS)
    text.receive(b"\x81\r\n")
    command = text.next_command()
    assert command is not None
    assert text.reply(command, Result(Status.OK)) == b"ERROR\r\n"


@each_row("size", [1, 2, 3, 7, 13, 100, 4096, 5000, 10**6])
def test_pieces_do_not_matter(size: int) -> None:
    """The commands are those of the whole input."""
    whole, pieces = Connection(LIMITS), Connection(LIMITS)
    whole.receive(STREAM)
    wanted = []
    while (command := whole.next_command()) is not None:
        wanted.append(command)
    found = []
    for start in range(0, len(STREAM), size):
        pieces.receive(STREAM[start : start + size])
        while (command := pieces.next_command()) is not None:
            found.append(command)
    assert found == wanted
    assert len(found) == 14
    assert pieces.buffered == 0


def test_commands_wait_for_their_turn() -> None:
    """What is received between two commands comes after them."""
    connection = Connection(LIMITS)
    connection.receive(b"get a b\r\nset c 0 0 3\r\nab")
    first = connection.next_command()
    connection.receive(b"c\r\nget ")
    second = connection.next_command()
    third = connection.next_command()
    assert connection.next_command() is None
    connection.receive(b"d\r\n")
    fourth = connection.next_command()
    found = [first, second, third, fourth]
    assert [type(command) for command in found] == [Get, Get, Put, Get]
    assert [command.key for command in found if not isinstance(command, Simple)] == [  # type: ignore[union-attr]
        b"a", b"b", b"c", b"d",
    ]  # fmt: skip


def test_what_is_held_is_counted() -> None:
    """The beginning of a line, and that of a value."""
    connection = Connection(LIMITS)
    connection.receive(b"set a 0 0 ")
    assert connection.next_command() is None
    assert connection.buffered == 10
    connection.receive(b"5000\r\n" + b"x" * 4999)
    assert connection.next_command() is None
    assert connection.buffered == 4999
    connection.receive(b"x\r\n")
    assert connection.next_command() is not None
    assert connection.buffered == 0


def test_credentials_may_be_wanted_before_and_after_the_first_byte() -> None:
    """The caller says so; both protocols keep to it."""
    connection = Connection(LIMITS, wants_credentials=True)
    assert connection.wants_credentials
    connection.receive(b"version\r\n")
    assert connection.wants_credentials
    connection.wants_credentials = False
    assert not connection.wants_credentials
