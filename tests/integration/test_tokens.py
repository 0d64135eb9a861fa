"""What curl makes of refusals, and what is told of them; tests/behaviour has the rest."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from support.process import ServerProcess
from support.wire import exchange

pytestmark = [pytest.mark.sampled(4), pytest.mark.integration]

# Bytes of UTF-8 in a header are latin-1 characters for the helpers.
READ: Final = "l\N{LATIN SMALL LETTER E WITH ACUTE}s:en"
WRITE: Final = "s\N{EURO SIGN}cret,1"
TOKENS: Final = {"read_token": READ, "write_token": WRITE, "admin_token": "\xfc-admin"}


def bearer(token: str) -> str:
    """Return the header."""
    return f"Authorization: Bearer {token.encode().decode('latin-1')}"


def test_curl_when_it_is_refused_sends_its_password(
    server_with: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """`--anyauth` waits for the challenges; `-u` sends it at once."""
    (tmp_path / "file").write_bytes(b"by curl")
    url = f"{server_with(**TOKENS).url}/curl"
    token = WRITE
    for options in (["-u", f"any:{token}"], ["--anyauth", "-u", f"any:{token}"]):
        command = ["curl", "-sSf", "-w", "%{http_code}", *options]
        put = [*command, "-T", str(tmp_path / "file"), url]
        assert subprocess.run(put, capture_output=True, check=True).stdout == b"200"
        got = subprocess.run([*command, url], capture_output=True, check=True)
        assert got.stdout == b"by curl200"


def test_refusals_are_counted_and_logged_without_the_token(tmp_path: Path) -> None:
    """A line per kind, with what was left out in the next; no token is in any output."""
    access = tmp_path / "access.log"
    wrong = "gu\xe9ss"
    settings = {**TOKENS, "log_access": access, "log_format": "json"}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        for _ in range(3):
            assert exchange(server.port, "GET", "/a%20b").status == 401
        for _ in range(2):
            forwarded = f'X-Forwarded-For: 10.0.0.9, "x"\n{bearer(wrong)}'
            reply = exchange(server.port, "PUT", "/%0A", b"", forwarded)
            assert reply.status == 401
        flush = exchange(server.port, "POST", "/-/flush", b"", bearer(wrong))
        assert flush.status == 401
        assert exchange(server.port, "GET", "/a", None, bearer(READ)).status == 404
        found = json.loads(exchange(server.port, "GET", "/-/stats").body)
        metrics = exchange(server.port, "GET", "/-/metrics").body.decode()
        server.terminate()
        log = server.stderr
        lines = [json.loads(line) for line in log.splitlines()]
        lines = [line for line in lines if line["event"] == "request.unauthorized"]
        assert found["requests"]["unauthorized"] == {"read": 3, "write": 2, "admin": 1}
        assert 'volcache_unauthorized_total{kind="write"} 2.0' in metrics
        by = {
            (row["method"], row["status"]): row["count"]
            for row in found["requests"]["by"]
        }
        assert by["GET", 401] == 3
        assert by["PUT", 401] == 2
        shown = access.read_text() + log + metrics + json.dumps(found)
    names = ("kind", "reason", "address", "method", "path", "left_out")
    assert [tuple(line[name] for name in names) for line in lines] == [
        ("read", "missing", "127.0.0.1", "GET", "/a%20b", 0),
        ("write", "wrong", "127.0.0.1", "PUT", "/%0A", 0),
        ("admin", "wrong", "127.0.0.1", "POST", "/-/flush", 0),
    ]
    assert lines[1]["forwarded"] == r"10.0.0.9, \x22x\x22"
    for token in (READ, WRITE, TOKENS["admin_token"], wrong):
        for form in (token, json.dumps(token)[1:-1], token.encode().decode("latin-1")):
            assert form not in shown
