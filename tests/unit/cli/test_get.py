"""`volcache get`, `put` and `rm`: what a broken answer or a full disk leaves."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from support.tables import each_row
from volcache.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvalue"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nvalue"
CUT_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n"
MISS = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nno\r\n"


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Send the same bytes to each connection; yield HOST:PORT and what was received."""
    received: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(1 << 16))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", received
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (CUT, "the connection was closed in the middle of"),
        (CUT_CHUNK, "the connection was closed in the middle of"),
        (b"SSH-2.0-OpenSSH\r\n", "the response is not from volcache"),
        (MISS, "not found"),
        (
            b"HTTP/1.1 401 no\r\n\r\ntoken needed\n",
            "401 token needed; give the token by",
        ),
        (b"HTTP/1.1 301 Moved\r\n\r\n<html>\x1b[2J", "k: 301 <html> [2J"),
    ],
)
def test_file_stays_as_it_was_unless_all_of_the_value_arrives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: bytes, reason: str
) -> None:
    """No file is truncated or created, and none is left; exit code 1, one line."""
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_text("before")
    with answering(answer) as (target, _):
        for path in (file, new):
            assert cli.main(["get", "k", target, "-o", str(path)]) == 1
            err = capsys.readouterr().err
            assert reason in err
            assert err.count("\n") == 1
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208 - Names only.
    assert file.read_text() == "before"


def test_file_that_is_replaced_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    """A new one has that of the umask; a link stays one."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("longer than the value")
    file.chmod(0o604)
    link.symlink_to(file)
    umask = os.umask(0o027)
    try:
        with answering(WHOLE) as (target, _):
            for path in (link, tmp_path / "new"):
                assert cli.main(["get", "k", "-t", target, "-o", str(path)]) == 0
    finally:
        os.umask(umask)
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("value", 0o604)
    new = tmp_path / "new"
    assert (new.read_text(), new.stat().st_mode & 0o777) == ("value", 0o640)


def test_device_is_written_and_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk is an error of one line."""
    with answering(WHOLE) as (target, _):
        assert cli.main(["get", "k", target, "-o", "/dev/null"]) == 0
        assert cli.main(["get", "k", target, "-o", "/dev/full"]) == 1
        missing = str(tmp_path / "no" / "file")
        assert cli.main(["get", "k", target, "-o", missing]) == 1
    assert capsys.readouterr().err == (
        "volcache: /dev/full: cannot be written: No space left on device\n"
        f"volcache: {missing}: cannot be written: No such file or directory\n"
    )


@each_row(
    ("key", "options", "path"),
    [
        ("a b/c?d#e%41", [], b"/a%20b/c%3Fd%23e%2541"),
        ("gr\xfcn", [], b"/gr%C3%BCn"),
        ("\udcff\udcfe", [], b"/%FF%FE"),
        ("a%20b%2fc", ["--encoded"], b"/a%20b/c"),
    ],
)
def test_key_is_percent_encoded(key: str, options: list[str], path: bytes) -> None:
    """With any bytes; with --encoded it is so already."""
    with answering(WHOLE) as (target, received):
        for verb in (["get", key], ["rm", key]):
            assert cli.main([*verb, *options, "-t", target]) == 0
    assert received[0].startswith(b"GET " + path + b" HTTP/1.1\r\n")
    assert received[1].startswith(b"DELETE " + path + b" HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["get", "a\nb"],
        ["get", "a%0Ab", "--encoded"],
        ["get", ""],
        ["get", "--", "-/stats"],
        ["rm", "good", "../x"],
        ["get", "k", "h:1", "-t", "h:2"],
        ["get", "k", "nowhere"],
        ["get", "k", "--timeout", "0"],
        ["get", "k", "--token-file", "/nonexistent"],
        ["put", "k", "--max-age", "-1"],
        ["put", "k", "--content-type", "a\r\nb"],
    ],
)
def test_wrong_argument_is_refused_before_a_request(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2 and one line."""
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_unreadable_input_stores_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No request is sent for a file that is missing or a folder."""
    with answering(WHOLE) as (target, received):
        for name in (str(tmp_path / "missing"), str(tmp_path)):
            assert cli.main(["put", "k", name, target]) == 1
    assert received == []
    assert capsys.readouterr().err == (
        f"volcache: {tmp_path}/missing: cannot be read: No such file or directory\n"
        f"volcache: {tmp_path}: cannot be read: Is a directory\n"
    )
