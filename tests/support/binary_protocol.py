"""Requests and replies of memcached's binary protocol, written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

HEADER: Final = Struct(">BBHBBHI4sQ")
MAGIC: Final = 0x80

GET, SET, ADD, REPLACE, DELETE, INCR, DECR, QUIT, FLUSH, GETQ = range(10)
NOOP, VERSION, GETK, GETKQ, APPEND, PREPEND, STAT = range(0x0A, 0x11)
SETQ, ADDQ, REPLACEQ, DELETEQ, INCRQ, DECRQ, QUITQ = range(0x11, 0x18)
FLUSHQ, APPENDQ, PREPENDQ, VERBOSITY, TOUCH, GAT, GATQ = range(0x18, 0x1F)
SASL_LIST, SASL_AUTH, SASL_STEP, GATK, GATKQ = range(0x20, 0x25)


class Reply(NamedTuple):
    """One reply."""

    opcode: int
    status: int
    extras: bytes
    key: bytes
    value: bytes
    opaque: bytes
    cas: int


def request(  # noqa: PLR0913 - By keyword.
    opcode: int,
    key: bytes = b"",
    value: bytes = b"",
    *,
    extras: bytes = b"",
    cas: int = 0,
    opaque: bytes = b"\1\2\3\4",
    body_size: int | None = None,
) -> bytes:
    """Return a request; its header says `body_size` if that is given."""
    body = extras + key + value
    size = len(body) if body_size is None else body_size
    header = HEADER.pack(MAGIC, opcode, len(key), len(extras), 0, 0, size, opaque, cas)
    return header + body


def put_extras(flags: int = 0, exptime: int = 0) -> bytes:
    """Return the extras of set, add and replace."""
    return flags.to_bytes(4, "big") + exptime.to_bytes(4, "big")


def arithmetic_extras(delta: int, initial: int = 0, exptime: int = 0) -> bytes:
    """Return the extras of increment and decrement."""
    return delta.to_bytes(8, "big") + initial.to_bytes(8, "big") + time_extras(exptime)


def time_extras(exptime: int) -> bytes:
    """Return the extras of touch, get and touch, and flush."""
    return exptime.to_bytes(4, "big")


def replies(data: bytes) -> Iterator[Reply]:
    """Return the replies in what a server sent; the last one may be incomplete."""
    at = 0
    while len(data) - at >= HEADER.size:
        header = HEADER.unpack_from(data, at)
        magic, opcode, key_size, extras_size, kind, status, size, opaque, cas = header
        assert (magic, kind) == (0x81, 0)
        at += HEADER.size
        if len(data) - at < size:
            return
        body = data[at : at + size]
        at += size
        assert extras_size + key_size <= size
        key_end = extras_size + key_size
        yield Reply(
            opcode,
            status,
            body[:extras_size],
            body[extras_size:key_end],
            body[key_end:],
            opaque,
            cas,
        )
