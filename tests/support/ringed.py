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
# So that a test need not wait for long; the second is that of instances.conf.
SOON: Final = {"2500ms": "300ms", "fail_timeout=5s": "fail_timeout=1s"}


def soon(text: str) -> str:
    """Return a file of nginx with shorter time-outs."""
    for usual, shorter in SOON.items():
        text = text.replace(usual, shorter)
    return text


def list_of(names: Iterable[str], *, is_soon: bool = True) -> str:
    """Return nginx's list."""
    text = "".join(f"server {name} {_PARAMETERS};\n" for name in names)
    return soon(text) if is_soon else text


@contextmanager
def ringed(
    folder: Path,
    own: Sequence[ServerProcess] | int = 3,
    *,
    files: Mapping[str, str] | None = None,
    is_soon: bool = True,
) -> Iterator[Cluster]:
    """
    Start instances and nginx, and stop them at the end.

    Args:
        folder: Where everything is written; the list of instance N is in `listN`, that
            before an instance was added in `before`.
        own: The instances, or their number.
        files: As for `Nginx`.
        is_soon: Whether time-outs are short.
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
        written = {"volcache/instances.conf": list_of(instances, is_soon=is_soon)}
        if is_soon:
            proxy = (SOURCE / "volcache/proxy.conf").read_text()
            assert soon(proxy) != proxy
            written["volcache/proxy.conf"] = soon(proxy)
        written |= files or {}
        nginx = Nginx(folder / "nginx", list(instances), files=written)
        yield Cluster(nginx=stack.enter_context(nginx), instances=instances)


def misdirected(server: ServerProcess) -> dict[str, int]:
    """Return how many requests an instance has refused, by kind."""
    return dict(server.stats()["requests"]["misdirected"])
