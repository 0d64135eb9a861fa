"""
The memcached protocol without a socket: bytes in, commands out.

    decoder = TextDecoder(limits)  # Or a BinaryDecoder; see `protocol.py`.
    decoder.receive(data)
    while (command := decoder.next_command()) is not None:
        result = ...  # Execute the command.
        send(command.reply(command, result))
        if isinstance(command, Simple) and command.closes:
            ...  # Close the connection when all is sent.

The caller does the rest: it reads from a socket, executes the commands and sends the
replies. Nothing here blocks, waits, knows the time or depends on how the input is cut into
pieces, and no input raises an exception.

**Order.** A command is answered before the next one is asked for. Replies are sent in the
order of the commands, joined or not.

**Memory.** A command for several keys becomes a command for each key, so that one value at
a time is in memory. A value above the limit is not held: its bytes are dropped as they
arrive, and its command says `is_too_large`. What is held of the input (`buffered`) is at
most one line and its value, and what `receive` was given last. The caller limits that: it
should not receive more while `next_command` returns commands.

**Errors.** What a client did wrong is a `Simple` command with `is_error`, whose reply is
the error, so that errors take their place among the replies. After an error the next line
is a command; if it is unknown where one begins, the command says `closes`, and no command
follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from volcache.memcache.commands import Command, WireLimits


class Decoder(ABC):
    """The input of one connection, and the commands in it; for one thread."""

    _COMMAND_BYTES_MIN: ClassVar[int]

    def __init__(self, limits: WireLimits, *, wants_credentials: bool = False) -> None:
        """
        Expect a command.

        Args:
            limits: What is read.
            wants_credentials: A token is required. While this is set, a `set` of the
                text protocol is taken for `Authenticate`, with the value "user password",
                as by memcached with -Y. SASL is unknown to a connection for which this
                was never set, as to memcached without -S.
        """
        self.wants_credentials = wants_credentials
        self._value_size_max = limits.value_size
        # What was received; read up to `_at`. A bytearray while a command is not whole.
        self._data: bytes | bytearray = b""
        self._at = 0
        self._needed = self._COMMAND_BYTES_MIN  # How much must be held to go on.
        self._skipped = 0  # How many bytes to come are skipped.
        self._is_closed = False

    @property
    def buffered(self) -> int:
        """How many bytes of memory the input takes."""
        return len(self._data)

    @property
    def is_empty(self) -> bool:
        """Whether the next byte begins a command."""
        return not self._data and not self._skipped

    def give_back(self) -> bytes:
        """
        Return what was received and not read, and forget it.

        Only after a command. Returns nothing in the middle of a command for several keys.
        """
        rest = bytes(self._data[self._at :])
        self._data, self._at = b"", 0
        return rest

    def receive(self, data: bytes) -> None:
        """Receive bytes that the client sent."""
        if self._skipped:
            size = len(data)
            data = data[self._skipped :]
            self._skipped -= size - len(data)
        if self._is_closed or not data:
            return
        held, at = self._data, self._at
        if at == len(held):
            self._data = data
        elif isinstance(held, bytearray):
            held += data  # `_at` is 0.
            return
        else:
            # Pieces are added in linear time, however small they are.
            self._data = bytearray(memoryview(held)[at:])
            self._data += data
        self._at = 0

    @abstractmethod
    def next_command(self) -> Command | None:
        """
        Return the next command; None if more bytes are needed.

        The command before must have been answered. After a command that `closes`, there
        is none.
        """

    def _go_on(self, at: int, skipped: int = 0) -> None:
        """Read from here on, after what is skipped."""
        self._needed = self._COMMAND_BYTES_MIN
        at += skipped
        size = len(self._data)
        if at < size:
            self._at = at
        else:
            # Its memory is not needed while the command is executed.
            self._data = b""
            self._at = 0
            self._skipped = at - size

    def _close(self) -> None:
        """Accept no more commands."""
        self._is_closed = True
        self._go_on(len(self._data))
