"""nginx in front of instances, which tests use one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from support.nginx import Nginx
from support.process import Pool, ServerProcess, Servers
from support.wire import Talk, request_bytes


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

    def ask(self, method: str, path: str, body: bytes = b"") -> requests.Response:
        """Send one request to nginx."""
        return requests.request(method, self.url + path, data=body, timeout=30)

    def by_owner(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """Return paths by the instance that has their keys."""
        found: dict[str, list[str]] = {name: [] for name in self.instances}
        for path, name in zip(paths, instances_of(self.nginx.port, paths), strict=True):
            found[name].append(path)
        return found


@contextmanager
def running_cluster(
    servers: Servers,
    folder: Path,
    *,
    files: Mapping[str, str] | None = None,
    own: Sequence[ServerProcess] = (),
) -> Iterator[Cluster]:
    """
    Start nginx in front of three empty instances.

    Args:
        servers: Lends the instances.
        folder: Where nginx writes.
        files: As for `Nginx`.
        own: Instances that are started instead of as many of those.

    """
    with ExitStack() as stack:
        lent = [stack.enter_context(servers.server()) for _ in range(3 - len(own))]
        started = [stack.enter_context(server) for server in own]
        instances = {f"127.0.0.1:{server.port}": server for server in started + lent}
        # Ended first: its connections would keep the instances from being lent again.
        nginx = Nginx(folder / "nginx", list(instances), files=files)
        yield Cluster(nginx=stack.enter_context(nginx), instances=instances)


class Proxies(Pool[Nginx]):
    """Processes of nginx by their instances and files, each with an empty log."""

    def __init__(self, folder: Path) -> None:
        """Begin with none; their folders are made in a folder."""
        super().__init__(folder, _is_renewed)

    def nginx(
        self, instances: Sequence[str], files: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Nginx]:
        """Lend one whose configuration the test does not change."""
        key = (*instances, *sorted((files or {}).items()))
        return self.lend(key, lambda folder: Nginx(folder, instances, files=files))


def _is_renewed(nginx: Nginx) -> bool:
    """Empty the log; return whether nginx runs."""
    (nginx.folder / "access.log").write_text("")
    return nginx.is_running


def instances_of(port: int, paths: Sequence[str]) -> list[str]:
    """
    Return the instance that each path's key belongs to, from X-Instance.

    Sends HEAD requests, 200 at a time on one connection; no key need be stored.
    """
    found: list[str] = []
    with Talk(port) as talk:
        for start in range(0, len(paths), 200):
            some = paths[start : start + 200]
            talk.send(b"".join(request_bytes("HEAD", path) for path in some))
            for _ in some:
                named = talk.read("HEAD").headers.get("X-Instance", "")
                found.append(named.split()[-1] if named else "")
    return found
