"""Instances that know nginx's list, behind nginx with the parameters that are shipped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from support.cluster import Cluster
from support.nginx import SOURCE, Nginx
from support.process import SHARED, ServerProcess

_SHIPPED: Final = (SOURCE / "volcache/instances.conf").read_text()
_PARAMETERS: Final = re.findall(r"^server \S+ (.*);$", _SHIPPED, re.MULTILINE)[0]
# Those of proxy.conf and instances.conf, which a loaded machine may exceed.
_SHIPPED_TIMES: Final = ("2500ms", "5s")
PATIENT: Final = ("60s", "1s")


def timed(text: str, times: tuple[str, str]) -> str:
    """Return a file of nginx with other time-outs: of an answer, and `fail_timeout`."""
    (answer, fail), (new_answer, new_fail) = _SHIPPED_TIMES, times
    text = text.replace(answer, new_answer)
    return text.replace(f"fail_timeout={fail}", f"fail_timeout={new_fail}")


def list_of(names: Iterable[str], times: tuple[str, str] = PATIENT) -> str:
    """Return nginx's list."""
    text = "".join(f"server {name} {_PARAMETERS};\n" for name in names)
    return timed(text, times)


@contextmanager
def ringed(
    folder: Path,
    own: Sequence[ServerProcess] | int = 3,
    *,
    files: Mapping[str, str] | None = None,
    times: tuple[str, str] = PATIENT,
) -> Iterator[Cluster]:
    """
    Start instances and nginx, and stop them at the end.

    Args:
        folder: Where everything is written; the list of instance N is in `listN`, that
            before an instance was added in `before`.
        own: The instances, or their number.
        files: As for `Nginx`.
        times: For `timed`.
    """
    if isinstance(own, int):
        own = [ServerProcess(folder / f"disk{n}", settings=SHARED) for n in range(own)]
    instances = {f"{server.ip}:{server.port}": server for server in own}
    folder.mkdir(exist_ok=True)
    (folder / "before").write_text(list_of(instances))
    with ExitStack() as stack:
        for n, (name, server) in enumerate(instances.items()):
            (folder / f"list{n}").write_text(list_of(instances))
            lists = f"{folder}/list{n},{folder}/before"
            server.settings |= {"ring": lists, "ring_self": name}
            stack.enter_context(server)
        proxy = (SOURCE / "volcache/proxy.conf").read_text()
        assert timed(proxy, times) != proxy
        written = {
            "volcache/instances.conf": list_of(instances, times),
            "volcache/proxy.conf": timed(proxy, times),
        }
        written |= files or {}
        nginx = Nginx(folder / "nginx", list(instances), files=written)
        yield Cluster(nginx=stack.enter_context(nginx), instances=instances)


def misdirected(server: ServerProcess) -> dict[str, int]:
    """Return how many requests an instance has refused, by kind."""
    return dict(server.stats()["requests"]["misdirected"])
