"""The memcached protocol over a small store, without sockets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from support.refusing_disk import RefusingDisk
from support.stores import VOLUME_SIZE, FakeClock, open_store
from volcache.access import Access
from volcache.cache import Cache
from volcache.memcache.command_log import result_of
from volcache.memcache.commands import Simple, WireLimits
from volcache.memcache.decoder import Decoder
from volcache.memcache.executor import Executor, ValueLimits
from volcache.memcache.protocol import decoder_for
from volcache.memcache.service import Service
from volcache.memcache.statistics import ServerFacts, ServerStatistics
from volcache.monitoring.commands import CommandStats
from volcache.tokens import Refusals

VALUE_SIZE_MAX = 1000


class Talk:
    """A client and its server: what is sent is executed at once."""

    def __init__(
        self,
        directory: Path,
        access: Access | None = None,
        *,
        value_size_max: int = VALUE_SIZE_MAX,
        keys: Iterable[bytes] = (b"a", b"b"),
        **limits: int,
    ) -> None:
        """
        Open the store, and connect.

        Args:
            directory: Of the store.
            access: As of the service.
            value_size_max: The limit of a value.
            keys: That a connection finds deleted. A flush would take a volume each time.
            limits: As of the executor, where not the same.
        """
        self.clock = FakeClock()
        self.disk = RefusingDisk()
        self.store = open_store(
            directory,
            clock=self.clock,
            fs=self.disk,
            volume_size=max(VOLUME_SIZE, 16 * value_size_max),
        )
        self._keys = list(keys)
        self._wire_limits = WireLimits(250, value_size_max)
        self.stats = CommandStats()
        self.refused = {"read": 0, "write": 0, "admin": 0}
        cache = Cache(self.store)
        sizes = {"key_size": 250, "value_size": value_size_max}
        facts = ServerFacts("127.0.0.1:11211", 100, value_size_max)
        self.service = Service(
            Executor(
                cache,
                ValueLimits(**sizes | limits),
                clock=lambda: self.clock.now_ms * 1_000_000,
            ),
            ServerStatistics(cache, self.stats, facts),
            Refusals(self.refused, clock=self._seconds),
            access=access,
            may_flush=True,
            clock=self._seconds,
        )
        self.connect()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.store.close()

    def _seconds(self) -> float:
        return self.clock.now_ms / 1000

    def connect(self, remote: str = "1.1.1.1") -> Self:
        """Begin a connection, to an empty store a second later."""
        for key in self._keys:
            self.store.delete(key)
        self.clock.advance(1)
        self._first_cas = self.clock.now_ms * 1000
        self.session = self.service.session(remote)
        self.decoder: Decoder | None = None
        self.is_closed = False
        return self

    def decoder_for(self, data: bytes) -> Decoder:
        """Return what reads a connection that begins with some bytes."""
        return decoder_for(self._wire_limits, data)

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""
        return 0 if self.decoder is None else self.decoder.buffered

    def ask(self, *pieces: bytes) -> bytes:
        """Send pieces; return the replies."""
        replies = b""
        for piece in filter(None, pieces):
            if self.decoder is None:
                self.decoder = self.decoder_for(piece)
            decoder = self.decoder
            decoder.wants_credentials = self.session.wants_credentials
            decoder.receive(piece)
            while (command := decoder.next_command()) is not None:
                assert not self.is_closed
                result = self.service.execute(self.session, command)
                name = result_of(command, result)
                self.stats.answers[command.name, name].observe(0, 1)
                replies += command.reply(command, result)
                self.is_closed = isinstance(command, Simple) and command.closes
                decoder.wants_credentials = self.session.wants_credentials
        return replies

    def say(self, lines: str, *, in_bytes: bool = False) -> str:
        """
        Send lines of text, separated by ";"; return the replies in the same form.

        "@0" is the cas unique of the first value that the connection has stored, "@1" that
        of the second; "in_bytes" sends each byte alone.
        """
        lines = re.sub(r"@(\d)", lambda n: str(self._first_cas + int(n[1])), lines)
        data = f"{lines};".replace(";", "\r\n").encode("latin-1")
        pieces = [bytes([one]) for one in data] if in_bytes else [data]
        replies = self.ask(*pieces).decode("latin-1").replace("\r\n", ";")
        found = re.sub(
            r"17\d{14}", lambda cas: f"@{int(cas[0]) - self._first_cas}", replies
        )
        return found.removesuffix(";")

    def check(self, transcript: str) -> None:
        """
        Say what follows ">" at once and byte by byte; compare the replies with "<".

        Each begins with an empty store after the replies to the one before.
        """
        rows = re.findall(r"((?:^ *> .*\n)+)((?:^ *< .*\n)*)", transcript, re.MULTILINE)
        assert rows
        for in_bytes in (False, True):
            for row in rows:
                asked, replies = (
                    ";".join(re.findall(r"^ *[<>] (.*)$", half, re.MULTILINE))
                    for half in row
                )
                self.connect()
                assert self.say(asked, in_bytes=in_bytes) == replies, asked
                assert self.buffered == 0, asked
