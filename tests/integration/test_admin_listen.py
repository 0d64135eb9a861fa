"""The operator's paths at an address of their own, and what then is left with the keys."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from support.memcache import MemcacheServer
from support.ports import pick_port
from support.process import ADMIN, SHARED, ServerProcess, run_to_its_end
from support.waiting import wait_until
from support.wire import Reply, exchange, read_reply, request_bytes

pytestmark = pytest.mark.integration


def test_admin_listen_serves_the_paths_of_the_operator_and_no_keys(
    tmp_path: Path,
) -> None:
    """Keys are served at the other address, with health and readiness."""
    port = pick_port()
    settings = dict(SHARED) | {"admin_listen": f"127.0.0.1:{port}"}
    with ServerProcess(tmp_path, settings=settings) as server:
        assert f" admin.started address=127.0.0.1:{port}\n" in server.stderr
        assert exchange(server.port, "PUT", "/a", b"value").status == 200
        for path in ("healthy", "ready", "metrics", "stats", ""):
            assert exchange(port, "GET", f"/-/{path}").status == 200
        for path in ("metrics", "stats", "keys", "none", ""):
            reply = exchange(server.port, "GET", f"/-/{path}")
            assert (reply.status, reply.body.count(b"\n")) == (404, 1)
            assert b"admin_listen" in reply.body
        assert exchange(server.port, "GET", "/%2D/stats").status == 404
        for path in ("healthy", "ready"):
            assert exchange(server.port, "GET", f"/-/{path}").status == 200
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PROPFIND"):
            assert exchange(port, method, "/a").status == 404
        reply = exchange(port, "GET", "/a")
        assert reply.body == b"not here: this address serves the paths under /-/ only\n"
        for at, status in ((server.port, 404), (port, 200)):
            assert exchange(server.port, "GET", "/a").status == 200
            assert exchange(at, "POST", "/-/flush", b"", ADMIN).status == status
        assert exchange(server.port, "GET", "/a").status == 404


def test_client_cannot_claim_the_address_of_the_operator(tmp_path: Path) -> None:
    """By the field in which the loops tell it to the application."""
    settings = dict(SHARED) | {"admin_listen": "127.0.0.1:0"}
    with ServerProcess(tmp_path, settings=settings) as server:
        claim = "X-Volcache-Remote: admin 127.0.0.1"
        assert server.ask("GET", "/-/stats", None, claim).status == 404


def test_admin_listen_with_port_0_serves_health_and_metrics(tmp_path: Path) -> None:
    """At a unix socket, beside the memcached protocol; its file goes at the end."""
    path = tmp_path / "admin"
    settings = {"admin_listen": str(path)}
    with MemcacheServer(tmp_path / "data", settings, has_http=False) as server:
        wait_until(lambda: "admin.started" in server.stderr, "the address")
        assert "serving.started" not in server.stderr
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for name in ("healthy", "ready", "stats"):
            assert asked(path, f"/-/{name}").status == 200
        with server.client() as client:
            assert client.ask(b"set a 0 0 1\r\nx\r\n") == b"STORED"
        found = asked(path, "/-/metrics").body
        assert b'commands_total{command="set",result="stored"} 1.0\n' in found
        assert asked(path, "/a").status == 404
        assert server.terminate() == 0
    assert not path.exists()


def test_admin_listen_that_is_in_use_stops_the_start(tmp_path: Path) -> None:
    """With one line that names the setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run_to_its_end(tmp_path, dict(SHARED) | {"admin_listen": address})
    assert ended.returncode == 1
    assert f"admin_listen: cannot listen on {address}: " in ended.stderr


def asked(path: Path, target: str) -> Reply:
    """Return the reply to a GET at a unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        connection.sendall(request_bytes("GET", target))
        return read_reply(connection)
