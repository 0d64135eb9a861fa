"""nginx's own health and metrics, whatever its instances do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import requests

import nginx_tokens
from support.nginx import SOURCE, Nginx, with_mode
from support.ports import pick_port
from support.prometheus import Exporter, status_text
from support.wire import exchange

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

HEALTH: Final = "/-/nginx/healthy"
HEALTH_FILE: Final = "volcache/health.conf"
DRAIN: Final = "/run/volcache-nginx-drain"


def files_with(drain: Path) -> dict[str, str]:
    """Return the configuration with another file for draining, tokens, and a limit of 0."""
    text = (SOURCE / HEALTH_FILE).read_text()
    assert text.count(DRAIN) == 1
    return {
        HEALTH_FILE: text.replace(DRAIN, str(drain)),
        "volcache/tokens.conf": nginx_tokens.render("reader", "writer"),
    }


@pytest.mark.parametrize("mode", ["pinned", "failover", "growing"])
def test_nginx_is_healthy_while_it_serves(tmp_path: Path, mode: str) -> None:
    """With all instances down, without a token; 503 while a file exists."""
    drain = tmp_path / "drain"
    files = files_with(drain) | with_mode(mode)
    with Nginx(tmp_path / "nginx", [f"127.0.0.1:{pick_port()}"], files=files) as nginx:
        for method in ("GET", "HEAD", "OPTIONS"):
            assert exchange(nginx.port, method, HEALTH).status == 200
        reply = exchange(nginx.port, "GET", HEALTH)
        assert (reply.status, reply.body) == (200, b"ok\n")
        assert reply.headers["Content-Type"] == "text/plain"
        assert reply.headers["Cache-Control"] == "no-store"
        drain.touch()
        reply = exchange(nginx.port, "GET", HEALTH)
        assert (reply.status, reply.body) == (503, b"draining\n")
        assert reply.headers["Cache-Control"] == "no-store"
        # Requests are still served: the load balancer needs some time to notice.
        assert exchange(nginx.port, "GET", "/key").status == 401
        drain.unlink()
        assert exchange(nginx.port, "GET", HEALTH).status == 200
        assert HEALTH not in nginx.log()


def test_other_paths_of_the_operator_stay_closed(tmp_path: Path) -> None:
    """Only the exact path is answered."""
    with Nginx(tmp_path / "nginx", [f"127.0.0.1:{pick_port()}"]) as nginx:
        for path in ("", "/", "/healthy/", "/healthyx", "/status"):
            assert exchange(nginx.port, "GET", f"/-/nginx{path}").status == 403, path
        for path in ("/-//nginx/healthy", "/-/healthy"):
            assert exchange(nginx.port, "GET", path).status == 403, path


def test_exporter_has_the_metrics_of_nginx(tmp_path: Path) -> None:
    """From a port that only this machine reaches, and that serves nothing else."""
    port = pick_port()
    files = {"volcache/status.conf": status_text(port)}
    dead = [f"127.0.0.1:{pick_port()}"]
    with (
        Nginx(tmp_path / "nginx", dead, files=files) as nginx,
        Exporter(port) as exporter,
    ):
        for path in ("/key", "/-/nginx/healthy", "/"):
            assert exchange(port, "GET", path).status == 404
        exchange(nginx.port, "GET", "/key")
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        text = requests.get(url, timeout=5).text
        assert "\nnginx_up 1\n" in text
        nginx.kill()
        assert "\nnginx_up 0\n" in requests.get(url, timeout=5).text
