"""
Connections: find those that bjoern has open, and end them when the process stops.

bjoern has no list of its connections. So they are found from outside, among the
descriptors of the process. The kernel tells what each is doing (TCP_INFO), and one that
should go is shut down, which to bjoern looks like a disconnect by the client.

A descriptor is duplicated before it is inspected: its number may be closed and reused for
another file at any time, the duplicate stays the same socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTORS: Final = Path("/proc/self/fd")
# Fields of struct tcp_info, Linux 4.6 and later: milliseconds since data was last sent
# and last received, bytes received, segments sent with data.
_TCP_INFO: Final = struct.Struct("=44xI4xI72xQ20xI")
_INT: Final = struct.Struct("=i")


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """
    Yield a duplicate of every open connection that a listening socket accepted.

    Each duplicate is closed when the next one is requested. Connections opened or
    closed meanwhile may be missed: iterate again.
    """
    address = _local_address(listener)
    for entry in _DESCRIPTORS.iterdir():
        connection = _duplicate(entry)
        if connection is None:
            continue
        with connection:
            try:
                if _local_address(connection) != address:
                    continue
                connection.getpeername()
            except OSError:  # A listening socket, or the client has disconnected.
                continue
            yield connection


def is_idle(connection: socket.socket, *, quiet_ms: int) -> bool:
    """
    Return whether a connection waits for a request, none of which has arrived.

    The reading side of an idle connection can be shut down: a response that is still
    being sent is completed. False if in doubt, with one exception: a request whose first
    bytes arrived within the clock tick of the previous response (1 to 10 ms), and that
    has paused for `quiet_ms` since, is mistaken for idle.

    Args:
        connection: One that bjoern serves.
        quiet_ms: Milliseconds without data sent. Should exceed the time a client takes
            to continue after `100 Continue`.
    """
    try:
        if _unread_bytes(connection):
            return False
        sent_ms, received_ms, received_bytes, sent_segments = _tcp_info(connection)
    except (OSError, struct.error):  # Not TCP, or an older kernel.
        return False
    if not received_bytes:
        return received_ms >= quiet_ms  # Since the connection was opened.
    if not sent_segments:
        return False  # Its first request has not been answered.
    return received_ms >= sent_ms >= quiet_ms


def shut(connection: socket.socket, how: int) -> None:
    """Shut a connection down; does nothing if the client has disconnected."""
    try:
        connection.shutdown(how)
    except OSError:
        return


def _duplicate(entry: Path) -> socket.socket | None:
    """Return a duplicate of a descriptor; None if it is not a socket."""
    try:
        if not str(entry.readlink()).startswith("socket:"):
            return None
        duplicate = os.dup(int(entry.name))
    except OSError:  # Closed meanwhile.
        return None
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return None


def _local_address(connection: socket.socket) -> tuple[int, object]:
    """
    Return the part of the address that a listening socket and its connections share.

    That is family and port: the socket may listen on every address of the machine.
    """
    name = connection.getsockname()
    return connection.family, name[1] if isinstance(name, tuple) else name


def _tcp_info(connection: socket.socket) -> tuple[int, int, int, int]:
    """
    Return ms since data was sent, ms since received, bytes received, segments sent.

    Raises:
        OSError: Not a TCP socket.
        struct.error: The kernel has fewer fields.
    """
    data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    sent_ms, received_ms, received_bytes, sent_segments = _TCP_INFO.unpack(data)
    return sent_ms, received_ms, received_bytes, sent_segments


def _unread_bytes(connection: socket.socket) -> int:
    """Return the number of bytes that have arrived and are not read yet."""
    answer = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(_INT.size))
    return int(_INT.unpack(answer)[0])
