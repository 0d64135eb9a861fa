"""A listening socket: TCP, or a unix socket with its file."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from stat import S_ISSOCK
from typing import Final

from volcache.errors import ListenError

_BACKLOG: Final = 1024
# Seconds without a byte after which a client is asked whether it still exists: a client
# may keep an idle connection for ever, and one that has disappeared must not.
_KEEPALIVE_SECONDS: Final = 300
_UNIX_MASK: Final = 0o077  # As in memcached: only the user of the process may connect.
_REMEDIES: Final = {
    errno.EACCES: "use a port from 1024 on, or a directory that the user may write to",
    errno.EADDRINUSE: "stop the process that uses it, or use another port",
    errno.EADDRNOTAVAIL: "use an address of this machine, 127.0.0.1 or 0.0.0.0",
    errno.EAFNOSUPPORT: "use an IPv4 address, this machine has no IPv6",
    errno.ENOENT: "create the directory",
    errno.EPERM: "use a directory that the user may write to",
    errno.EROFS: "use a directory that can be written",
}


class ListeningSocket:
    """A socket that listens, and the file it has if it is a unix socket."""

    def __init__(self, address: str, setting: str) -> None:
        """
        Listen.

        Args:
            address: "host:port", "[IPv6]:port" or the absolute path of a unix socket. The
                file of a socket on which no process listens is replaced. Port 0 picks a
                free one.
            setting: Its name, for errors.

        Raises:
            ListenError: The address cannot be listened on. The text names the setting.
        """
        self._file: tuple[str, int, int] | None = None
        self._setting = setting
        try:
            listen = self._listen_unix if address.startswith("/") else listen_tcp
            self.socket = listen(address)
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0, "check the address")
            reason = f"{error.strerror or error}; {remedy}"
            raise _refused(setting, address, reason) from error

    @property
    def name(self) -> str:
        """The address, with the port that was picked."""
        found = self.socket.getsockname()
        if isinstance(found, str):
            return found
        host, port = found[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Close the socket and remove its file, unless another process replaced it."""
        self.socket.close()
        if self._file is None:
            return
        path, device, inode = self._file
        self._file = None
        with suppress(OSError):
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) == (device, inode):
                os.unlink(path)  # noqa: PTH108 - Paths are str here.

    def _listen_unix(self, path: str) -> socket.socket:
        _remove_unused(self._setting, path)
        listener = socket.socket(socket.AF_UNIX)
        try:
            before = os.umask(_UNIX_MASK)
            try:
                listener.bind(path)
            finally:
                os.umask(before)
            found = os.lstat(path)
            self._file = path, found.st_dev, found.st_ino
            listener.listen(_BACKLOG)
            listener.setblocking(False)  # noqa: FBT003 - The library's.
        except BaseException:
            listener.close()
            raise
        return listener


def listen_tcp(address: str) -> socket.socket:
    """
    Listen on "host:port" or "[IPv6]:port".

    Raises:
        OSError: It cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, where = found[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_options(listener)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def set_options(listener: socket.socket) -> None:
    """Set what the loops need; accepted connections inherit all but the last."""
    # Without TCP_NODELAY a response of more than one segment takes 44 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Finds out that a client has disappeared.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
    listener.setblocking(False)  # noqa: FBT003 - The library's.


def _remove_unused(setting: str, path: str) -> None:
    """
    Remove the file of a socket on which no process listens.

    Raises:
        ListenError: It is another file, or a process listens.
        OSError: It cannot be removed.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not S_ISSOCK(mode):
        raise _refused(
            setting, path, "the file exists and is not a socket; use another path"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # noqa: FBT003 - The library's.
        if probe.connect_ex(path) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    os.unlink(path)  # noqa: PTH108 - Paths are str here.


def _refused(setting: str, address: str, reason: str) -> ListenError:
    return ListenError(f"{setting}: cannot listen on {address}: {reason}")
