"""What the tests of nginx use one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from support.cluster import Cluster, Proxies, running_cluster
from support.nginx import Nginx, with_mode
from support.process import Servers
from support.stub_instance import StubInstance


@pytest.fixture(scope="session")
def cluster(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Run three instances behind nginx, for tests that stop and change none of them."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), lender=servers) as running:
        yield running


@pytest.fixture
def cluster_with(servers: Servers, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a function that starts nginx in front of three empty instances."""
    run = partial(running_cluster, tmp_path, lender=servers)
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(run(**options))


@pytest.fixture(scope="session")
def _stub() -> Iterator[StubInstance]:
    with StubInstance() as running:
        yield running


@pytest.fixture
def stub(_stub: StubInstance) -> StubInstance:
    """Return an instance that answers as it is told, and has received nothing."""
    _stub.received.clear()
    return _stub


@pytest.fixture(scope="session")
def _proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    with Proxies(tmp_path_factory.mktemp("proxies")) as running:
        yield running


@pytest.fixture
def nginx_with(_proxies: Proxies, stub: StubInstance) -> Iterator[Callable[..., Nginx]]:
    """Return a function that lends nginx with some files in front of `stub`."""
    with ExitStack() as stack:

        def lend(
            files: Mapping[str, str] | None = None, instance: str = stub.name
        ) -> Nginx:
            return stack.enter_context(_proxies.nginx([instance], files))

        yield lend


@pytest.fixture(params=["pinned", "failover", "growing"])
def mode(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the files of each failure mode."""
    return with_mode(request.param)
