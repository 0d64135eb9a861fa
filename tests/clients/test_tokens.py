"""Clients that can send a token, in the text protocol and with SASL PLAIN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from support.memcache_ends import (
    SECONDS,
    Bmemcached,
    Emcache,
    MemcacheInstance,
    Pymemcache,
)

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

READ, WRITE = "token-of-reading", "token-of-writing"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcacheInstance]:
    """Run an instance with both tokens."""
    settings = {"read_token": READ, "write_token": WRITE}
    with MemcacheInstance(tmp_path_factory.mktemp("tokens"), settings) as server:
        yield server


@pytest.mark.parametrize("kind", [Emcache, Bmemcached])
def test_a_client_may_do_what_its_token_allows(
    guarded: MemcacheInstance, kind: type[Emcache | Bmemcached]
) -> None:
    """Over HTTP the same."""
    key = f"tokens/{kind.name}"
    writer = kind(guarded.memcache_port, "any", WRITE)
    writer.set(key, b"x")
    assert writer.get(key) == b"x"
    writer.close()
    reader = kind(guarded.memcache_port, "any", READ)
    assert reader.get(key) == b"x"
    with pytest.raises(reader.errors):
        reader.set(key, b"y")
    assert reader.get(key) == b"x"
    reader.close()
    headers = {"Authorization": f"Bearer {READ}"}
    answer = requests.get(f"{guarded.url}/{key}", headers=headers, timeout=SECONDS)
    assert answer.content == b"x"


def test_a_client_without_a_token_is_refused(guarded: MemcacheInstance) -> None:
    """Both ways."""
    driver = Pymemcache(guarded.memcache_port)
    with pytest.raises(driver.errors):
        driver.get("tokens/none")
    with pytest.raises(driver.errors):
        driver.set("tokens/none", b"x")
    driver.close()
