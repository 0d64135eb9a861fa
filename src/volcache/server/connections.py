"""
The connections bjoern has open, seen from outside.

bjoern tells nobody which connections it has, and closes one only when a read or a write
says so. So the draining thread finds them among the descriptors of the process, asks
the kernel what each is doing, and shuts down those that can go; bjoern then closes
them as if the client had.

A descriptor is duplicated before it is looked at. The number may be closed and given to
another file at any moment, the duplicate stays what it is.

An end for connections on which nothing moves: bjoern itself never closes one.

For an instance without nginx in front, which has time-outs of its own. A thread looks at
every connection a few times in each period; it sleeps between handfuls, so that requests
do not wait for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
import termios
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTORS: Final = Path("/proc/self/fd")
# Fields of struct tcp_info, Linux 4.6 and later: milliseconds since data was last sent
# and received, bytes received, segments with data sent.
_TCP_INFO: Final = struct.Struct("=44xI4xI72xQ20xI")
_INT: Final = struct.Struct("=i")


def accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """
    Yield a duplicate of every open connection that came in through a listening socket.

    Each is closed when the next is asked for. What comes and goes meanwhile may be
    missed: ask again.
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
            except OSError:  # A listening socket, or the peer has gone.
                continue
            yield connection


def is_idle(connection: socket.socket, *, quiet_ms: int) -> bool:
    """
    Tell whether nothing of a request has come since the last answer began.

    Then the reading side can be shut down: an answer that is still being taken is
    written to its end all the same. False whenever in doubt. One doubt remains: a
    request that began within the same clock tick as the answer before (1 to 10 ms) and
    has paused for `quiet_ms` since looks like that answer's end.

    Args:
        connection: One that bjoern serves.
        quiet_ms: How long nothing must have been sent; it should exceed the time a
            client takes to go on after `100 Continue`.

    """
    try:
        if _unread_bytes(connection):
            return False
        info = connection.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size
        )
        sent_ms, received_ms, received_bytes, sent_segments = _TCP_INFO.unpack(info)
    except (OSError, struct.error):  # Not TCP, or the kernel knows less.
        return False
    if not received_bytes:
        return bool(received_ms >= quiet_ms)  # Since it was opened.
    if not sent_segments:
        return False  # Its first request has not been answered.
    return bool(received_ms >= sent_ms >= quiet_ms)


def is_silent(connection: socket.socket, *, quiet_ms: int) -> bool:
    """
    Tell whether nothing has moved for `quiet_ms`, in either direction.

    Idle, in the middle of a request, or not taking its answer: the client does nothing.
    False whenever in doubt.
    """
    try:
        if _unread_bytes(connection):
            return False  # The client has done something; it is our turn.
        info = connection.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size
        )
        sent_ms, received_ms, _, _ = _TCP_INFO.unpack(info)
    except (OSError, struct.error):  # Not TCP, or the kernel knows less.
        return False
    return bool(min(sent_ms, received_ms) >= quiet_ms)


def shut(connection: socket.socket, how: int) -> None:
    """Shut a connection down; nothing happens when the peer was faster."""
    try:
        connection.shutdown(how)
    except OSError:
        return


def _duplicate(entry: Path) -> socket.socket | None:
    """Return a socket of its own for a descriptor, None for another kind of file."""
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
    Return what a listening socket and its connections have in common.

    That is the port, as the socket may listen on every address of the machine.
    """
    name = connection.getsockname()
    return connection.family, name[1] if isinstance(name, tuple) else name


def _unread_bytes(connection: socket.socket) -> int:
    """Return the number of bytes that have arrived and wait to be read."""
    answer = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(_INT.size))
    return int(_INT.unpack(answer)[0])


_logger: Final = logging.getLogger(__name__)
_LOOKS_A_PERIOD: Final = 4
_HANDFUL: Final = 32
_PAUSE_SECONDS: Final = 0.002


class IdleReaper:
    """Closes silent connections until it is stopped."""

    def __init__(self, listener: socket.socket, idle_timeout: float) -> None:
        """Start at once; `idle_timeout` in seconds, more than 0."""
        self._listener = listener
        self._quiet_ms = max(1, round(idle_timeout * 1000))
        self._interval = idle_timeout / _LOOKS_A_PERIOD
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                closed = self._look()
            except (
                OSError
            ) as error:  # Out of descriptors: the next look may be luckier.
                _logger.warning("reaper.failed error=%r", str(error))
                continue
            if closed:
                _logger.info("reaper.closed connections=%d", closed)

    def _look(self) -> int:
        """Look at every connection once; return how many were closed."""
        closed = 0
        for number, connection in enumerate(accepted(self._listener), 1):
            if is_silent(connection, quiet_ms=self._quiet_ms):
                shut(connection, socket.SHUT_RDWR)
                closed += 1
            if number % _HANDFUL == 0 and self._stopped.wait(_PAUSE_SECONDS):
                break
        return closed

    def stop(self) -> None:
        """Return when the thread has ended."""
        self._stopped.set()
        self._thread.join()
