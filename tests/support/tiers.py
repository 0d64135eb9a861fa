"""A hot tier in front of servers that a test scripts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from volcache.front import Copies, HotClient
from volcache.hot.memcached import MemcachedTier
from volcache.hot.versions import restore

VERSION = b"VERSION 1.6.18\r\n"


def make_keys(
    snapshot: bytes = b"", binding: str = "", *, reads: int = 3, **limits: int
) -> Copies:
    """Return the keys of a hot tier; with a snapshot, those of an earlier process."""
    keys = Copies(reads=reads, seconds=60, **limits)
    restore(keys, snapshot, binding)
    return keys


def make_tier(
    servers: Sequence[str],
    keys: Copies,
    *,
    timeout: float = 0.05,
    item_size_max: int = 1000,
) -> MemcachedTier:
    """Return a tier, to be closed; `timeout` in seconds."""
    client = HotClient(servers, timeout=timeout, record_max=item_size_max)
    return MemcachedTier(
        servers, keys, client, timeout=timeout, item_size_max=item_size_max
    )


@contextmanager
def open_tier(*servers: str, timeout: float = 0.05) -> Iterator[MemcachedTier]:
    """Open a tier; `timeout`, in seconds, is short for servers that do not answer."""
    tier = make_tier(servers, make_keys(), timeout=timeout)
    try:
        yield tier
    finally:
        tier.close()


class FakeServer:
    """One memcached, as `MemcachedTier` sees it."""

    address, is_up = "m", True

    def __init__(self) -> None:
        """Hold no items."""
        self.items: dict[bytes, bytes] = {}

    def get(self, name: bytes) -> bytes | None:
        """Return an item."""
        return self.items.get(name)

    def set(self, name: bytes, item: bytes, _expire: int) -> bool:
        """Store an item."""
        self.items[name] = item
        return True

    def probe(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Keep the items."""


class Scripted:
    """Answers as memcached does, unless a test sets another answer."""

    def __init__(self) -> None:
        """Hold no items."""
        self.items: dict[bytes, bytes] = {}
        self.get_answer: bytes | None = None
        self.set_answer = b"STORED\r\n"
        self.is_silent = False
        self.late = threading.Event()

    def __call__(self, data: bytes, connection: socket.socket) -> None:
        """Answer one command."""
        if self.is_silent:
            self.late.wait()
        verb, *words = data.split(b"\r\n", 1)[0].split(b" ")
        if verb == b"version":
            connection.sendall(VERSION)
        elif verb == b"set":
            self.items[words[0]] = data.split(b"\r\n", 1)[1][:-2]
            connection.sendall(self.set_answer)
        elif self.get_answer is not None:
            connection.sendall(self.get_answer)
        else:
            item = self.items.get(words[0])
            found = (
                b"VALUE %s 0 %d\r\n%s\r\n" % (words[0], len(item), item)
                if item
                else b""
            )
            connection.sendall(found + b"END\r\n")


def is_up(tier: MemcachedTier) -> bool:
    """Return whether all servers are in use."""
    return all(tier.up.values())
