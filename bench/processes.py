"""
Servers to be measured: started on a free loopback port, ended by their pid.

Knows nothing of what the servers do; what they cost is read by `proc.py`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final, Self

from proc import Usage, family, resident_bytes, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

IP: Final = "127.0.0.1"
START_SECONDS: Final = 30.0
END_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.01


class ServerError(RuntimeError):
    """A server did not start, or ended too soon; the text holds its output."""


def free_port() -> int:
    """Return a loopback port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((IP, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One server process, running while the context is open."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        environment: Callable[[int], Mapping[str, str]] | None = None,
        output: Path,
    ) -> None:
        """
        Prepare a server.

        Args:
            command: Makes the command line for a port.
            environment: Makes what the environment has more than ours.
            output: Where stdout and stderr go.
        """
        self.port = free_port()
        self._command = command(self.port)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("VOLCACHE_")
        }
        self.environment = inherited | dict(
            environment(self.port) if environment else {}
        )
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's address, if it speaks HTTP."""
        return f"http://{IP}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        if self._process is None or self._process.poll() is not None:
            raise self._error("does not run")
        return self._process.pid

    def usage(self) -> Usage:
        """Return what the process and its children have used so far."""
        return usage(family(self.pid))

    def resident_bytes(self) -> int:
        """Return the memory the process and its children hold."""
        return resident_bytes(family(self.pid))

    def _error(self, what: str) -> ServerError:
        output = self._output.read_text(encoding="utf-8", errors="replace")
        return ServerError(f"{' '.join(self._command)} {what}:\n{output}")

    def _wait_until_it_listens(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            _ = self.pid  # Raises when it has ended.
            with socket.socket() as probe:
                if probe.connect_ex((IP, self.port)) == 0:
                    return
            time.sleep(POLL_SECONDS)
        raise self._error("does not listen")

    def __enter__(self) -> Self:
        """Start the server and wait until it listens."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            self._wait_until_it_listens()
        except BaseException:
            self._end()
            raise
        return self

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the server."""
        self._end()
