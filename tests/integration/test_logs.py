"""The logs of a running server, and their rotation."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path

import pytest
import requests

from support.load import Load
from support.memcache import MemcacheServer
from support.process import SHARED, ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_rotation_under_load_loses_no_line(tmp_path: Path) -> None:
    """Rename and SIGHUP: every response has exactly one line."""
    access, events = tmp_path / "access.log", tmp_path / "event.log"
    settings = {**SHARED, "log_access": access, "log_file": events}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        with Load(server.port, clients=3) as load:
            for turn in range(4):
                load.wait_for(200)
                access.rename(tmp_path / f"access.log.{turn}")
                events.rename(tmp_path / f"event.log.{turn}")
                server.send_signal(signal.SIGHUP)
                wait_until(lambda: access.exists() and events.exists(), "new files")
            load.wait_for(200)
        assert server.terminate() == 0
    assert all(answer.status and answer.is_right for answer in load.answers)
    lines = [
        line.split('"')[1]
        for path in tmp_path.glob("access.log*")
        for line in path.read_text().splitlines()
    ]
    expected = [f"{answer.method} {answer.key} HTTP/1.1" for answer in load.answers]
    assert sorted(x for x in lines if "/load/" in x) == sorted(expected)
    texts = [path.read_text() for path in tmp_path.glob("event.log*")]
    assert len(texts) == 5
    assert "".join(texts).count(" log.reopened\n") >= 4
    assert "".join(texts).count(" store.closed ") == 1


def ask_for_lines(server: MemcacheServer) -> None:
    """Send requests of all kinds."""
    url = f"{server.url}/a%20key"
    with requests.Session() as session, server.client() as client:
        session.headers.update({"Referer": 'http://r/"', "User-Agent": "test"})
        session.headers["X-Forwarded-For"] = "1.2.3.4, 5"
        session.put(url, b"value", timeout=9)
        session.get(f"{url}?q=1", timeout=9)
        session.request("PROPFIND", url, headers={"Depth": "0"}, timeout=9)
        session.get(url, headers={"Range": "bytes=0-1"}, timeout=9)
        session.head(f"{server.url}/-/healthy", timeout=9)
        client.send(b"get none\r\nstats none\r\nget b\r\n")
        for _ in range(3):
            client.line()
    # The client does not wait for the answer.
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        gone.sendall(b"PUT /gone HTTP/1.1\r\nHost: a\r\nContent-Range: x\r\n")
        gone.sendall(b"Content-Length: 9\r\n\r\n1")


def fields_of(line: str) -> tuple[object, ...]:
    """Return what a line in either form has, but for the times."""
    if line.startswith("{"):
        names = "method", "uri", "status", "bytes", "cache", "position"
        return tuple(json.loads(line)[name] for name in names)
    pattern = (
        r'"(\S+) (\S+) \S+" (\d+) (\d+) ".*" ".*" ".*" cache=(\S+) position=(\S+) '
    )
    ((method, uri, status, size, *more),) = re.findall(pattern, line)
    found = (None if text == "-" else text for text in more)
    return method, uri, int(status), int(size), *found


@pytest.mark.parametrize("form", ["text", "json"])
def test_requests_of_all_kinds_have_a_line_in_order(tmp_path: Path, form: str) -> None:
    """Whether C answers, Python does, or a call of memcached is made."""
    path = tmp_path / "access.log"
    settings = {"log_access": path, "log_format": form}
    with MemcacheServer(tmp_path / "data", settings) as server:
        ask_for_lines(server)
        wait_until(lambda: b"/gone" in path.read_bytes(), "the last line")
        assert server.terminate() == 0
    lines = path.read_text().splitlines()
    while "PUT" not in lines[0]:  # Of the start.
        del lines[0]
    assert ("http://r/\\\\x22" if form == "json" else "http://r/\\x22") in lines[0]
    assert all("1.2.3.4, 5" in line for line in lines[:5])
    found = [fields_of(line) for line in lines]
    place, size = found[0][5], found[2][3]
    assert isinstance(size, int)
    assert size > 100
    assert found == [
        ("PUT", "/a%20key", 200, 0, None, place),
        ("GET", "/a%20key?q=1", 200, 5, "DISK", place),
        ("PROPFIND", "/a%20key", 207, size, None, None),
        ("GET", "/a%20key", 206, 2, "DISK", place),
        ("HEAD", "/-/healthy", 200, 0, None, None),
        ("get", "/none", 404, 5, "MISS", None),
        ("stats", "-", 404, 7, None, None),
        ("get", "/b", 404, 5, "MISS", None),
        ("PUT", "/gone", 499, 0, None, None),
    ]
