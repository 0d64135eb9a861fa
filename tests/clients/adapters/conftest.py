"""The instance that the adapters are tested with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.process import ServerProcess
from volcache_client import Client

SETTINGS = {
    "volume_size": 2 << 20,
    "volume_num": 4,
    "admin_token": "of-the-operator",
    "default_ttl": 3600,
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run an instance for all tests that do not stop it."""
    folder = tmp_path_factory.mktemp("adapters")
    with ServerProcess(folder, settings=SETTINGS) as process:
        yield process


@pytest.fixture
def client(
    server: ServerProcess, request: pytest.FixtureRequest
) -> Iterator[Client[bytes]]:
    """Return a client of bytes with keys of its own."""
    with Client(
        server.url, prefix=f"{request.node.name}/", timeout=30, connect_timeout=30
    ) as opened:
        yield opened
