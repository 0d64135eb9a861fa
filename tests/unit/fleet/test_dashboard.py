"""The dashboard: its paths, and who may ask them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from support.fake_fleet import fake_fleet, free_address
from support.stats_server import add_errors
from volcache.errors import ConfigError
from volcache.fleet.collector import FleetCollector
from volcache.fleet.dashboard import Dashboard, parse_listen

HOST = "127.0.0.1:8090"
NAME = "127.0.0.1:1"


class Answer(NamedTuple):
    """What the application has answered."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """Asks the application of a dashboard."""

    def __init__(self, *sources: str) -> None:
        """Know the instances, and have asked none."""
        self.collector = FleetCollector(sources, timeout=30)
        self._app = Dashboard(self.collector, hosts=["Ops.example"])

    def ask(self, path: str, method: str = "GET", host: str = HOST) -> Answer:
        """Return the answer to a request."""
        found: list[Any] = []
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host}
        body = self._app(environ, lambda *head: found.extend(head))  # type: ignore[arg-type]
        return Answer(int(found[0][:3]), dict(found[1]), b"".join(body))


def test_names_of_other_sites_are_refused() -> None:
    """A site could let its name point here; only /healthy says nothing."""
    client = Client(NAME)
    for host, status in (
        *(("127.0.0.1:8090", 200), ("[::1]:8090", 200), ("localhost", 200)),
        *(("ops.example:8090", 200), ("", 200), ("evil.example", 421)),
        *(("127.0.0.1.evil.example", 421), ("ops.example:8090:1", 421)),
    ):
        instance = f"/instances/{NAME}/"
        for path in ("/", "/api/cluster", instance, f"{instance}stats"):
            found = client.ask(path, host=host).status
            assert found == status or (status == 200 and found == 502)
        assert client.ask("/healthy", host=host)[::2] == (200, b"ok\n")


def test_page_allows_its_own_script_only() -> None:
    """By its digest; data is not a page at all."""
    client = Client(NAME)
    for path in ("/", f"/instances/{NAME}/"):
        policy = client.ask(path).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "'sha256-" in policy
        assert "unsafe" not in policy
    for path in ("/api/cluster", "/nothing"):
        headers = client.ask(path).headers
        assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        head = client.ask(path, "HEAD")
        assert (head.body, head.headers.keys()) == (b"", headers.keys())


def test_wrong_requests_are_one_line() -> None:
    """Which says what is allowed."""
    client = Client(NAME)
    for line, answer in {
        "POST /": "405 method POST is not allowed; allowed are GET, HEAD",
        "GET /nothing": "404 no such path; the paths are /, /api/cluster, ",
        "GET /instances/": '404 no instance is called "";',
        "GET /instances/a\x0d\x0ab/": '404 no instance is called "a\\x0D\\x0Ab";',
        "GET /instances/127.0.0.1:1/x": "404 no such path; those of an instance ",
        "GET /instances/127.0.0.1:1": "301 127.0.0.1%3A1/",
        "GET /instances/127.0.0.1:1/": "200 <!doctype html>",
        "GET /instances/127.0.0.1:1/stats": "502 not asked yet",
        "GET /instances/127.0.0.1:1/metrics": f"302 http://{NAME}/-/metrics",
    }.items():
        method, path = line.split(" ", 1)
        found = client.ask(path, method)
        assert f"{found.status} {found.body.decode()}".startswith(answer), line


def test_overview_has_all_instances_the_worst_first() -> None:
    """And their totals; before the first poll, nothing is known."""
    with fake_fleet(2) as (good, ill):
        add_errors(ill.stats, "write", 1)
        for server, keys in ((good, 5), (ill, 7)):
            server.stats["store"] |= {"keys": keys, "live_bytes": 100 * keys}
        down = free_address()
        client = Client(good.url, down, ill.url)
        found = json.loads(client.ask("/api/cluster").body)
        assert found["states"] == {"unknown": 3}
        client.collector.poll()
        found = json.loads(client.ask("/api/cluster").body)
        assert [row["name"] for row in found["instances"]] == [
            *(down, ill.name, good.name),
        ]
        assert {row["machine"] for row in found["instances"]} == {"127.0.0.1"}
        assert found["states"] == {"down": 1, "degraded": 1, "ok": 1}
        total = found["total"]
        assert (total["keys"], total["live_bytes"], total["down"]) == (12, 1200, 1)
        assert found["list_problem"] is None
        answer = client.ask(f"/instances/{good.name}/stats")
        assert json.loads(answer.body)["store"]["mount_point"] == "data"
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        answer = client.ask(f"/instances/{down}/stats")
        assert (answer.status, answer.body) == (502, b"Connection refused\n")


def test_listen_is_an_address_and_a_port() -> None:
    """Anything else is named with what is allowed."""
    assert parse_listen("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_listen("[::1]:65535") == ("::1", 65535)
    for text in ("8090", "h:", ":1", "h:x", "h:65536", "::1:8090", "h:1/x", "u@h:1"):
        with pytest.raises(ConfigError, match="allowed is ADDRESS:PORT"):
            parse_listen(text)
