"""Spellings of a key, and the instance that nginx chooses for it."""

from __future__ import annotations

import pytest
import requests

from support.cluster import Cluster, instances_of
from support.wire import exchange

pytestmark = pytest.mark.integration

SPELLINGS = [
    ("/a%20b/c", ["/a%20b%2Fc", "/%61%20b/c", "/a%20b/c?query=1", "/x/../a%20b/./c"]),
    ("/a//b", ["/a%2F/b", "/%61//b", "/a/./" + "/b"]),
    ("/caf%C3%A9", ["/caf%c3%a9", "/%63af%C3%A9?", "/x/%2e%2e/caf%C3%A9"]),
    ("/pkg/-/x.tgz", ["/pkg/%2d/x.tgz", "/pkg%2F-/x.tgz"]),
    ("//-/healthy", ["/%2F-/healthy", "//%2D/healthy"]),
    ("/q%3Fx%23y", ["/q%3fx%23%79", "/./q%3Fx%23y"]),
    ("/plus+and%25", ["/plus%2Band%25", "/plus+%61nd%25"]),
]


def raw(cluster: Cluster, method: str, path: str, body: str = "") -> tuple[int, bytes]:
    """Send a path unchanged; HTTP libraries would normalise it."""
    reply = exchange(cluster.nginx.port, method, path, body.encode())
    return reply.status, reply.body


def test_all_spellings_of_a_path_are_one_key(cluster: Cluster) -> None:
    """A value put under one spelling is read under all, from one instance."""
    for path, spellings in SPELLINGS:
        assert raw(cluster, "PUT", path, path)[0] == 200
        paths = [path, *spellings]
        assert len(set(instances_of(cluster.nginx.port, paths))) == 1
        found = [raw(cluster, "GET", p) for p in paths]
        assert found == [(200, path.encode())] * len(paths), path
    # Slashes and case are part of a key.
    assert raw(cluster, "PUT", "/n/a//b", "two")[0] == 200
    for path in ("/n/a/b", "/n/a///b", "/n/A//b", "/n/a//b/"):
        assert raw(cluster, "GET", path)[0] == 404


def test_responses_have_the_headers_of_the_instance(cluster: Cluster) -> None:
    """X-Cache, X-Position and ETag are passed on; X-Instance has the value."""
    url = f"{cluster.url}/headers"
    put = requests.put(url, data=b"value", timeout=10)
    got = requests.get(url, timeout=10)
    assert put.headers["X-Position"] == got.headers["X-Position"]
    assert got.headers["X-Cache"] == "DISK"
    assert got.headers["ETag"] == put.headers["ETag"]
    instance = cluster.instances[got.headers["X-Instance"]]
    assert requests.get(f"{instance.url}/headers", timeout=10).content == b"value"
    for other in cluster.others(got.headers["X-Instance"]):
        assert requests.get(f"{other.url}/headers", timeout=10).status_code == 404
    assert requests.get(f"{cluster.url}/none", timeout=10).headers["X-Cache"] == "MISS"
