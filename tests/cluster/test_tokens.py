"""Tokens of nginx in each failure mode, and its script; tests/behaviour has the rest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import nginx_tokens
from support.nginx import Nginx
from support.stub_instance import StubInstance
from support.wire import exchange

pytestmark = pytest.mark.integration


def test_request_without_a_token_is_refused_in_each_failure_mode(
    mode: dict[str, str], nginx_with: Callable[..., Nginx], stub: StubInstance
) -> None:
    tokens = {"volcache/tokens.conf": nginx_tokens.render("r", "w")}
    port = nginx_with(mode | tokens).port
    for method in ("GET", "PROPFIND", "PUT", "DELETE"):
        assert exchange(port, method, "/200", b"").status == 401
        assert not stub.received
    for method in ("GET", "PROPFIND", "PUT", "DELETE", "OPTIONS"):
        header = "Authorization: Bearer w" if method != "OPTIONS" else ""
        assert exchange(port, method, "/200", b"", header).status == 200


def test_script_writes_the_file_from_settings() -> None:
    """Other settings are ignored; without a token, or with an invalid one, it refuses."""
    for text, code, shown in (
        ('port = 1234\nread_token = "a "', 1, "without spaces"),
        ("port = 1234", 1, "read_token and write_token"),
        ('port = 1\nwrite_token = "secret"', 0, nginx_tokens.render("", "secret")),
    ):
        done = subprocess.run(
            [sys.executable, nginx_tokens.__file__],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, shown in done.stdout + done.stderr) == (code, True)
