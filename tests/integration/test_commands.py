"""The commands for one key, against a real instance."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import requests

from support.command_line import run_volcache
from support.process import MIB, ServerProcess, Servers

pytestmark = [pytest.mark.sampled(2), pytest.mark.integration, pytest.mark.slow]

READ: Final = "read-me"
WRITE: Final = "write-me"


@pytest.fixture
def server(servers: Servers) -> Iterator[ServerProcess]:
    """One instance with tokens."""
    with servers.server(read_token=READ, write_token=WRITE) as server:
        yield server


def run(
    server: ServerProcess, *argv: str, data: bytes = b"", write: str = WRITE
) -> tuple[int, bytes, str]:
    """Run a command with tokens; return its exit code, its output and its errors."""
    words = [argv[0], "-t", server.url, *argv[1:]]
    done = run_volcache(*words, data=data, read_token=READ, write_token=write)
    return done.returncode, done.stdout, done.stderr.decode()


def test_value_comes_back_from_a_file_and_from_a_pipe(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Byte for byte; nothing else is printed."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    for length in (0, 1, MIB):
        value = os.urandom(length)
        source.write_bytes(value)
        key = f"a key\udcff/{length}%41?#"
        assert run(server, "put", key, str(source)) == (0, b"", "")
        assert run(server, "get", key) == (0, value, "")
        assert run(server, "put", key, data=value[::-1]) == (0, b"", "")
        assert run(server, "get", key, "-o", str(copy)) == (0, b"", "")
        assert copy.read_bytes() == value[::-1]
        assert run(server, "rm", key) == (0, b"", "")
        code, out, err = run(server, "get", key, "-o", str(copy))
        assert (code, out) == (1, b"")
        assert err == f"volcache: a key?/{length}%41?#: not found\n"
        assert copy.read_bytes() == value[::-1]


@pytest.mark.parametrize("length", [MIB + 1, 20 * MIB])
def test_value_that_is_too_large_is_refused_with_the_limit(
    server: ServerProcess, tmp_path: Path, length: int
) -> None:
    """Also while it is still sent."""
    (tmp_path / "large").write_bytes(bytes(length))
    for argv, data in (
        (["put", "k", str(tmp_path / "large")], b""),
        (["put", "k"], bytes(length)),
    ):
        code, out, err = run(server, *argv, data=data)
        assert (code, out) == (1, b"")
        assert err.startswith(f"volcache: {server.url}: k: 413 value is at least ")
        assert err.endswith(" bytes long; allowed are 0 to 1048576\n")


def test_metadata_of_a_put_is_stored(server: ServerProcess) -> None:
    """Type, encoding and lifetime; --if-absent keeps what is there."""
    options = ["--content-type", "a/b", "--content-encoding", "gzip", "--max-age", "99"]
    options += ["--cache-control", "immutable", "--if-absent"]
    assert run(server, "put", "meta", *options, data=b"1")[0] == 0
    code, _, err = run(server, "put", "meta", *options, data=b"2")
    assert code == 1
    assert "meta: 412 If-None-Match is false" in err
    answer = requests.get(
        f"{server.url}/meta", headers={"Authorization": f"Bearer {READ}"}, timeout=5,
        stream=True,
    )  # fmt: skip
    assert answer.raw.read() == b"1"
    assert answer.headers["Content-Type"] == "a/b"
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Cache-Control"].endswith(", immutable")
    assert answer.headers["Cache-Control"].startswith("max-age=9")


def test_token_is_needed_and_may_be_in_a_file(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A wrong one is one line that says what to do."""
    code, _, err = run(server, "put", "k", data=b"1", write="")
    assert code == 1
    assert "k: 401 " in err
    assert err.endswith("; give the token by --token-file or in the environment\n")
    (tmp_path / "token").write_text(f"{WRITE}\n")
    file = ["--token-file", str(tmp_path / "token")]
    assert run(server, "put", "k", *file, data=b"1", write="")[0] == 0


def test_keys_are_deleted_whether_or_not_others_are_there(
    server: ServerProcess,
) -> None:
    """A missing one is an error unless --force is given."""
    for key in ("x", "y"):
        assert run(server, "put", key, data=b"1")[0] == 0
    assert run(server, "rm", "x", "gone", "y") == (
        1,
        b"",
        "volcache: gone: not found\n",
    )
    assert run(server, "get", "y")[0] == 1
    assert run(server, "rm", "-f", "x", "gone") == (0, b"", "")
