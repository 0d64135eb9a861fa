"""The addresses that an instance listens on, as the settings say."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.memcache.sockets import ListeningSocket
from volcache.server.sockets import activated_listener, listen, url_of

if TYPE_CHECKING:
    import socket
    from collections.abc import MutableMapping
    from contextlib import ExitStack

_logger: Final = logging.getLogger("volcache")


class Addresses(NamedTuple):
    """Listening sockets; None: it is not served."""

    http: socket.socket | None
    is_inherited: bool  # Whether `http` outlives the process.
    admin: ListeningSocket | None  # None: `http` also serves `/-/`.
    memcache: ListeningSocket | None

    def log_started(self) -> None:
        """Log where clients are served."""
        if self.memcache is not None:
            _logger.info("memcache.started address=%s", self.memcache.name)
        if self.admin is not None:
            _logger.info("admin.started address=%s", self.admin.name)
        if self.http is not None:
            _logger.info("serving.started url=%s", url_of(self.http))


def open_addresses(
    environ: MutableMapping[str, str],
    closing: ExitStack,
    *,
    ip: str,
    port: int,
    admin_listen: str,
    memcache_listen: str,
) -> Addresses:
    """
    Listen.

    Args:
        environ: See `activated_listener`.
        closing: Closes the sockets.
        ip: The setting of that name, as the following.
        port: 0: HTTP is not served if `memcache_listen` is set.
        admin_listen: Empty: none.
        memcache_listen: Empty: none.

    Raises:
        ListenError: An address cannot be listened on.
    """
    inherited = http = activated_listener(environ)
    if http is None and (port or not memcache_listen):
        http = listen(ip, port)
    if http is not None:
        closing.callback(http.close)

    def opened(setting: str, address: str) -> ListeningSocket | None:
        if not address:
            return None
        found = ListeningSocket(address, setting)
        closing.callback(found.close)
        return found

    return Addresses(
        http,
        inherited is not None,
        opened("admin_listen", admin_listen),
        opened("memcache_listen", memcache_listen),
    )
