"""`volcache get`, `put` and `rm`: what a broken answer or a full disk leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.command_line import Run
from support.scripted_server import sending

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvalue"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nvalue"
CUT_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n"
MISS = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nno\r\n"


def test_get_of_a_broken_answer_leaves_the_file_as_it_was(
    tmp_path: Path, run: Run
) -> None:
    """No file is truncated or created, and none is left; exit code 1, one line."""
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_text("before")
    for answer, reason in (
        (CUT, "disconnected within the answer"),
        (CUT_CHUNK, "an answer of unknown length"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an answer of HTTP/1"),
        (MISS, "not found"),
        (
            b"HTTP/1.1 401 no\r\n\r\ntoken needed\n",
            "401 token needed; give the token by",
        ),
        (b"HTTP/1.1 301 Moved\r\n\r\n<html>\x1b[2J", "k: 301 <html> [2J"),
    ):
        with sending(answer) as (target, _):
            for path in (file, new):
                code, _, err = run("get", "k", target, "-o", path)
                assert (code, err.count("\n")) == (1, 1)
                assert reason in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "before"


def test_get_into_a_file_keeps_its_mode_and_links(tmp_path: Path, run: Run) -> None:
    """A new one has that of the umask; a link stays one."""
    file, link, new = tmp_path / "file", tmp_path / "link", tmp_path / "new"
    file.write_text("longer than the value")
    file.chmod(0o604)
    link.symlink_to(file)
    umask = os.umask(0o027)
    try:
        with sending(WHOLE) as (target, _):
            for path in (link, new):
                assert run("get", "k", "-t", target, "-o", path).code == 0
    finally:
        os.umask(umask)
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("value", 0o604)
    assert (new.read_text(), new.stat().st_mode & 0o777) == ("value", 0o640)


def test_get_into_a_device_writes_it(tmp_path: Path, run: Run) -> None:
    """A full disk is an error of one line."""
    missing = tmp_path / "no" / "file"
    with sending(WHOLE) as (target, _):
        assert run("get", "k", target, "-o", "/dev/null") == (0, "", "")
        for place, why in (
            ("/dev/full", "No space left on device"),
            (missing, "No such file or directory"),
        ):
            error = f"volcache: {place}: cannot be written: {why}\n"
            assert run("get", "k", target, "-o", place) == (1, "", error)


def test_get_and_rm_percent_encode_the_key(run: Run) -> None:
    """With any bytes; with --encoded it is so already."""
    for words, path in (
        (["a b/c?d#e%41"], b"/a%20b/c%3Fd%23e%2541"),
        (["gr\xfcn"], b"/gr%C3%BCn"),
        (["\udcff\udcfe"], b"/%FF%FE"),
        (["a%20b%2fc", "--encoded"], b"/a%20b/c"),
    ):
        with sending(WHOLE) as (target, received):
            for verb in ("get", "rm"):
                assert run(verb, *words, "-t", target).code == 0
        assert received[0].startswith(b"GET " + path + b" HTTP/1.1\r\n")
        assert received[1].startswith(b"DELETE " + path + b" HTTP/1.1\r\n")


def test_refused_command_says_what_helps(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that was given is not asked for; nginx is not an instance."""
    monkeypatch.setenv("VOLCACHE_ADMIN_TOKEN", "x")
    nginx = b"HTTP/1.1 403 Forbidden\r\n\r\nforbidden: what is under /-/ is not\n"
    off = b"HTTP/1.1 403 Forbidden\r\n\r\nkeys is off; set admin_token to allow it\n"
    wrong = b"HTTP/1.1 401 Unauthorized\r\n\r\nthe token is wrong: reading needs\n"
    for words, answer, end in (
        (["ls"], nginx, "; is this nginx? Give the addresses of the instances\n"),
        (
            ["purge", "a"],
            nginx,
            "; is this nginx? Give the addresses of the instances\n",
        ),
        (["ls"], off, ": 403 keys is off; set admin_token to allow it\n"),
        (["get", "k"], wrong, "k: 401 the token is wrong: reading needs\n"),
        (["get", "k"], nginx, "k: 403 forbidden: what is under /-/ is not\n"),
    ):
        with sending(answer) as (target, _):
            code, out, err = run(*words, "-t", target)
        assert code == 1
        assert end in out + err


def test_token_of_any_letters_is_sent_as_utf_8(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any letters, as the settings of the service allow them."""
    monkeypatch.setenv("VOLCACHE_ADMIN_TOKEN", "gr\xfcn\u20ac")
    monkeypatch.setenv("VOLCACHE_WRITE_TOKEN", "gr\xfcn\u20ac")
    (tmp_path / "file").touch()
    for words in (["put", "k", tmp_path / "file"], ["purge", "a"], ["ls"]):
        with sending(WHOLE) as (target, received):
            run(*words, "-t", target)
        assert b"\r\nAuthorization: Bearer gr\xc3\xbcn\xe2\x82\xac\r\n" in received[0]
