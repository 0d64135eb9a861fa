"""/-/ready of a process that is stopping, and /-/stats of one that serves."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest
import requests

from support.process import ServerProcess
from support.stores import counted_size
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

BEGUN = b"GET /-/ready HTTP/1.1\r\nHost: test\r\n"


def test_stopping_process_is_not_ready(tmp_path: Path) -> None:
    """A request that is completed after SIGTERM gets a 503."""
    with ServerProcess(tmp_path, settings={"volume_size": 2 << 20}) as server:
        address = (server.ip, server.port)
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(BEGUN + b"\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
            connection.sendall(BEGUN)
            server.send_signal(signal.SIGTERM)
            wait_until(lambda: "stop.started" in server.stderr, "the end to begin")
            connection.sendall(b"\r\n")
            answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        assert b"not ready: the process is stopping" in answer
        assert server.wait() == 0


def test_stats_show_store_and_process(tmp_path: Path) -> None:
    """The stored value, and the id of the process."""
    settings = {"volume_size": 2 << 20, "volume_num": 3, "sync_mode": "none"}
    with ServerProcess(tmp_path, settings=settings) as server:
        requests.put(f"{server.url}/key", data=b"value", timeout=5)
        stats = requests.get(f"{server.url}/-/stats", timeout=5).json()
    assert stats["ready"]
    assert stats["process"]["pid"] == server.pid
    store = stats["store"]
    assert (store["keys"], store["mount_point"]) == (1, str(tmp_path))
    assert (store["sync_mode"], len(store["volumes"])) == ("none", 3)
    assert store["live_bytes"] == counted_size(64 + len("key") + len("value"))
