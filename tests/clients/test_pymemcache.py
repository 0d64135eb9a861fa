"""What only pymemcache has: replies that are not waited for, many keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pymemcache.client.base import Client

from support.memcache_clients import SECONDS

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

_numbers = itertools.count()


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    """Connect to each server, with keys of the test's own."""
    prefix = f"pymemcache/{next(_numbers)}/".encode()
    client = Client(("127.0.0.1", port), timeout=SECONDS, key_prefix=prefix)
    yield client
    client.close()


def test_commands_without_reply_are_executed_in_order(client: Client) -> None:
    """And leave nothing in the connection."""
    for number in range(300):
        client.set("last", b"%d" % number, noreply=True)
        client.set("count", b"0", noreply=True) if not number else None
        client.incr("count", 1, noreply=True)
        client.append("last", b".", noreply=True)
        client.prepend("last", b"<", noreply=True)
        client.delete("none", noreply=True)
        client.add("last", b"not stored", noreply=True)
        client.replace("none", b"not stored", noreply=True)
        client.touch("none", 1, noreply=True)
        client.cas("last", b"not stored", 1, noreply=True)
    assert client.get("last") == b"<299."
    assert client.get("count") == b"300"
    assert client.get("none") is None


def test_many_keys_are_stored_and_read_at_once(client: Client) -> None:
    """In one command each way."""
    values = {f"{number}": b"%d" % number * number for number in range(500)}
    assert client.set_many(values, noreply=False) == []
    keys = [*values, "none"]
    assert client.get_many(keys) == values
    found = client.gets_many(keys)
    assert {key: value for key, (value, _) in found.items()} == values
    assert len({unique for _, unique in found.values()}) == len(values)
    client.delete_many([*values][:250], noreply=False)
    assert client.get_many(keys) == dict([*values.items()][250:])
