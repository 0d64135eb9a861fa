"""/-/ready of a process that is stopping, and /-/stats of one that serves."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest

from support.process import ServerProcess
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
