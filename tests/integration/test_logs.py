"""The logs of a running server, and their rotation."""

from __future__ import annotations

import http.client
import json
import signal
from typing import TYPE_CHECKING, Final

import pytest

from support.load import Load
from support.process import ServerProcess, run_to_its_end
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration
SETTINGS: Final = {"volume_size": 8 << 20, "volume_num": 2, "max_value_size": 1 << 20}


def send(server: ServerProcess, method: str, path: str, body: bytes = b"") -> int:
    """Send one request; return its status."""
    connection = http.client.HTTPConnection(server.ip, server.port, timeout=10)
    connection.request(method, path, body or None, {"User-Agent": 'a "b"\\c'})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_access_log_has_a_line_for_each_request(tmp_path: Path) -> None:
    """A PUT, a hit, a miss and an error, within a second while the server runs."""
    path = tmp_path / "access.log"
    settings = SETTINGS | {"log_access": str(path)}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        assert send(server, "PUT", "/a%20key?v=1", b"value") == 200
        assert send(server, "GET", "/a%20key") == 200
        assert send(server, "GET", "/other") == 404
        assert send(server, "GET", "/a%0A127.0.0.1") == 400

        def lines() -> list[str]:
            return [x for x in path.read_text().splitlines() if "healthy" not in x]

        wait_until(lambda: len(lines()) == 4, "four lines")
        put, hit, miss, wrong = lines()
        assert server.terminate() == 0
    assert '"PUT /a%20key?v=1 HTTP/1.1" 200 0 "-" "a \\x22b\\x22\\x5Cc" "-"' in put
    assert " cache=- position=0," in put
    assert '"GET /a%20key HTTP/1.1" 200 5 ' in hit
    assert " cache=DISK position=0," in hit
    assert '"GET /other HTTP/1.1" 404 ' in miss
    assert " cache=MISS position=- seconds=0.0" in miss
    assert all(line.startswith("127.0.0.1 - - [") for line in (put, hit, miss))
    assert '"GET /a%0A127.0.0.1 HTTP/1.1" 400 ' in wrong


def test_json_applies_to_both_logs(tmp_path: Path) -> None:
    """Every line of either file is an object; the shutdown loses none."""
    settings = SETTINGS | {
        "log_access": str(tmp_path / "access.log"),
        "log_file": str(tmp_path / "event.log"),
        "log_format": "json",
    }
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        assert send(server, "PUT", "/key", b"value") == 200
        assert server.terminate() == 0
    access, events = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("access.log", "event.log")
    )
    assert (access[-1]["method"], access[-1]["uri"], access[-1]["status"]) == (
        "PUT",
        "/key",
        200,
    )
    assert [event["event"] for event in events] == [
        "recovery.started",
        "eviction.few_volumes",
        "recovery.completed",
        "serving.started",
        "stop.started",
        "stop.completed",
        "serving.ended",
        "store.closed",
    ]


def test_unusable_access_log_fails_the_start(tmp_path: Path) -> None:
    """An error of one line; the mount point is not created."""
    done = run_to_its_end(tmp_path, {"log_access": tmp_path, "port": 0})
    assert (done.returncode, done.stderr) == (
        2,
        (
            f'volcache: log_access = "{tmp_path}" cannot be opened: Is a directory;'
            " use a file that this user may write to, in an existing directory\n"
        ),
    )
    assert list(tmp_path.iterdir()) == []


def test_rotation_under_load_loses_no_line(tmp_path: Path) -> None:
    """Rename and SIGHUP, repeatedly: every response has exactly one line."""
    access, events = tmp_path / "access.log", tmp_path / "event.log"
    settings = SETTINGS | {"log_access": str(access), "log_file": str(events)}
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
    assert "".join(texts).count(" log.reopened\n") == 4
    assert "".join(texts).count(" store.closed ") == 1


@pytest.mark.parametrize("log", [{}, {"log_access": "access.log"}])
def test_hangup_does_not_stop_a_process(tmp_path: Path, log: dict[str, str]) -> None:
    """Before, during and after the stop, with and without a log; the exit code is 0."""
    settings = SETTINGS | {name: str(tmp_path / file) for name, file in log.items()}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        server.send_signal(signal.SIGHUP)
        wait_until(lambda: " log.reopened\n" in server.stderr, "the event")
        server.send_signal(signal.SIGTERM)
        while server.is_running:
            server.send_signal(signal.SIGHUP)
        assert server.exit_code == 0
