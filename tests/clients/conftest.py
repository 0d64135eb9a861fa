"""The servers that the clients are tested with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.memcache import MemcacheServer
from support.memcache_clients import DRIVERS, Driver
from support.memcached import MemcachedProcess


@pytest.fixture(scope="session")
def memcached_port() -> Iterator[int]:
    """Run memcached, which shows that a test expects the right thing."""
    with MemcachedProcess() as server:
        yield server.port


@pytest.fixture(scope="session")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcacheServer]:
    """Run an instance for all tests that do not stop it."""
    with MemcacheServer(tmp_path_factory.mktemp("clients")) as server:
        yield server


@pytest.fixture(params=["memcached", "volcache"])
def port(request: pytest.FixtureRequest) -> int:
    """Return the port of either, for tests that hold with both."""
    if request.param == "memcached":
        return int(request.getfixturevalue("memcached_port"))
    server: MemcacheServer = request.getfixturevalue("instance")
    return server.memcache_port


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name.replace(" ", "-"))
def kind(request: pytest.FixtureRequest) -> type[Driver]:
    """Return a client library."""
    driver: type[Driver] = request.param
    return driver
