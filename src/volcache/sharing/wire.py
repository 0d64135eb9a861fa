"""
What owner and guests of a directory say to each other; see front/local.h.

Both are processes of one machine and may write to the directory, so numbers are those of
the machine. A guest that sends nonsense gets a refusal.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.store.directory import SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from volcache.store.format import Record

# Of everything that owner and guest have in common: this module, local.h and shared.h. The
# request for FACTS stays what it is.
VERSION: Final = 1
REQUEST: Final = Struct("=IIHBBBBBxQQQQ")
REPLY: Final = Struct("=IIIIHBBBBxxQQQQ")


class Operation(IntEnum):
    """What is asked for; `vc_local_operation`."""

    GET = 1  # the record of a key, which is a read of it
    PEEK = 2  # the same, which is none
    STAT = 3  # without the value
    PUT = 4
    DELETE = 5
    READS = 6  # count the reads in the value
    SHARE = 7  # let the descriptor of the shared index come with the reply
    HOLD = 16  # let no other one change anything before the connection ends
    PURGE = 18
    CLEAR = 19
    SYNC = 20
    SCAN = 21  # some keys, from a cursor on
    FACTS = 22  # numbers about the store


class Status(IntEnum):
    """What became of it; `vc_local_status`."""

    NONE = 0  # a miss, or the condition does not hold
    DONE = 1
    REFUSED = 2  # the value is the name of an error, a zero byte and its text
    BUSY = 3  # another one holds: ask again
    GONE = 4  # the owner has ended, and not done it


class If(IntEnum):
    """The condition of a change; `vc_if`."""

    ANY = 0
    ABSENT = 1
    PRESENT = 2
    SAME = 3
    OLDER = 4


ANY_EXPIRY: Final = 2**64 - 1


class Condition(NamedTuple):
    """What the record of a key must be for a change; `vc_condition`."""

    kind: int = If.ANY
    stored_us: int = 0
    expires_ms: int = ANY_EXPIRY

    def holds(self, record: Record | None) -> bool:
        """Return whether it holds for a record; None: there is none."""
        if self.kind == If.ABSENT or record is None:
            return record is None and self.kind in {If.ANY, If.ABSENT, If.OLDER}
        if self.kind == If.OLDER:
            return record.stored_us <= self.stored_us
        expires_ms = {record.expires_ms, ANY_EXPIRY}
        return self.kind != If.SAME or (
            record.stored_us == self.stored_us and self.expires_ms in expires_ms
        )


ALWAYS: Final = Condition()


class Change(NamedTuple):
    """
    A value to be stored, or a key to be deleted if `value` is None.

    The other fields are those of a `Record`; `stored_us` is 0, except of a touch.
    """

    key: bytes
    value: bytes | None
    content_type: bytes = b""
    content_encoding: bytes = b""
    cache_control: bytes = b""
    stored_us: int = 0
    expires_ms: int = 0
    flags: int = 0


def same_as(record: Record) -> Condition:
    """Return the condition that a record is still that of its key."""
    return Condition(If.SAME, record.stored_us, record.expires_ms)


def decode_request(data: bytes) -> tuple[int, Change, Condition]:
    """Return operation, fields and condition of a request that is whole."""
    length, flags, key_length, operation, kind, *rest = REQUEST.unpack_from(data)
    *lengths, stored_us, expires_ms, if_stored_us, if_expires_ms = rest
    parts, at = [], REQUEST.size
    for size in (key_length, *lengths, length):
        parts.append(data[at : at + size])
        at += size
    key, first, second, third, value = parts
    sent = None if operation == Operation.DELETE else value
    change = Change(key, sent, first, second, third, stored_us, expires_ms, flags)
    return operation, change, Condition(kind, if_stored_us, if_expires_ms)


def encode_reply(
    status: int, value: bytes = b"", record: Record | None = None
) -> bytes:
    """Return a reply."""
    if record is None:
        head = REPLY.pack(len(value), 0, 0, 0, 0, status, *(0,) * 7)
        return head + value
    headers = record[1:4]
    head = REPLY.pack(
        *(
            len(value),
            record.flags,
            record.length,
            record.checksum,
            record.volume,
            status,
        ),
        *map(len, headers),
        *(record.stored_us, record.expires_ms, record.offset, record.size),
    )
    return b"".join((head, *headers, value))


def encode_words(words: Iterable[bytes]) -> bytes:
    """Return bytes of which `decode_words` makes the words."""
    return b"".join(len(word).to_bytes(2, "little") + word for word in words)


def decode_words(data: bytes) -> list[bytes]:
    """Return words."""
    words, at = [], 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "little")
        words.append(data[at + 2 : end])
        at = end
    return words


@contextmanager
def socket_path(directory: str) -> Iterator[str]:
    """Yield a path of the socket of a directory that is short enough for the kernel."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)
