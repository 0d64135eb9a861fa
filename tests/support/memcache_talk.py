"""The memcached protocol over a small store, without sockets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from support import binary_protocol as wire
from support.refusing_disk import RefusingDisk
from support.stores import VOLUME_SIZE, FakeClock, open_store
from volcache.access import Access
from volcache.cache import Cache
from volcache.front import CommandFacts, Commands
from volcache.hot.tier import HotTier
from volcache.memcache.command_log import CommandLog, result_of
from volcache.memcache.commands import Simple, WireLimits
from volcache.memcache.decoder import Decoder
from volcache.memcache.executor import Executor, ValueLimits
from volcache.memcache.protocol import decoder_for
from volcache.memcache.service import Service
from volcache.memcache.statistics import ServerFacts, ServerStatistics
from volcache.monitoring.commands import CommandStats
from volcache.tokens import Refusals

VALUE_SIZE_MAX = 1000
# As `vc_mc_step` numbers them.
_NEXT, _MORE, _PASS, _COLD, _FLUSH = range(5)


class Talk:
    """A client and its server: what is sent is executed at once."""

    def __init__(
        self,
        directory: Path,
        access: Access | None = None,
        *,
        value_size_max: int = VALUE_SIZE_MAX,
        keys: Iterable[bytes] = (b"a", b"b"),
        hot: HotTier | None = None,
        **limits: int,
    ) -> None:
        """
        Open the store, and connect.

        Args:
            directory: Of the store.
            access: As of the service.
            value_size_max: The limit of a value.
            keys: That a connection finds deleted. A flush would take a volume each time.
            hot: A tier in front of the store, which then drops nothing for want of space:
                which keys it would drop depends on who is asked for a copy.
            limits: As of the executor, where not the same.
        """
        self.clock = FakeClock()
        self.disk = RefusingDisk()
        self.store = open_store(
            directory,
            clock=self.clock,
            fs=self.disk,
            volume_size=1 << 24 if hot else max(VOLUME_SIZE, 16 * value_size_max),
        )
        self._keys = list(keys)
        self._wire_limits = WireLimits(250, value_size_max)
        self.stats = CommandStats()
        self.refused = {"read": 0, "write": 0, "admin": 0}
        cache = Cache(self.store, hot)
        sizes = {"key_size": 250, "value_size": value_size_max}
        facts = ServerFacts("127.0.0.1:11211", 100, value_size_max)
        self.executor = Executor(
            cache,
            ValueLimits(**sizes | limits),
            clock=lambda: self.clock.now_ms * 1_000_000,
        )
        self.service = Service(
            self.executor,
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
        self.close()

    def close(self) -> None:
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
            replies += self._execute(self.decoder, piece)
        return replies

    def _execute(self, decoder: Decoder, data: bytes) -> bytes:
        """Execute all commands that are whole with some bytes; return the replies."""
        replies = b""
        decoder.wants_credentials = self.session.wants_credentials
        decoder.receive(data)
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


class NativeTalk(Talk):
    """The same with the commands in C, which pass some to Python."""

    # Of replies: little, so that they are often full.
    OUT_BYTES = 16384

    def __init__(self, *args: Any, **more: Any) -> None:
        """Open the store, and connect."""
        self.sampled: list[bytes] = []
        self.lines: list[str] = []
        self.passed = 0
        self._commands: Commands | None = None
        super().__init__(*args, **more)
        log = CommandLog(0, lambda _: (0, 0), add=self.lines.append)
        facts = CommandFacts(self.executor, self.stats, log, self.sampled.append)
        self._commands = Commands(facts, self.OUT_BYTES)
        self.connect()

    def connect(self, remote: str = "1.1.1.1") -> Self:
        """Begin a connection, to an empty store a second later."""
        super().connect(remote)
        self._unread = b""
        self._is_passing = False
        if self._commands is not None:
            self._commands.connect(remote, **self._permissions())
        return self

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""
        return super().buffered + len(self._unread)

    def _permissions(self) -> dict[str, bool]:
        names = ("may_read", "may_write", "wants_credentials")
        return {name: getattr(self.session, name) for name in names}

    def ask(self, *pieces: bytes) -> bytes:
        """Send pieces; return the replies."""
        replies = b""
        commands = self._commands
        assert commands is not None
        for piece in filter(None, pieces):
            if self.decoder is None:
                self.decoder = self.decoder_for(piece)
            self._unread += piece
            self.session.renew(self.service.access)
            commands.allow(**self._permissions())
            replies += self._run(commands, self.decoder)
            if self.is_closed:
                self._unread = b""
        commands.take()
        return replies

    def _run(self, commands: Commands, decoder: Decoder) -> bytes:
        """Let the commands in C and Python use what is unread."""
        replies = b""
        needed = 1
        while len(self._unread) >= needed and not self.is_closed:
            if self._is_passing:
                replies += self._pass(commands, decoder)
                continue
            step, used, prefix = commands.execute(self._unread)
            self._unread = self._unread[used:]
            if step == _COLD:
                commands.read_cold()
            elif step == _MORE:
                needed = commands.needed()
                assert needed > len(self._unread)
            elif step == _PASS:
                self._is_passing = True
                replies += commands.replies() + self._execute(decoder, prefix)
                self.passed += 1
            elif step == _FLUSH:
                full = commands.replies()
                assert full
                replies += full
        return replies + commands.replies()

    def _pass(self, commands: Commands, decoder: Decoder) -> bytes:
        """Pass a little; Python is done when it holds nothing."""
        if self._unread[0] == 0x80:
            head = self._unread[:24]
            size = 24 + (wire.HEADER.unpack(head)[6] if len(head) == 24 else 0)
        else:
            size = (self._unread.find(b"\n") + 1) or len(self._unread)
        data, self._unread = self._unread[:size], self._unread[size:]
        replies = self._execute(decoder, data)
        self._is_passing = not decoder.is_empty
        commands.allow(**self._permissions())
        return replies
