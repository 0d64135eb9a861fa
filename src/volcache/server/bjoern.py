"""
bjoern: listen, and serve until told to stop. The only import of bjoern.

How serving ends is in `stopper.py`.

A listening socket that another process opened: systemd's socket activation.

The socket outlives the process. While nobody accepts, during a restart, what connects
waits in the kernel's queue instead of being refused.

Source: sd_listen_fds(3). The variables LISTEN_PID and LISTEN_FDS say that this very
process was given descriptors, from number 3 on.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

import bjoern

from volcache.errors import ListenError
from volcache.server.drain import drained_by_signal

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from wsgiref.types import WSGIApplication

_BACKLOG: Final = 1024
_WHAT_TO_DO: Final = {
    errno.EACCES: "take a port from 1024 on, or allow CAP_NET_BIND_SERVICE",
    errno.EADDRINUSE: "end the process that has it, or take another port (0: any free)",
    errno.EADDRNOTAVAIL: "take an ip this machine has, 127.0.0.1 or 0.0.0.0",
    errno.EAFNOSUPPORT: "take an IPv4 address, this machine has no IPv6",
}


def listen(ip: str, port: int) -> socket.socket:
    """
    Open a listening socket.

    Args:
        ip: An IPv4 or IPv6 address of this machine.
        port: 0 to 65535; 0 takes any free one, see `getsockname`.

    Returns:
        A socket for `serve`; the caller closes it.

    Raises:
        ListenError: The address cannot be listened on; names it and what to do.

    """
    is_ipv6 = ":" in ip
    listener: socket.socket | None = None
    try:
        listener = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these two. Without the first, an answer of more
        # than one segment takes 44 ms; the second finds out that a client is gone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.bind((ip, port))
        listener.setblocking(False)  # noqa: FBT003 - The library's signature.
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        where = f"[{ip}]:{port}" if is_ipv6 else f"{ip}:{port}"
        advice = _WHAT_TO_DO.get(error.errno or 0, "check ip and port")
        raise ListenError(
            f"cannot listen on {where}: {error.strerror or error}; {advice}"
        ) from error
    return listener


def serve(
    listener: socket.socket,
    app: WSGIApplication,
    *,
    drain_seconds: float = 3.0,
    owns_listener: bool = True,
    on_draining: Callable[[], None] = lambda: None,
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """
    Answer requests until SIGTERM or SIGINT; main thread only.

    On the first signal no more connections are accepted, idle ones are closed, and
    requests on their way are answered, for `drain_seconds`; then all are cut. Further
    signals change nothing. Returns when the last connection is closed, with signal
    handlers and mask as they were. The listening socket is not closed.

    Args:
        listener: As `listen` makes it, or inherited; non-blocking.
        app: Called once for each request; must never raise.
        drain_seconds: How long requests may take to end, 0 or more.
        owns_listener: Whether the socket ends with this process. If so, connections
            are refused while draining; an inherited one stays open, and what comes
            waits for the next process.
        on_draining: Called once when the end begins, by another thread; must not raise.
        on_hangup: Called for SIGHUP, from a thread of its own; must not raise. Needs
            `hold_hangups` before. None leaves the signal as it is.

    """
    with drained_by_signal(
        listener,
        drain_seconds=drain_seconds,
        owns_listener=owns_listener,
        on_draining=on_draining,
        on_hangup=on_hangup,
    ):
        bjoern.server_run(listener, app)


FIRST_DESCRIPTOR: Final = 3
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def activated_listener(environ: MutableMapping[str, str]) -> socket.socket | None:
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
