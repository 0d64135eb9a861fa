"""
The memcached protocol without a socket: bytes in, commands out, replies out.

    connection = Connection(limits)
    connection.receive(data)
    while (command := connection.next_command()) is not None:
        result = ...  # Execute the command.
        send(connection.reply(command, result))
        if isinstance(command, Simple) and command.closes:
            ...  # Close the connection when all is sent.

The caller does the rest: it reads from a socket, executes the commands and sends what
`reply` returns. Nothing here blocks, waits, knows the time or depends on how the input is
cut into pieces, and no input raises an exception.

**Order.** A command is answered before the next one is asked for. Replies are sent in the
order of the commands, joined or not.

**Memory.** A command for several keys becomes a command for each key, so that one value at
a time is in memory. A value above the limit is not held: its bytes are dropped as they
arrive, and its command says `is_too_large`. What is held of the input (`buffered`) is at
most one line or value, and what `receive` was given last. The caller limits that: it should
not receive more while `next_command` returns commands.

**Errors.** What a client did wrong is a `Simple` command with `is_error`, whose reply is
the error, so that errors take their place among the replies. After an error the next line
is a command; if it is unknown where one begins, the command says `closes`, and no command
follows.

The first byte decides which protocol a connection speaks: 0x80 is the binary protocol, all
others are the text protocol, with the meta commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from volcache.memcache.binary import BinaryCodec
from volcache.memcache.text import TextCodec

if TYPE_CHECKING:
    from volcache.memcache.commands import Command, Result

_BINARY_MAGIC: Final = 0x80


class WireLimits(NamedTuple):
    """What is read from a connection; as in the settings."""

    key_size: int  # bytes
    value_size: int  # bytes; longer values are skipped


class Codec(Protocol):
    """One protocol on one connection."""

    wants_credentials: bool

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""

    def receive(self, data: bytes) -> None:
        """Take bytes that the client sent."""

    def next_command(self) -> Command | None:
        """Return the next command; None if more bytes are needed."""

    def reply(self, command: Command, result: Result) -> bytes:
        """Return the reply to a command; empty for none."""


class Connection:
    """The protocol of one connection; for one thread."""

    def __init__(self, limits: WireLimits, wants_credentials: bool = False) -> None:  # noqa: FBT001, FBT002
        """
        Expect the first byte.

        Args:
            limits: What is read.
            wants_credentials: A token is required. While this is set, a `set` of the
                text protocol is taken for `Authenticate`, with the value "user password",
                as by memcached with -Y.
        """
        self._limits = limits
        self._wants_credentials = wants_credentials
        self._codec: Codec | None = None

    @property
    def wants_credentials(self) -> bool:
        """Whether a token is required that this connection has not given."""
        codec = self._codec
        return self._wants_credentials if codec is None else codec.wants_credentials

    @wants_credentials.setter
    def wants_credentials(self, value: bool) -> None:
        self._wants_credentials = value
        if self._codec is not None:
            self._codec.wants_credentials = value

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""
        return 0 if self._codec is None else self._codec.buffered

    def receive(self, data: bytes) -> None:
        """Take bytes that the client sent."""
        codec = self._codec
        if codec is None:
            if not data:
                return
            codec = self._codec = self._choose(data[0])
        codec.receive(data)

    def next_command(self) -> Command | None:
        """
        Return the next command; None if more bytes are needed.

        The command before must have been answered. After a command that `closes`, there
        is none.
        """
        codec = self._codec
        return None if codec is None else codec.next_command()

    def reply(self, command: Command, result: Result) -> bytes:
        """Return the reply to the last command; empty for none ("noreply")."""
        codec = self._codec
        return b"" if codec is None else codec.reply(command, result)

    def _choose(self, first: int) -> Codec:
        if first == _BINARY_MAGIC:
            return BinaryCodec(self._limits, wants_credentials=self._wants_credentials)
        return TextCodec(self._limits, wants_credentials=self._wants_credentials)
