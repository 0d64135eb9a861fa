"""Tokens in the binary protocol: SASL PLAIN from clients that are in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import bmemcached
import pytest
import requests
from bmemcached.exceptions import MemcachedException

from support.memcache import MemcacheServer

pytestmark = pytest.mark.integration

SMALL: Final = {"volume_size": "8MiB", "volume_num": 8}
READ: Final = "token-for-reading"
WRITE: Final = "token-for-writing"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcacheServer]:
    """Run a server that needs tokens for everything."""
    folder = tmp_path_factory.mktemp("sasl")
    settings = {**SMALL, "read_token": READ, "write_token": WRITE}
    with MemcacheServer(folder / "data", settings=settings) as found:
        yield found


def connect(server: MemcacheServer, password: str) -> Any:
    """Return a client with a token; the user may be any."""
    return bmemcached.Client(
        (str(server.settings["memcache_listen"]),),
        "any user",
        password,
        socket_timeout=10,
    )


def test_the_token_for_writing_allows_everything(server: MemcacheServer) -> None:
    """Over HTTP the value is the same."""
    client = connect(server, WRITE)
    assert client.set("sasl/a", "value", time=60)
    assert client.get("sasl/a") == "value"
    assert client.incr("sasl/count", 1, default=5) == 5
    assert client.incr("sasl/count", 2, default=5) == 7
    value, cas = client.gets("sasl/a")
    assert value == "value"
    assert not client.cas("sasl/a", "other", cas + 1)
    assert client.cas("sasl/a", "other", cas)
    assert client.get_multi(["sasl/a", "sasl/none"]) == {"sasl/a": "other"}
    client.disconnect_all()
    answer = requests.get(
        f"{server.url}/sasl/a", headers={"Authorization": f"Bearer {READ}"}, timeout=10
    )
    assert answer.content == b"other"


def test_the_token_for_reading_allows_only_that(server: MemcacheServer) -> None:
    """The connection stays open after a refusal."""
    writer = connect(server, WRITE)
    assert writer.set("sasl/b", "value")
    reader = connect(server, READ)
    assert reader.get("sasl/b") == "value"
    with pytest.raises(MemcachedException, match="Auth failure"):
        reader.set("sasl/b", "other")
    with pytest.raises(MemcachedException, match="Auth failure"):
        reader.delete("sasl/b")
    assert reader.get("sasl/b") == "value"
    writer.disconnect_all()
    reader.disconnect_all()


def test_a_client_with_a_token_works_without_tokens(tmp_path: Path) -> None:
    """SASL is unknown to the server then, which the client takes as permission."""
    with MemcacheServer(tmp_path / "data", settings=SMALL) as server:
        client = connect(server, "any")
        assert client.set("key", "value")
        assert client.get("key") == "value"
        client.disconnect_all()
