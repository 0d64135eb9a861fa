"""
A listening socket that another process opened: systemd's socket activation.

The socket outlives the process. While nobody accepts, during a restart, what connects
waits in the kernel's queue instead of being refused.

Source: sd_listen_fds(3). The variables LISTEN_PID and LISTEN_FDS say that this very
process was given descriptors, from number 3 on.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from volcache.errors import ListenError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

FIRST_DESCRIPTOR: Final = 3
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def inherited_listener(environ: MutableMapping[str, str]) -> socket.socket | None:
    """
    Take over the listening socket this process was given, if any.

    Args:
        environ: The environment; the variables are taken out, so that no child takes
            them for its own.

    Returns:
        A socket for `serve`, which the caller closes and which is not this process's
        to shut down; None when there is none, or it was meant for another process.

    Raises:
        ListenError: More or fewer than one socket, or not one that listens for TCP.

    """
    pid, count, _ = (environ.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()):
        return None
    if count != "1":
        raise ListenError(
            f"given {count or 'no'} sockets to listen on; give one, by one ListenStream"
            " of an IP address and a port"
        )
    try:
        # Closes the descriptor in programs that are started from here.
        os.set_inheritable(FIRST_DESCRIPTOR, False)  # noqa: FBT003 - The library's.
        listener = socket.socket(fileno=FIRST_DESCRIPTOR)
    except OSError as error:
        raise ListenError(
            f"descriptor {FIRST_DESCRIPTOR} is no socket: {error.strerror}; give one, by"
            " one ListenStream of an IP address and a port"
        ) from error
    try:
        _prepare(listener)
    except BaseException:
        listener.close()
        raise
    return listener


def _prepare(listener: socket.socket) -> None:
    """Set what `server.listen` sets, as the one who opened it may not have."""
    is_tcp = (
        listener.family in {socket.AF_INET, socket.AF_INET6}
        and listener.type == socket.SOCK_STREAM
    )
    if not is_tcp or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ListenError(
            f"descriptor {FIRST_DESCRIPTOR} does not listen for TCP; give a ListenStream"
            " of an IP address and a port, and Accept=no"
        )
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setblocking(False)  # noqa: FBT003 - The library's signature.
