"""The connection: which protocol it speaks, and what it holds."""

from __future__ import annotations

from volcache.memcache.commands import Result, Status
from volcache.memcache.protocol import Connection, WireLimits

LIMITS = WireLimits(key_size=250, value_size=10_000)


def test_the_first_byte_decides() -> None:
    """0x80 is the binary protocol; a text that begins with another byte is none."""
    requests = {
        b"": b"",
        b"\x80" + b"\x0a".ljust(23, b"\0"): b"\x81",
        b"\x81\r\n": b"E",
    }
    for request, reply in requests.items():
        connection = Connection(LIMITS)
        connection.receive(request)
        command = connection.next_command()
        assert (command is None) == (request == b"")
        found = command and connection.reply(command, Result(Status.OK))
        assert (found or b"")[:1] == reply


def test_credentials_may_be_wanted_before_and_after_the_first_byte() -> None:
    """The caller says so; both protocols keep to it."""
    connection = Connection(LIMITS, wants_credentials=True)
    assert connection.wants_credentials
    connection.receive(b"version\r\n")
    assert connection.wants_credentials
    connection.wants_credentials = False
    assert not connection.wants_credentials
