"""nginx's own health and metrics, whatever its instances do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import nginx_tokens
from support.nginx import SOURCE, Nginx
from support.ports import pick_port
from support.prometheus import status_text
from support.wire import exchange

pytestmark = pytest.mark.integration

HEALTH: Final = "/-/nginx/healthy"
HEALTH_FILE: Final = "volcache/health.conf"
DRAIN: Final = "/run/volcache-nginx-drain"


def test_nginx_is_healthy_while_it_serves(
    tmp_path: Path, mode: dict[str, str], nginx_with: Callable[..., Nginx]
) -> None:
    """With all instances down, without a token; 503 while a file exists."""
    drain = tmp_path / "drain"
    text = (SOURCE / HEALTH_FILE).read_text()
    assert text.count(DRAIN) == 1
    tokens = {"volcache/tokens.conf": nginx_tokens.render("reader", "writer")}
    files = mode | tokens | {HEALTH_FILE: text.replace(DRAIN, str(drain))}
    nginx = nginx_with(files, instance="127.0.0.1:1")
    for is_draining, expected in (
        (False, (200, b"ok\n")),
        (True, (503, b"draining\n")),
        (False, (200, b"ok\n")),
    ):
        if is_draining:
            drain.touch()
        else:
            drain.unlink(missing_ok=True)
        for method in ("GET", "HEAD", "OPTIONS"):
            assert exchange(nginx.port, method, HEALTH).status == expected[0]
        reply = exchange(nginx.port, "GET", HEALTH)
        assert (reply.status, reply.body) == expected
        assert reply.headers["Content-Type"] == "text/plain"
        assert reply.headers["Cache-Control"] == "no-store"
        # Requests are still served: a load balancer needs some time to notice.
        assert exchange(nginx.port, "GET", "/key").status == 401
    assert HEALTH not in nginx.log()
    # Only the exact path is answered.
    for path in ("", "/", "/healthy/", "/healthyx", "/status"):
        assert exchange(nginx.port, "GET", f"/-/nginx{path}").status == 403, path
    for path in ("/-//nginx/healthy", "/-/healthy"):
        assert exchange(nginx.port, "GET", path).status == 403, path


def test_status_is_at_a_port_that_serves_nothing_else(
    nginx_with: Callable[..., Nginx],
) -> None:
    """And that only this machine reaches."""
    port = pick_port()
    text = status_text(port)
    assert f"listen 127.0.0.1:{port};" in text
    nginx_with({"volcache/status.conf": text})
    assert b"Active connections: " in exchange(port, "GET", "/-/nginx/status").body
    for path in ("/key", "/-/nginx/healthy", "/"):
        assert exchange(port, "GET", path).status == 404
