"""Tokens from clients that are in use: in the text protocol and with SASL PLAIN."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
import requests

from support.memcache import MemcacheServer
from support.memcache_clients import Bmemcached, Emcache

pytestmark = pytest.mark.integration

READ: Final = "token-for-reading"
WRITE: Final = "token-for-writing"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcacheServer]:
    """Run a server that needs tokens for everything."""
    settings = {"read_token": READ, "write_token": WRITE}
    with MemcacheServer(tmp_path_factory.mktemp("sasl"), settings) as found:
        yield found


@pytest.mark.parametrize("kind", [Bmemcached, Emcache])
def test_client_with_a_token_may_do_what_it_allows(
    server: MemcacheServer, kind: type[Bmemcached | Emcache]
) -> None:
    """Over HTTP the value is the same; the connection stays open after a refusal."""
    key = f"tokens/{kind.name}"
    with closing(kind(server.memcache_port, "any", WRITE)) as writer:
        writer.set(key, b"value", 60)
        value, unique = writer.gets(key)
        assert value == b"value"
        assert writer.cas(key, b"7", unique)
        assert not writer.cas(key, b"8", unique)
        assert writer.incr(key, 2) == 9
        assert writer.get_many([key, "none"]) == {key: b"9"}
        with closing(kind(server.memcache_port, "any", READ)) as reader:
            assert reader.get(key) == b"9"
            with pytest.raises(reader.errors):
                reader.set(key, b"other")
            with pytest.raises(reader.errors):
                reader.delete(key)
            assert reader.get(key) == b"9"
    headers = {"Authorization": f"Bearer {READ}"}
    answer = requests.get(f"{server.url}/{key}", headers=headers, timeout=10)
    assert answer.content == b"9"


def test_client_with_a_token_of_a_server_without_works(tmp_path: Path) -> None:
    """SASL is unknown to the server then, which the client takes as permission."""
    with (
        MemcacheServer(tmp_path / "data") as server,
        closing(Bmemcached(server.memcache_port, "any", "any")) as client,
    ):
        client.set("key", b"value")
        assert client.get("key") == b"value"
