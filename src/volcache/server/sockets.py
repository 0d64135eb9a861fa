"""
Listening sockets: opened, or inherited from systemd.

An inherited socket is one that systemd opened (socket activation). It outlives the
process: while no process accepts, as during a restart, new connections wait in the
kernel's queue instead of being refused. sd_listen_fds(3) defines the protocol: LISTEN_PID
and LISTEN_FDS state that this process was passed descriptors, from number 3 on.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

from volcache.errors import ListenError
from volcache.memcache.sockets import listen_tcp, set_options

if TYPE_CHECKING:
    from collections.abc import MutableMapping

FIRST_DESCRIPTOR: Final = 3
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_REMEDIES: Final = {
    errno.EACCES: "use a port from 1024 on, or grant CAP_NET_BIND_SERVICE",
    errno.EADDRINUSE: "stop the process that uses it, or use another port (0: any free)",
    errno.EADDRNOTAVAIL: "use an ip of this machine, 127.0.0.1 or 0.0.0.0",
    errno.EAFNOSUPPORT: "use an IPv4 address, this machine has no IPv6",
}


def listen(ip: str, port: int) -> socket.socket:
    """
    Open a listening socket.

    Args:
        ip: An IPv4 or IPv6 address of this machine.
        port: 0 to 65535; 0 picks a free one, see `getsockname`.

    Returns:
        A socket that does not block; the caller closes it.

    Raises:
        ListenError: The address cannot be listened on. The text names the remedy.
    """
    where = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    try:
        return listen_tcp(where)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check ip and port")
        raise ListenError(
            f"cannot listen on {where}: {error.strerror or error}; {remedy}"
        ) from error


def url_of(listener: socket.socket) -> str:
    """Return the URL of a server that listens on a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def activated_listener(environ: MutableMapping[str, str]) -> socket.socket | None:
    """
    Take over the listening socket that was passed to this process, if any.

    Args:
        environ: The environment. The variables are removed from it, so that no child
            process takes them for its own.

    Returns:
        A socket that does not block; the caller closes it and must not shut it down.
        None if none was passed, or if it was passed to another process.

    Raises:
        ListenError: Not exactly one socket was passed, or it does not listen for TCP.
    """
    pid, count, _ = (environ.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()):
        return None
    if count != "1":
        raise ListenError(
            f"{count or 'no'} listening sockets were passed; pass one, by one"
            " ListenStream of an IP address and a port"
        )
    try:
        # Child processes must not inherit the descriptor.
        os.set_inheritable(FIRST_DESCRIPTOR, False)  # noqa: FBT003 - The library's.
        listener = socket.socket(fileno=FIRST_DESCRIPTOR)
    except OSError as error:
        raise ListenError(
            f"descriptor {FIRST_DESCRIPTOR} is not a socket: {error.strerror}; pass one,"
            " by one ListenStream of an IP address and a port"
        ) from error
    try:
        _require_tcp_listener(listener)
        set_options(listener)
    except BaseException:
        listener.close()
        raise
    return listener


def _require_tcp_listener(listener: socket.socket) -> None:
    """Raise `ListenError` if a socket does not listen for TCP."""
    is_tcp = (
        listener.family in {socket.AF_INET, socket.AF_INET6}
        and listener.type == socket.SOCK_STREAM
    )
    if not is_tcp or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ListenError(
            f"descriptor {FIRST_DESCRIPTOR} does not listen for TCP; use a ListenStream"
            " of an IP address and a port, and Accept=no"
        )
