"""The distribution of keys over instances."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import requests

from support.cluster import instances_of
from support.nginx import Nginx
from support.wire import Wire
from volcache.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    from support.cluster import Cluster

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
    with Wire(cluster.nginx.port) as wire:
        answer = wire.ask(
            f"{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
    head, _, value = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), value


def test_commands_reach_the_instance_of_a_key_through_nginx(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The value that `volcache put` stores is the one under every spelling."""
    target = f"127.0.0.1:{cluster.nginx.port}"
    file, copy = tmp_path / "file", tmp_path / "copy"
    for number, key in enumerate(["a b/c", "a//b", "q?x#y", "caf\xe9", "100%"]):
        file.write_text(str(number))
        assert cli.main(["put", f"shell/{key}", str(file), target]) == 0
        assert cli.main(["get", f"shell/{key}", "-o", str(copy), target]) == 0
        assert copy.read_text() == str(number)
    assert raw(cluster, "GET", "/shell/%71%3Fx%23y")[1] == b"2"
    assert cli.main(["rm", "shell/a b/c", "-t", f"http://{target}"]) == 0
    assert cli.main(["get", "shell/a b/c", target]) == 1
    file.write_bytes(bytes(3 << 20))
    assert cli.main(["put", "k", str(file), target]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    missed, refused = err.splitlines()
    assert missed == "volcache: shell/a b/c: not found"
    assert refused.startswith(f"volcache: http://{target}: k: 413 ")


def test_keys_are_distributed_evenly(cluster: Cluster) -> None:
    """Of 30,000 keys each instance has a third, within 15 %."""
    found = Counter(
        instances_of(cluster.nginx.port, [f"/spread/{n}" for n in range(30_000)])
    )
    assert set(found) == set(cluster.instances)
    for count in found.values():
        assert 8_500 <= count <= 11_500, found


@pytest.mark.parametrize(
    ("path", "spellings"), SPELLINGS, ids=[s[0] for s in SPELLINGS]
)
def test_all_spellings_of_a_path_are_one_key(
    path: str, spellings: list[str], cluster: Cluster
) -> None:
    """A value put under one spelling is read under all, from one instance."""
    assert raw(cluster, "PUT", path, path)[0] == 200
    paths = [path, *spellings]
    assert len(set(instances_of(cluster.nginx.port, paths))) == 1
    assert [raw(cluster, "GET", p) for p in paths] == [(200, path.encode())] * len(
        paths
    )


def test_similar_paths_are_different_keys(cluster: Cluster) -> None:
    """Slashes and case are part of a key."""
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


def test_removing_an_instance_moves_only_its_keys(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The keys of the other two stay; both get some keys of the third."""
    names = list(cluster.instances)
    paths = [f"/moved/{n}" for n in range(3_000)]
    before = instances_of(cluster.nginx.port, paths)
    with Nginx(tmp_path / "nginx", names[:2]) as smaller:
        after = instances_of(smaller.port, paths)
    moved: Counter[str] = Counter()
    for old, new in zip(before, after, strict=True):
        assert old in {new, names[2]}
        moved[new] += old != new
    assert min(moved.values()) > 100
    assert moved.total() == before.count(names[2])


def test_adding_an_instance_moves_only_its_share(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A fourth gets about a quarter of the keys; no other key moves."""
    paths = [f"/moved/{n}" for n in range(3_000)]
    before = instances_of(cluster.nginx.port, paths)
    fourth = "127.0.0.1:1"  # Need not answer: X-Instance names it all the same.
    with Nginx(tmp_path / "nginx", [*cluster.instances, fourth]) as larger:
        after = instances_of(larger.port, paths)
    assert all(new in {old, fourth} for old, new in zip(before, after, strict=True))
    assert 0.15 < after.count(fourth) / len(paths) < 0.35


def test_order_of_the_list_does_not_matter(cluster: Cluster, tmp_path: Path) -> None:
    """Two nginx machines may list the instances in different orders."""
    paths = [f"/order/{n}" for n in range(600)]
    names = list(cluster.instances)
    with Nginx(tmp_path / "nginx", names[::-1]) as other:
        assert instances_of(other.port, paths) == instances_of(
            cluster.nginx.port, paths
        )
