"""Three real instances behind a real nginx."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from support.activated import ActivatedServer
from support.nginx import Nginx
from support.process import ServerProcess
from support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SETTINGS: Final = {"volume_size": 16 << 20, "volume_num": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The running processes."""

    nginx: Nginx
    instances: dict[str, ServerProcess]  # By `host:port`, as in X-Instance.

    @property
    def url(self) -> str:
        """The address of nginx."""
        return self.nginx.url

    def others(self, name: str) -> list[ServerProcess]:
        """Return all instances but one."""
        return [server for key, server in self.instances.items() if key != name]


@contextmanager
def running_cluster(
    folder: Path,
    *,
    files: Mapping[str, str] | None = None,
    holds_sockets: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """
    Start three instances and nginx, and stop them at the end.

    Args:
        folder: Where everything is written.
        files: As for `Nginx`.
        holds_sockets: Whether the sockets outlive the instances, as with systemd.
        environment: Further variables of the first instance.

    """
    with ExitStack() as stack:
        servers: list[ServerProcess] = []
        for number in range(3):
            disk = folder / f"disk{number}"
            server: ServerProcess = (
                ActivatedServer(disk, settings=SETTINGS)
                if holds_sockets
                else ServerProcess(
                    disk,
                    settings=SETTINGS,
                    environment=None if number else environment,
                )
            )
            servers.append(server)
            if isinstance(server, ActivatedServer):
                stack.enter_context(server.listener)
            server.launch()
            stack.push(server.__exit__)
        for server in servers:
            server.wait_answering()
        instances = {f"127.0.0.1:{server.port}": server for server in servers}
        nginx = Nginx(folder / "nginx", list(instances), files=files)
        stack.enter_context(nginx)
        yield Cluster(nginx=nginx, instances=instances)


def instances_of(port: int, paths: Sequence[str]) -> list[str]:
    """
    Return the instance that each path's key belongs to, from X-Instance.

    Sends HEAD requests, 200 at a time on one connection; no key need be stored.
    """
    found: list[str] = []
    with Wire(port) as wire:
        stream = wire.socket.makefile("rb")
        for start in range(0, len(paths), 200):
            some = paths[start : start + 200]
            wire.socket.sendall(
                b"".join(
                    b"HEAD %b HTTP/1.1\r\nHost: t\r\n\r\n" % p.encode() for p in some
                )
            )
            for _ in some:
                instance = ""
                while (line := stream.readline()) not in {b"\r\n", b""}:
                    name, _, value = line.decode().partition(": ")
                    if name == "X-Instance":
                        instance = value.split()[-1]
                found.append(instance)
    return found
