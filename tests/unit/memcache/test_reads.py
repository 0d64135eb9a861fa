"""The flags "h" and "l" of "mg": whether a value was read before, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from support.memcache_service import Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator

# As many as are remembered.
READS: Final = 16_384


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve; the clock stands still."""
    with served(tmp_path_factory.mktemp("reads")) as running:
        yield running


def last(shared: Served, *commands: bytes) -> bytes:
    """Return the last line of the replies to commands, after the key "a" was stored."""
    with shared.client() as client:
        client.send(b"set a 0 0 1\r\n1\r\n" + b"".join(commands) + b"mn\r\n")
        lines = []
        while (line := client.line()) != b"MN":
            lines.append(line)
    return lines[-1]


@pytest.mark.parametrize(
    "commands",
    [
        [b"get a\r\n"],
        [b"gets none a\r\n"],
        [b"gat 100 a\r\n"],
        [b"touch a 100\r\n"],
        [b"mg a\r\n"],
        [b"mg a v h l\r\n"],
        [b"mg a T50\r\n"],
        [b"mg a R50\r\n"],
        [b"md a\r\n", b"mg a N50\r\n"],
        [b"get a\r\n", b"incr a 1\r\n"],  # It is changed in place.
        [b"get a\r\n", b"ma a T50\r\n"],
        [b"get a\r\n", b"add a 0 0 1\r\n2\r\n"],
    ],
)
def test_a_value_was_read(shared: Served, commands: list[bytes]) -> None:
    """As memcached says."""
    assert last(shared, *commands, b"mg a h\r\n").startswith(b"HD h1")


@pytest.mark.parametrize(
    "commands",
    [
        [],
        [b"get none\r\n"],
        [b"mg a u\r\n"],
        [b"me a\r\n"],
        [b"ma a h l t\r\n"],
        [b"append a 0 0 1\r\n2\r\n"],
        [b"cas a 0 0 1 1\r\n2\r\n"],
        # It is another value.
        [b"get a\r\n", b"set a 0 0 1\r\n2\r\n"],
        [b"get a\r\n", b"ms a 1 h l\r\n2\r\n"],
        [b"get a\r\n", b"append a 0 0 1\r\n2\r\n"],
        [b"get a\r\n", b"incr a 10\r\n"],
        [b"get a\r\n", b"md a h l\r\n", b"add a 0 0 1\r\n2\r\n"],
    ],
)
def test_a_value_was_not_read(shared: Served, commands: list[bytes]) -> None:
    """As memcached says."""
    assert last(shared, *commands, b"mg a h\r\n") == b"HD h0"


def test_the_time_since_the_last_read_is_told(shared: Served) -> None:
    """Before this read; 0 if it was not read."""
    assert last(shared, b"mg a l\r\n") == b"HD l0"
    with shared.client() as client:
        shared.clock.advance(70)
        assert client.ask(b"mg a k h l t\r\n") == b"HD ka h1 l70 t-1"
        assert client.ask(b"mg a t u h l\r\n") == b"HD t-1 h1 l0"
        shared.clock.advance(5)
        assert client.ask(b"mg a u l\r\n") == client.ask(b"mg a l\r\n") == b"HD l5"
        assert client.ask(b"mg none h l t\r\n") == b"EN"


def test_the_latest_reads_are_remembered(shared: Served) -> None:
    """Of so many keys: the one that was not read for the longest time leaves."""
    with shared.client() as client:
        for key in (b"first", b"second"):
            client.send(b"set %b 0 0 1\r\n1\r\nget %b\r\n" % (key, key))
            while client.line() != b"END":
                pass
        for number in range(READS - 2):
            client.send(b"set r%d 0 0 0 noreply\r\n\r\nmg r%d q\r\n" % (number, number))
        client.send(b"get first\r\nset more 0 0 0\r\n\r\nget more\r\nmn\r\n")
        while client.line() != b"MN":
            pass
        assert client.ask(b"mg first h\r\n") == b"HD h1"
        assert client.ask(b"mg second h\r\n") == b"HD h0"
