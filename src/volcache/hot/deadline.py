"""
Sockets that wait until a point in time, over all their calls together.

A time-out of each call is none of the whole: a server that sends a byte now and then
would stretch it for ever.
"""

from __future__ import annotations

import socket
import time
from typing import Any


class DeadlineSocket(socket.socket):
    """A socket that waits until a point in time, over all its calls together."""

    deadline = 0.0  # of time.monotonic()

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)

    def connect(self, address: Any) -> None:  # noqa: ANN401 - As in the base class.
        """Connect, or time out."""
        self._arm()
        super().connect(address)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ANN401
        """Send all, or time out."""
        self._arm()
        super().sendall(data, flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive something, or time out."""
        self._arm()
        return super().recv(size, flags)


class DeadlineSockets:
    """The module `socket` as pymemcache uses it, with sockets that have a deadline."""

    def __init__(self, timeout: float) -> None:
        """Have none yet; `timeout` is in seconds."""
        self._timeout = timeout
        self._sockets: list[DeadlineSocket] = []
        self.deadline = 0.0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - Any name of a module.
        """Return what the module has."""
        return getattr(socket, name)

    def socket(self, *arguments: int) -> DeadlineSocket:
        """Make a socket that lives under the deadline set last."""
        made = DeadlineSocket(*arguments)
        made.deadline = self.deadline
        self._sockets = [made]
        return made

    def begin(self) -> None:
        """Let the calls that follow take as long as the time-out together."""
        self.deadline = time.monotonic() + self._timeout
        for made in self._sockets:
            made.deadline = self.deadline
