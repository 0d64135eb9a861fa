"""nginx in front of instances, which tests use one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.nginx import SOURCE, Nginx, instances_of
from support.process import SHARED, Pool, ServerProcess, Servers
from support.wire import Reply, exchange

_SHIPPED: Final = (SOURCE / "volcache/instances.conf").read_text()
_PARAMETERS: Final = re.findall(r"^server \S+ (.*);$", _SHIPPED, re.MULTILINE)[0]
# Those of proxy.conf and instances.conf, which a loaded machine may exceed.
_SHIPPED_TIMES: Final = ("2500ms", "5s")
PATIENT: Final = ("60s", "1s")


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

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: str = ""
    ) -> Reply:
        """Send one request to nginx."""
        return exchange(self.nginx.port, method, path, body, headers)

    def by_owner(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """Return paths by the instance that has their keys."""
        found: dict[str, list[str]] = {name: [] for name in self.instances}
        for path, name in zip(paths, instances_of(self.nginx.port, paths), strict=True):
            found[name].append(path)
        return found


@contextmanager
def running_cluster(
    folder: Path,
    own: Sequence[ServerProcess] = (),
    *,
    files: Mapping[str, str] | None = None,
    lender: Servers | None = None,
) -> Iterator[Cluster]:
    """
    Start instances, and nginx in front of them.

    Args:
        folder: Where nginx writes.
        own: The instances.
        files: As for `Nginx`.
        lender: Lends more instances until there are three.
    """
    with ExitStack() as stack:
        lent = range(3 - len(own)) if lender else ()
        started = [stack.enter_context(server) for server in own]
        started += [stack.enter_context(lender.server()) for _ in lent]  # type: ignore[union-attr]
        instances = {f"{server.ip}:{server.port}": server for server in started}
        # Ended first: its connections would keep the instances from being lent again.
        nginx = Nginx(folder / "nginx", list(instances), files=files)
        yield Cluster(nginx=stack.enter_context(nginx), instances=instances)


def timed(text: str, times: tuple[str, str]) -> str:
    """Return a file of nginx with other time-outs: of an answer, and `fail_timeout`."""
    (answer, fail), (new_answer, new_fail) = _SHIPPED_TIMES, times
    text = text.replace(answer, new_answer)
    return text.replace(f"fail_timeout={fail}", f"fail_timeout={new_fail}")


def list_of(names: Iterable[str], times: tuple[str, str] = PATIENT) -> str:
    """Return nginx's list, with the parameters that are shipped."""
    text = "".join(f"server {name} {_PARAMETERS};\n" for name in names)
    return timed(text, times)


def ringed(
    folder: Path,
    own: Sequence[ServerProcess] | int = 3,
    *,
    files: Mapping[str, str] | None = None,
    times: tuple[str, str] = PATIENT,
) -> AbstractContextManager[Cluster]:
    """
    Return a cluster of instances that know nginx's list.

    Args:
        folder: Where everything is written; the list of instance N is in `listN`, that
            before an instance was added in `before`.
        own: The instances, or their number.
        files: As for `Nginx`.
        times: For `timed`.
    """
    if isinstance(own, int):
        own = [ServerProcess(folder / f"disk{n}", settings=SHARED) for n in range(own)]
    names = [f"{server.ip}:{server.port}" for server in own]
    folder.mkdir(exist_ok=True)
    (folder / "before").write_text(list_of(names))
    for n, (name, server) in enumerate(zip(names, own, strict=True)):
        (folder / f"list{n}").write_text(list_of(names))
        lists = f"{folder}/list{n},{folder}/before"
        server.settings |= {"ring": lists, "ring_self": name}
    proxy = (SOURCE / "volcache/proxy.conf").read_text()
    assert timed(proxy, times) != proxy
    written = {
        "volcache/instances.conf": list_of(names, times),
        "volcache/proxy.conf": timed(proxy, times),
    }
    return running_cluster(folder, own, files=written | dict(files or {}))


def misdirected(server: ServerProcess) -> dict[str, int]:
    """Return how many requests an instance has refused, by kind."""
    return dict(server.stats()["requests"]["misdirected"])


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
