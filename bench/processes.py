"""
Servers to be measured: started on a free loopback port, ended by their pid.

Knows nothing of what the servers do; what they cost is read by `proc.py`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from machine import ROOT
from proc import Usage, family, resident_bytes, usage

# Processes are started and ended as in the tests.
sys.path.append(str(ROOT / "tests"))

from support.ports import listens, pick_port
from support.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

IP: Final = "127.0.0.1"


class Server(Program):
    """One server process, running while the context is open."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str | Path]],
        *,
        environment: Callable[[int], Mapping[str, str]] | None = None,
    ) -> None:
        """
        Prepare a server.

        Args:
            command: Makes the command line for a port.
            environment: Makes what the environment has more than ours.
        """
        super().__init__()
        self.port = pick_port(IP)
        self._command = command(self.port)
        self._environment = environment(self.port) if environment else {}

    @property
    def url(self) -> str:
        """The server's address, if it speaks HTTP."""
        return f"http://{IP}:{self.port}"

    @property
    def pid(self) -> int:
        """
        The process id while it runs.

        Raises:
            ProgramError: It has ended.
        """
        if not self.is_running:
            raise self.failure()
        return super().pid

    def command(self) -> Sequence[str | Path]:
        """Return the command line."""
        return self._command

    def environment(self) -> Mapping[str, str]:
        """Return ours and its own."""
        return {**super().environment(), **self._environment}

    def answers(self) -> bool:
        """Whether it takes connections."""
        return listens(self.port, IP)

    def usage(self) -> Usage:
        """Return what the process and its children have used so far."""
        return usage(family(self.pid))

    def resident_bytes(self) -> int:
        """Return the memory the process and its children hold."""
        return resident_bytes(family(self.pid))
