"""The scrub of a real instance finds what somebody changed on its disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def put(server: ServerProcess, number: int) -> str:
    """Store a file of 900 kB; return its position."""
    return server.ask("PUT", f"/file-{number}", bytes(900_000)).headers["X-Position"]


def test_damage_is_found_without_a_request(tmp_path: Path) -> None:
    """It is in the log, in the metrics and in the report."""
    settings = {
        "volume_size": 2 << 20,
        "volume_num": 4,
        "max_value_size": 1 << 20,
        "scrub_rate": 10**9,
        "eviction": "fifo",
    }
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        places = [put(server, number) for number in range(5)]
        assert places[-1].startswith("2,")
        assert server.terminate() == 0
        with (tmp_path / "data" / "data" / "0").open("r+b") as file:
            file.seek(500_000)
            file.write(b"damage")
        server.start()

        wait_until(lambda: server.stats()["scrub"]["findings"]["record"], "a finding")
        metrics = server.ask("GET", "/-/metrics").text
        assert 'volcache_scrub_findings_total{kind="file"} 0.0' in metrics
        assert server.ask("GET", "/file-0").status == 404
        assert server.ask("GET", "/file-1").status == 200
        wait_until(lambda: "file=data/0 offset=64 " in server.stderr, "the log")
        assert "scrub.damaged" in server.stderr
        assert "what='file-0, 9000" in server.stderr
