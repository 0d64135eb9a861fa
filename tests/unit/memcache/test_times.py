"""Times to live and delays, from the ordinary to the largest numbers, over a socket."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from support.memcache_service import Served, served
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.memcache import RawClient

DAY: Final = 24 * 60 * 60
TEN_YEARS: Final = 10 * 365 * DAY
FAR: Final = [2**31, 2**32 - 1, 2**32, 2**53, 10**16, 2**63 - 1]
PAST: Final = [-1, -(2**31), -(2**32), -(2**63)]
# As in memcached, no number of 64 bits.
INVALID: Final = [2**63, 2**64, -(2**63) - 1, int("9" * 400), -int("9" * 400)]

# Commands that set when the key "a", whose value is "1", expires; what they answer, and
# what they answer if the number is invalid.
BAD_LINE: Final = b"CLIENT_ERROR bad command line format"
BAD_EXPTIME: Final = b"CLIENT_ERROR invalid exptime argument"
BAD_TOKEN: Final = b"CLIENT_ERROR bad token in command line format"
BAD_FLAG: Final = b"CLIENT_ERROR invalid or duplicate flag"
CHANGING: Final = [
    (b"set a 0 %d 1\r\n1\r\n", [b"STORED"], BAD_LINE),
    (b"replace a 0 %d 1\r\n1\r\n", [b"STORED"], BAD_LINE),
    (b"touch a %d\r\n", [b"TOUCHED"], BAD_EXPTIME),
    (b"gat %d a\r\n", [b"VALUE a 0 1", b"1", b"END"], BAD_EXPTIME),
    (b"mg a T%d\r\n", [b"HD"], BAD_TOKEN),
    (b"ms a 1 T%d\r\n1\r\n", [b"HD"], BAD_TOKEN),
    (b"ms a 1 MR T%d\r\n1\r\n", [b"HD"], BAD_TOKEN),
    (b"ma a D0 T%d\r\n", [b"HD"], BAD_FLAG),
]
# The same, if there is no key "a".
CREATING: Final = [
    (b"add a 0 %d 1\r\n1\r\n", [b"STORED"], BAD_LINE),
    (b"mg a N%d\r\n", [b"HD W"], BAD_TOKEN),
    (b"ms a 1 ME T%d\r\n1\r\n", [b"HD"], BAD_TOKEN),
    (b"ms a 1 MA N%d\r\n1\r\n", [b"HD"], BAD_TOKEN),
    (b"ms a 1 MP N%d\r\n1\r\n", [b"HD"], BAD_TOKEN),
    (b"ma a N%d\r\n", [b"HD"], BAD_FLAG),
]
# Here the number changes nothing: the value does not expire.
KEEPING: Final = [
    (b"append a 0 %d 0\r\n\r\n", [b"STORED"], BAD_LINE),
    (b"prepend a 0 %d 0\r\n\r\n", [b"STORED"], BAD_LINE),
    (b"mg a R%d\r\n", [b"HD"], BAD_TOKEN),
    (b"cas a 0 %d 1 1\r\n1\r\n", [b"EXISTS"], BAD_LINE),
]
# Opcodes of the binary protocol, with what is before and after the time in the extras,
# and whether there is the key.
BINARY: Final = [
    (0x01, b"\0" * 4, b"1", True),  # set
    (0x02, b"\0" * 4, b"1", False),  # add
    (0x03, b"\0" * 4, b"1", True),  # replace
    (0x05, b"\0" * 16, b"", False),  # increment
    (0x06, b"\0" * 16, b"", False),  # decrement
    (0x1C, b"", b"", True),  # touch
    (0x1D, b"", b"", True),  # gat
    (0x23, b"", b"", True),  # gatk
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve; the clock stands still."""
    with served(tmp_path_factory.mktemp("times")) as running:
        yield running


def prepare(shared: Served, *, is_there: bool) -> None:
    """Store the key "a" or delete it."""
    with shared.client() as client:
        client.set("a", b"1")
        assert is_there or client.ask(b"delete a\r\n") == b"DELETED"


def remaining(shared: Served) -> int | None:
    """Return the seconds until the key "a" expires; None: there is none."""
    with shared.client() as client:
        words = client.ask(b"mg a t\r\n").split()
    return int(words[1][1:]) if words[0] == b"HD" else None


def replies(shared: Served, command: bytes) -> list[bytes]:
    """Return the lines that are answered before the next command in the same packet."""
    with shared.client() as client:
        client.send(command + b"mn\r\n")
        found = []
        while (line := client.line()) != b"MN":
            found.append(line)
        return found


def is_right(seconds: int | None, number: int) -> bool:
    """Whether a time to live is what such a number asks for."""
    return seconds is None if number < 0 else (seconds or 0) > TEN_YEARS


@pytest.mark.parametrize("number", [*FAR, *PAST, *INVALID], ids=lambda n: str(n)[:25])
def test_any_number_is_a_time_to_live(shared: Served, number: int) -> None:
    """Far away, in the past or an error; what follows in the packet is executed."""
    rows = [
        *((*row, True, True) for row in CHANGING),
        *((*row, False, True) for row in CREATING),
        *((*row, True, False) for row in KEEPING),
    ]
    for form, answer, error, is_there, is_changing in rows:
        prepare(shared, is_there=is_there)
        found, seconds = replies(shared, form % number), remaining(shared)
        if number in INVALID:
            assert found == [error], form
            assert seconds == (-1 if is_there else None), form
        else:
            assert found == answer, form
            assert is_right(seconds, number) if is_changing else seconds == -1, form


@pytest.mark.parametrize("number", [2**31, 2**32 - 2, 2**32 - 1], ids=str)
def test_any_number_is_a_time_to_live_in_binary(shared: Served, number: int) -> None:
    """It has 32 bits there; the largest one stores no initial number."""
    for opcode, before, value, is_there in BINARY:
        prepare(shared, is_there=is_there)
        extras = before + struct.pack(">I", number)
        header = struct.pack(
            ">BBHB3xI12x", 0x80, opcode, 1, len(extras), len(extras) + 1 + len(value)
        )
        noop = struct.pack(">BB22x", 0x80, 0x0A)
        with shared.client() as client:
            client.send(header + extras + b"a" + value + noop)
            statuses = [status_of(client) for _ in range(2)]
        is_created = opcode not in {0x05, 0x06} or number < 2**32 - 1
        assert statuses == [0 if is_created else 1, 0], opcode
        assert (remaining(shared) or 0) > TEN_YEARS or not is_created


def status_of(client: RawClient) -> int:
    """Return the status of the next reply of the binary protocol."""
    head = client.read(24)
    client.read(int.from_bytes(head[8:12], "big"))
    return int.from_bytes(head[6:8], "big")


# --- Delayed flushes -------------------------------------------------------------------


@pytest.mark.parametrize("delay", [10, 2**31 // 1000 + 1, 2_500_000, 30 * DAY])
def test_delayed_flush_takes_effect(shared: Served, delay: int) -> None:
    """Up to 30 days from now, and not before."""
    with shared.client() as client:
        client.set("a", b"1")
        assert client.ask(b"flush_all %d\r\n" % delay) == b"OK"
        assert client.get("a") == b"1"
        shared.clock.advance(delay - 1)
        assert client.get("a") == b"1"
        shared.clock.advance(1)
        wait_until(lambda: client.get("a") is None, "the flush")


@pytest.mark.parametrize("number", FAR, ids=str)
def test_commands_are_executed_while_a_flush_waits(shared: Served, number: int) -> None:
    """However far away it is, in both protocols; the next flush replaces it."""
    binary = struct.pack(">BBHB3xI12xI", 0x80, 0x08, 0, 4, 4, number % 2**32)
    with shared.client() as client, shared.client() as other:
        if number < 2**32:
            other.send(binary)
            assert status_of(other) == 0
        else:
            assert other.ask(b"flush_all %d\r\n" % number) == b"OK"
        for value in (b"1", b"2"):
            assert client.set("a", value) == b"STORED"
            assert client.get("a") == value
        assert client.ask(b"flush_all\r\n") == b"OK"
        assert client.get("a") is None
