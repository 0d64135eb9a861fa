"""What operators see of the memcached protocol, with a real process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import requests

from support.memcache import RawClient
from support.ports import pick_port
from support.process import ServerProcess
from support.waiting import wait_until

REQUEST = re.compile(r'"(\S+) (\S+) [^"]*" (\d{3}) ')
pytestmark = pytest.mark.integration


def test_commands_are_counted_logged_and_sampled(tmp_path: Path) -> None:
    """Beside the requests over HTTP, in the same access log."""
    port, log = pick_port(), tmp_path / "access.log"
    settings = {
        "memcache_listen": f"127.0.0.1:{port}",
        "log_access": log,
        "log_slow": 1e-6,
        "log_file": tmp_path / "volcache.log",
        "volume_size": 2 << 20,
        "volume_num": 3,
    }
    with (
        ServerProcess(tmp_path / "data", settings=settings) as server,
        RawClient(("127.0.0.1", port)) as client,
    ):
        reads = b"get hot\r\n" * 1000
        commands = b"set hot 7 0 5\r\nvalue\r\n" + reads + b"get a b\r\nx\r\nquit\r\n"
        client.send(commands)
        assert client.rest().startswith(b"STORED\r\nVALUE hot 7 5\r\n")
        answer = requests.get(f"{server.url}/hot", timeout=5)
        assert (answer.content, answer.headers["X-Flags"]) == (b"value", "7")

        # The client may see the end of the connection before the server counts it.
        wait_until(
            lambda: not server.stats()["memcache"]["connections"]["open"], "the end"
        )
        stats = server.stats()
        found = stats["memcache"]
        assert (found["hits"], found["misses"], found["stored"]) == (1000, 2, 1)
        assert found["total"] == 1005
        assert sum(found["latency"]["get"]["counts"]) == 1002
        assert found["bytes_in"] == len(commands)
        assert found["bytes_out"] > 1000 * len(b"VALUE hot 7 5\r\nvalue\r\nEND\r\n")
        assert found["connections"] == {
            "open": 0,
            "accepted": 1,
            "refused": 0,
            "closed_idle": 0,
        }
        assert stats["hottest"][0]["key"] == "hot"
        row = '\nvolcache_memcache_commands_total{command="get",result="hit"} 1000.0\n'
        assert row in requests.get(f"{server.url}/-/metrics", timeout=5).text
    found = [REQUEST.search(line) for line in log.read_text().splitlines()]
    kinds = [one.groups() for one in found if one and not one[2].startswith("/-/")]
    assert None not in found
    # Those of one protocol are in their order.
    kinds = [kind for kind in kinds if kind != ("GET", "/hot", "200")]
    assert kinds[:1001] == [("set", "/hot", "201"), *[("get", "/hot", "200")] * 1000]
    assert kinds[1001:] == [
        ("get", "/a", "404"),
        ("get", "/b", "404"),
        ("unknown", "-", "400"),
        ("quit", "-", "200"),
    ]
    slow = "command.slow remote=127.0.0.1 command=set key=hot result=stored "
    assert slow in (tmp_path / "volcache.log").read_text()
