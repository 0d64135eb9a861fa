"""A machine that is reached over a network of its own, and can disappear from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from support.process import ServerProcess

_NEAR: Final = "10.213.{}.1"
_FAR: Final = "10.213.{}.2"
# Of no machine: what is sent to it is lost.
_NOBODY: Final = "02:00:00:00:00:99"


class NoNamespacesError(RuntimeError):
    """This process may not make a network."""


class FarMachine:
    """A network namespace, connected with this one until the context ends."""

    def __init__(self) -> None:
        """Choose names and addresses; processes at the same time get others."""
        number = os.getpid() % 254
        self.name = f"far{os.getpid()}"
        self._near = f"n{os.getpid()}"
        self._own = _NEAR.format(number)
        self.address = _FAR.format(number)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """
        Make the network.

        Raises:
            NoNamespacesError: Only root may.
        """
        if os.geteuid():
            raise NoNamespacesError("a network namespace needs root")
        try:
            _ip("netns", "add", self.name)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoNamespacesError(f"ip netns add: {error}") from error
        self._stack.callback(_ip, "netns", "del", self.name)
        pair = ("type", "veth", "peer", "name", "far", "netns", self.name)
        _ip("link", "add", self._near, *pair)
        self._stack.callback(_ip, "link", "del", self._near)
        _ip("addr", "add", f"{self._own}/30", "dev", self._near)
        _ip("link", "set", self._near, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/30", "dev", "far")
        for link in ("far", "lo"):
            _ip("-n", self.name, "link", "set", link, "up")
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the network."""
        self._stack.close()

    def disappear(self) -> None:
        """Lose all packets to it from now on: nothing is refused or reset."""
        self._set_neighbour("replace", "lladdr", _NOBODY, "nud", "permanent")

    def appear(self) -> None:
        """Reach it again."""
        self._set_neighbour("del")

    def _set_neighbour(self, verb: str, *how: str) -> None:
        _ip("neigh", verb, self.address, *how, "dev", self._near)


class FarServer(ServerProcess):
    """An instance on such a machine."""

    def __init__(
        self,
        machine: FarMachine,
        port: int,
        mount_point: Path,
        settings: Mapping[str, object],
    ) -> None:
        """Start nothing yet."""
        place = {"ip": machine.address, "port": port}
        super().__init__(mount_point, settings={**settings, **place})
        self._machine = machine

    def command(self) -> Sequence[str | Path]:
        """Return the command of an instance, on that machine."""
        return ["ip", "netns", "exec", self._machine.name, *super().command()]


def _ip(*words: str) -> None:
    """Run the program `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)
