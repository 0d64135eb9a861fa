"""The commands for one key, against a real instance."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import requests

from support.command_line import run_volcache
from support.process import MIB, ServerProcess, Servers
from volcache_client import Client

pytestmark = [pytest.mark.sampled(2), pytest.mark.integration, pytest.mark.slow]

ADMIN: Final = "run-me"
READ: Final = "read-me"
WRITE: Final = "write-me"


@pytest.fixture
def server(servers: Servers) -> Iterator[ServerProcess]:
    """One instance with tokens."""
    with servers.server(
        read_token=READ, write_token=WRITE, admin_token=ADMIN
    ) as server:
        yield server


def run(
    server: ServerProcess, *argv: str, data: bytes = b"", write: str = WRITE
) -> tuple[int, bytes, str]:
    """Run a command with tokens; return its exit code, its output and its errors."""
    words = [argv[0], "-t", server.url, *argv[1:]]
    tokens = {"read_token": READ, "write_token": write, "admin_token": ADMIN}
    done = run_volcache(*words, data=data, **tokens)
    return done.returncode, done.stdout, done.stderr.decode()


def test_put_and_get_by_file_and_pipe_return_the_bytes(
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
def test_put_of_a_value_too_large_names_the_limit(
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
        assert err.startswith(f"volcache: {server.url[7:]}: k: 413 value is ")
        assert err.endswith(" bytes long; allowed are 0 to 1048576\n")


def test_put_with_metadata_stores_it(server: ServerProcess, tmp_path: Path) -> None:
    """Type, encoding and lifetime; --if-absent keeps what is there. With a token file."""
    (tmp_path / "token").write_text(f"{WRITE}\n")
    options = ["--content-type", "a/b", "--content-encoding", "gzip", "--max-age", "99"]
    options += ["--cache-control", "immutable", "--if-absent"]
    options += ["--token-file", str(tmp_path / "token")]
    assert run(server, "put", "meta", *options, data=b"1", write="")[0] == 0
    code, _, err = run(server, "put", "meta", *options, data=b"2", write="")
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


def test_rm_of_a_missing_key_fails_without_force(server: ServerProcess) -> None:
    """It is an error unless --force is given."""
    assert run(server, "put", "x", data=b"1")[0] == 0
    assert run(server, "rm", "x") == (0, b"", "")
    assert run(server, "rm", "x") == (1, b"", "volcache: x: not found\n")
    assert run(server, "rm", "-f", "x") == (0, b"", "")


def test_address_in_the_place_of_a_key_is_refused(
    server: ServerProcess, servers: Servers
) -> None:
    """All commands have KEY before TARGET; only behind -- may a key look like a TARGET."""
    name = server.url[7:]
    with servers.server() as default:
        for one in (server, default):
            assert run(one, "put", "k", data=b"1")[0] == 0
        other = default.url
        done = run_volcache("rm", "k", name, target=other, write_token=WRITE)
        assert done.returncode == 0
        assert run(server, "get", "k")[0] == 1
        assert run(default, "get", "k") == (0, b"1", "")
        for words in (["rm"], ["get"], ["ls"], ["purge"], ["put", "k"]):
            for address in (name, server.url):
                code, out, err = run(default, *words, address)
                assert (code, out) == (2, b"")
                assert f"{address}: looks like an address, and is in the" in err
        assert run(server, "put", "--", name, data=b"2") == (0, b"", "")
        listed = run(server, "ls", "--", name)[1].decode()
        assert listed == f"{name.replace(':', '%3A')}\n"
        assert run(server, "get", "--", name) == (0, b"2", "")
        assert run(server, "rm", "--", name) == (0, b"", "")


def test_ls_with_a_prefix_lists_its_keys(server: ServerProcess) -> None:
    """Those with a prefix, percent-encoded; `get --encoded` takes them as they are."""
    keys = [f"ls/{number} %\udcff?" for number in (0, 1, 10)]
    for key in (*keys, "other"):
        assert run(server, "put", key, "--max-age", "9999", data=b"value")[0] == 0
    code, out, err = run(server, "ls", "ls/1")
    assert (code, err) == (0, "")
    assert sorted(out.split()) == [b"ls/%s%%20%%25%%FF%%3F" % n for n in (b"1", b"10")]
    assert run(server, "get", "--encoded", out.split()[0].decode())[1] == b"value"
    rows = [json.loads(line) for line in run(server, "ls", "--json")[1].splitlines()]
    assert rows[-1] == {"summary": {"keys": 4, "failed": 0}}
    assert {"key": "other"} in rows
    assert run(server, "ls", "none") == (0, b"", "")
    code, out, err = run(server, "ls", "ls/", "127.0.0.1:1")
    assert (code, len(out.split())) == (1, 3)  # The other instance is listed.
    assert err == "volcache: 127.0.0.1:1: cannot connect: Connection refused\n"


def test_commands_for_a_cluster_use_the_instance_of_the_client(
    servers: Servers, tmp_path: Path
) -> None:
    """`VOLCACHE_TARGET` names them; each key is on one of them."""
    with servers.server() as first, servers.server() as second:
        urls = [first.url, second.url]
        client = Client([(url, 3) for url in urls])
        lines = [f"server {url[7:]} weight=3;\n" for url in urls]
        (tmp_path / "list").write_text("".join(lines))
        listed = str(tmp_path / "list")
        for number in range(5):
            key, value = f"shared/{number}", b"%d" % number
            done = run_volcache("put", key, data=value, target=listed)
            assert (done.returncode, client.get(key)) == (0, value)
            assert run_volcache("get", key, target=listed).stdout == value
        keys = [f"shared/{number}" for number in range(5)]
        for key in keys:
            assert run_volcache("rm", key, target=listed).returncode == 0
        assert client.get_many(keys) == {}
        client.close()
