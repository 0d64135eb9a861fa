"""What is stored over one protocol is read over the other."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import requests
from pymemcache.client.base import Client
from pymemcache.serde import pickle_serde

from support.memcache import MemcacheServer
from support.memcache_clients import SECONDS
from support.process import ADMIN_TOKEN
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.integration]


@pytest.fixture
def memcache(instance: MemcacheServer) -> Iterator[Client]:
    """Connect pymemcache, which shows flags and takes any key."""
    client = Client(
        ("127.0.0.1", instance.memcache_port),
        timeout=SECONDS,
        default_noreply=False,
        allow_unicode_keys=True,
        serde=pickle_serde,
    )
    yield client
    client.close()


def test_keys_are_decoded_paths(memcache: Client, instance: MemcacheServer) -> None:
    """Any that neither protocol forbids."""
    for key in ("a b".replace(" ", "%20"), "ä/ö?", "x%2fy", "a//b/", "/x", "#", "+&="):
        url = f"{instance.url}/{quote(key, safe='/')}"
        assert memcache.set(key, b"over memcached")
        assert requests.get(url, timeout=SECONDS).content == b"over memcached"
        assert requests.put(url, data=b"over HTTP", timeout=SECONDS).ok
        assert memcache.get(key) == b"over HTTP"


def test_flags_are_a_header(memcache: Client, instance: MemcacheServer) -> None:
    """Of a PUT, too; without it they are 0."""
    url = f"{instance.url}/flags"
    value = {"a": [1, 2]}
    assert memcache.set("flags", value)
    answer = requests.get(url, timeout=SECONDS)
    assert answer.headers["X-Flags"] == "1"
    assert pickle.loads(answer.content) == value  # noqa: S301 - Ours.
    assert memcache.set("flags", "text", flags=0xFFFF_FFFF)
    answer = requests.get(url, timeout=SECONDS)
    assert answer.headers["X-Flags"] == "4294967295"
    assert requests.put(url, data=b"bytes", timeout=SECONDS).ok
    assert memcache.get("flags") == b"bytes"
    assert requests.get(url, timeout=SECONDS).headers.get("X-Flags", "0") == "0"
    number = {"X-Flags": "16"}
    assert requests.put(url, data=b"7", headers=number, timeout=SECONDS).ok
    assert memcache.raw_command("get flags", b"END\r\n").startswith(b"VALUE flags 16 1")


def test_times_to_live_of_either_protocol_hold_for_both(
    memcache: Client, instance: MemcacheServer
) -> None:
    """And change with a touch."""
    url = f"{instance.url}/ttl"
    memcache.set("ttl", b"x", expire=100)
    answer = requests.get(url, timeout=SECONDS)
    assert answer.headers["Cache-Control"] in {"max-age=100", "max-age=99"}
    memcache.touch("ttl", 1000)
    answer = requests.get(url, timeout=SECONDS)
    assert answer.headers["Cache-Control"] in {"max-age=1000", "max-age=999"}
    memcache.set("ttl", b"x", expire=int(time.time()) + 10_000)
    answer = requests.get(url, timeout=SECONDS)
    assert 9_990 <= int(answer.headers["Cache-Control"].split("=")[1]) <= 10_000
    requests.put(
        url, data=b"y", headers={"Cache-Control": "max-age=1"}, timeout=SECONDS
    )
    assert memcache.get("ttl") == b"y"
    wait_until(lambda: memcache.get("ttl") is None, "the end of its time to live")


def test_put_changes_the_cas_unique_and_cas_the_etag(
    memcache: Client, instance: MemcacheServer
) -> None:
    """So that what was read before it is not stored over it; and the reverse."""
    url = f"{instance.url}/cas"
    memcache.set("cas", b"1")
    value, unique = memcache.gets("cas")
    assert value == b"1"
    tag = requests.get(url, timeout=SECONDS).headers["ETag"]
    assert requests.put(url, data=b"2", headers={"If-Match": tag}, timeout=SECONDS).ok
    assert memcache.cas("cas", b"3", unique) is False
    value, unique = memcache.gets("cas")
    tag = requests.get(url, timeout=SECONDS).headers["ETag"]
    assert memcache.cas("cas", b"4", unique) is True
    refused = requests.put(url, data=b"5", headers={"If-Match": tag}, timeout=SECONDS)
    assert refused.status_code == 412
    assert memcache.get("cas") == b"4"


def test_purge_removes_the_values_of_both_protocols(
    memcache: Client, instance: MemcacheServer
) -> None:
    """Whoever stored it."""
    memcache.set("purged/a", b"x")
    memcache.set("kept/a", b"x")
    purge = f"{instance.url}/-/purge?prefix=purged/"
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    assert requests.post(purge, headers=headers, timeout=SECONDS).ok
    assert memcache.get_many(["purged/a", "kept/a"]) == {"kept/a": b"x"}
    assert memcache.add("purged/a", b"again") is True
    assert memcache.get("purged/a") == b"again"
