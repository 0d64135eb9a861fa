"""What systemd is for a process: a socket that it sends its state to."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final, Self

from support.waiting import wait_until

_MESSAGE_BYTES: Final = 1 << 16


class ServiceManager:
    """Receives messages until the context ends; each is a list of lines."""

    def __init__(self, folder: Path | None = None) -> None:
        """Listen in a folder, or at an abstract address that is unique."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # noqa: FBT003 - The library's.
        # An empty name is a free abstract one.
        self._socket.bind(str(folder / "notify") if folder else "")
        self.messages: list[list[str]] = []

    @property
    def address(self) -> str:
        """The address, as in NOTIFY_SOCKET."""
        name = self._socket.getsockname()
        return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)

    def receive(self) -> list[list[str]]:
        """Add what has arrived to the messages, and return all of them."""
        while True:
            try:
                self.messages.append(
                    self._socket.recv(_MESSAGE_BYTES).decode().split("\n")
                )
            except BlockingIOError:
                return self.messages

    @property
    def lines(self) -> list[str]:
        """All lines that have arrived."""
        return [line for message in self.receive() for line in message]

    def wait_for(self, line: str, *, times: int = 1) -> None:
        """Wait until a line has arrived so often."""
        wait_until(lambda: self.lines.count(line) >= times, line)

    def environment(self, watchdog_seconds: float = 0) -> dict[str, str]:
        """Return the variables that systemd sets."""
        found = {"NOTIFY_SOCKET": self.address}
        if watchdog_seconds:
            found["WATCHDOG_USEC"] = str(round(watchdog_seconds * 1e6))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
