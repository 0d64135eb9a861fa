"""The server as systemd starts it: with a listening socket that it inherits."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from support.process import SOURCE, ServerProcess

# What systemd does between fork and exec.
_LAUNCH: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class ActivatedServer(ServerProcess):
    """A server on a socket that this object keeps open until the context ends."""

    def __init__(
        self, mount_point: Path, *, settings: Mapping[str, object] | None = None
    ) -> None:
        """Open the socket; nothing is started yet."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        port = self._listener.getsockname()[1]
        super().__init__(mount_point, settings={**(settings or {}), "port": port})

    def command(self) -> Sequence[str | Path]:
        """Return a command that starts the server with the socket as descriptor 3."""
        number = str(self._listener.fileno())
        return [sys.executable, "-c", _LAUNCH, number, SOURCE]

    def inherited(self) -> Sequence[int]:
        """Return the descriptor of the socket."""
        return [self._listener.fileno()]

    def __exit__(self, *error: object) -> None:
        """End the server and close the socket."""
        super().__exit__(*error)
        self._listener.close()
