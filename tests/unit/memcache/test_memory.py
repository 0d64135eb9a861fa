"""The memory that the input of a connection takes is what `buffered` says."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Final

import pytest

from volcache.memcache.commands import Result, Status, WireLimits
from volcache.memcache.decoder import Decoder
from volcache.memcache.protocol import decoder_for

MIB: Final = 1 << 20
PIECE: Final = 65_536  # What is received at once.
LIMITS: Final = WireLimits(key_size=250, value_size=MIB)
# Of the objects of a connection, and of a buffer that grows.
OBJECTS: Final = 8192
GROWTH: Final = 1.13
KEYS: Final = b" ab" * 349_000
SET: Final = struct.pack(">BBHB3xI12x", 0x80, 1, 1, 8, MIB) + bytes(8) + b"k"
GETQ: Final = struct.pack(">BBHB3xI12x", 0x80, 0x09, 1, 0, 1) + b"k"


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace the memory of Python's objects."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("size", [100, PIECE])
@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(b"get" + KEYS, 0, id="a get without its end"),
        pytest.param(b"get" + KEYS + b"\r\n", 1, id="a get at its first key"),
        pytest.param(b"gats 0" + KEYS + b"\r\n", 500, id="a gats at another key"),
        pytest.param(b"set k 0 0 1000000\r\n" + bytes(900_000), 0, id="a value"),
        pytest.param(b"set k 0 0 2000000\r\n" + bytes(900_000), 0, id="too large"),
        pytest.param(SET + bytes(900_000), 0, id="a binary value"),
        pytest.param(b"get k\r\n" * 9000, 8000, id="commands"),
        pytest.param(b"get k\r\n" * 9000, 9000, id="the last command"),
        pytest.param(GETQ * 2500, 2000, id="binary commands"),
        pytest.param(GETQ * 2500 + b"\x80", 2500, id="the last binary command"),
    ],
)
def test_all_that_is_held_is_counted(data: bytes, count: int, size: int) -> None:
    """Of a line or a value that is not whole, and of commands that are not executed."""
    before, _ = tracemalloc.get_traced_memory()
    decoder = decoder_for(LIMITS, data)
    for start in range(0, len(data), size):
        decoder.receive(bytes(memoryview(data)[start : start + size]))
        is_last = start + size >= len(data)
        execute(decoder, count if is_last else len(data))
    held, peak = tracemalloc.get_traced_memory()
    assert held - before <= decoder.buffered * GROWTH + OBJECTS
    assert peak - before <= 2.5 * len(data) + OBJECTS


def execute(decoder: Decoder, count: int) -> None:
    """Let up to a number of commands be misses."""
    for _ in range(count):
        command = decoder.next_command()
        if command is None:
            return
        command.reply(command, Result(Status.MISS))
