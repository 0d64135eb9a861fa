"""`volcache tail`: filters, last lines, and files that are rotated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import VOLCACHE, Run
from support.process import SOURCE
from support.tables import each_row
from volcache.cli.tail import Filter, LoggedRequest, parse_line, tail
from volcache.http.access_log import AccessLog
from volcache.memcache.command_log import CommandLog
from volcache.memcache.commands import FlushAll, Get, Result, Status


def line(
    path: str,
    method: str = "GET",
    status: int = 200,
    ms: float = 1,
    *,
    as_json: bool = False,
) -> str:
    """Return a line as an instance writes it."""
    ticks = iter([0, int(ms * 1e6)])
    lines: list[str] = []

    def app(_: object, start: Callable[..., object]) -> list[bytes]:
        start(f"{status} X", [])
        return []

    log = AccessLog(
        app,
        lines.append,
        as_json=as_json,
        clock=lambda: 1_795_251_600_123_456_789,
        timer=lambda: next(ticks),
    )
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": "q=/x",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_USER_AGENT": 'a" 404 "GET /forged HTTP/1.1" seconds=9',
    }
    log(environ, lambda *_: lambda _: None)
    return lines[0]


@given(st.text(st.characters(max_codepoint=0xFF), max_size=50), st.booleans())
def test_line_of_either_format_is_read(path: str, as_json: bool) -> None:  # noqa: FBT001
    """The key has the bytes of the path, whatever they are."""
    text = line(f"/{path}", "PUT", 404, 12.5, as_json=as_json).removesuffix("\n")
    assert parse_line(text.encode()) == LoggedRequest(
        "PUT", path.encode("latin-1"), "404", 0.0125
    )


@each_row(
    "text",
    [b"", b"{", b"{}", b"[]", b'{"uri": 1}', b"2026-11-21T09:00:00Z INFO x", b"\xff"],
)
def test_other_lines_are_none(text: bytes) -> None:
    """They match no filter, and are shown without one."""
    assert parse_line(text) is None
    assert Filter().allows(text)
    assert not Filter(slower=0.001).allows(text)


REQUESTS = [
    *(line("/tiles/1"), line("/tiles/2", "PUT", 507)),
    *(line("/tiles/\xff", status=404, as_json=True), line("/x", "DELETE", 404)),
    *(line("/x", status=500, ms=200, as_json=True), "not of an access log\n"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the place of a log."""
    return tmp_path / "access.log"


def test_lines_that_match_are_printed_as_they_are(path: Path, run: Run) -> None:
    """All filters must match; -n counts the lines that do."""
    path.write_text("".join(REQUESTS))
    for options, numbers in (
        *(([], [0, 1, 2, 3, 4, 5]), (["--prefix", "tiles/"], [0, 1, 2])),
        *((["--prefix", "tiles/\udcff"], [2]), (["--status", "5xx"], [1, 4])),
        (["--status", "404,5xx"], [1, 2, 3, 4]),
        *((["--method", "put,delete"], [1, 3]), (["--slower", "0.2"], [4])),
        *((["--status", "404", "--method", "GET"], [2]), (["-n", "2"], [4, 5])),
        *((["-n2", "--status", "404,5xx"], [3, 4]), (["-n", "0"], [])),
        *((["-n", "all"], [0, 1, 2, 3, 4, 5]), (["--prefix", "none"], [])),
    ):
        expected = "".join(REQUESTS[number] for number in numbers)
        assert run("tail", "--once", path, *options) == (0, expected, ""), options


def test_commands_of_memcached_clients_are_found_by_name(path: Path, run: Run) -> None:
    """Their case does not matter; GET is that of both protocols."""
    lines: list[str] = []
    log = CommandLog(0, lambda _: (0, 0), add=lines.append)
    for command in (Get("get", b"a"), Get("gets", b"a"), FlushAll("flush_all")):
        log.done("127.0.0.1", command, Result(Status.OK), 0, 1000, 0)
    get, *others = lines
    path.write_text("".join([*lines, line("/a")]))
    for method, found in (("gets,flush_all", others), ("GET", [get, line("/a")])):
        output = (0, "".join(found), "")
        assert run("tail", "--once", path, "--method", method) == output


def test_last_lines_are_found_from_the_end(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over many blocks; what has no line end yet is not a line."""
    lines = [f"{n} {'x' * (n % 300)}" for n in range(5000)]
    path.write_text("\n".join([*lines, "unfinished"]))
    for count in (0, 1, 7, 4000, 100_000):
        assert tail([str(path)], Filter(), count=count, follows=False)
        found = capsys.readouterr().out.splitlines()
        assert found == (lines[-count:] if count else [])


def follow(
    path: Path, capsys: pytest.CaptureFixture[str], steps: list[Callable[[], object]]
) -> list[str]:
    """Follow a file over some steps; return what is printed after each."""
    printed: list[str] = []
    left = iter(steps)

    def pause() -> None:
        printed.append(capsys.readouterr().out)
        step = next(left, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    with pytest.raises(KeyboardInterrupt):
        tail([str(path)], Filter(), count=1, follows=True, pause=pause)
    return printed


def append(path: Path, text: str) -> Callable[[], object]:
    """Return a step that appends text."""

    def step() -> None:
        with path.open("a") as file:
            file.write(text)

    return step


def test_rotated_file_loses_no_line(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also lines written to the old file after it was moved, and after the new one is."""
    moved = path.with_name("log.1")
    path.write_text("0\n1\n2")
    steps = [
        *(append(path, "\n3\n"), lambda: path.rename(moved), append(moved, "4\n")),
        *(append(path, "5\n"), append(moved, "6\n"), append(path, "7\n")),
    ]
    printed = ["1\n", "2\n3\n", "", "4\n", "5\n", "6\n", "7\n"]
    assert follow(path, capsys, steps) == printed


def test_truncated_and_missing_files_are_followed(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From their beginning."""
    steps: list[Callable[[], object]] = [
        lambda: path.write_text("1\n22\n"),
        lambda: path.write_text("3\n"),
        append(path, "4"),
        append(path, "5\n"),
    ]
    assert follow(path, capsys, steps) == ["", "1\n22\n", "3\n", "", "45\n"]


def test_files_are_told_apart_and_control_characters_are_escaped(
    tmp_path: Path, run: Run
) -> None:
    """As by tail; what an instance did not write must not reach the terminal."""
    first, missing, second = (tmp_path / name for name in ("a", "missing", "b"))
    for path in (first, second):
        path.write_bytes(b"1 \x1b[2J\xff\n")
    text = "1 \\x1b[2J\\xff\n"
    assert run("tail", "--once", first, missing, second) == (
        1,
        f"==> {first} <==\n{text}\n==> {second} <==\n{text}",
        f"volcache: {missing}: cannot be read: No such file or directory\n",
    )


@pytest.mark.slow
def test_standard_input_is_filtered_and_a_closed_pipe_ends_it(tmp_path: Path) -> None:
    """For `journalctl | volcache tail - --status 5xx | head`."""
    command = [sys.executable, "-c", VOLCACHE, "tail", "-", "--status", "5xx"]
    data = "".join(REQUESTS).encode() * 3000
    found = b""
    for end, expected in (("", 6000), (" | head -n 3", 3)):
        done = subprocess.run(
            ["bash", "-c", f'set -o pipefail; "$@"{end}', "bash", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            input=data,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        found = done.stdout
        assert found.count(b"\n") == expected
    assert json.loads(found.splitlines()[1])["status"] == 500
