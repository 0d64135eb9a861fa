"""Standard error has the lines of the log and nothing else, whatever clients do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import requests

from support.process import ServerProcess
from support.wire import connect, reset

pytestmark = pytest.mark.integration

DEADLINE_SECONDS: Final = 20.0
VALUE: Final = bytes(8 << 20)
ROUNDS: Final = 20
LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z [A-Z]+ +volcache")


def test_clients_that_are_gone_during_an_answer_are_not_printed(tmp_path: Path) -> None:
    """By a reset and by an end, in answers of the gate, of Python, and of both."""
    with ServerProcess(
        tmp_path, settings={"volume_size": 32 << 20, "max_value_size": len(VALUE)}
    ) as server:
        put = requests.put(f"{server.url}/big", data=VALUE, timeout=DEADLINE_SECONDS)
        assert put.status_code == 200
        for more in (b"", b"Range: bytes=0-\r\n", b"If-Match: *\r\n"):
            request = b"GET /big HTTP/1.1\r\nHost: t\r\n" + more + b"\r\n"
            for number in range(ROUNDS):
                with connect(server.port) as client:
                    client.sendall(request * 2)
                    assert client.recv(1000).startswith(b"HTTP/1.1 20")
                    if number % 2:
                        reset(client)
        whole = requests.get(f"{server.url}/big", timeout=DEADLINE_SECONDS)
        assert whole.content == VALUE
        assert server.terminate() == 0
        lines = server.stderr.splitlines()
    assert lines
    assert [line for line in lines if not LOG_LINE.match(line)] == []
