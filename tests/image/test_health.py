"""The health check of the image, of a real instance."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.ports import pick_port
from support.process import ServerProcess
from support.program import ended
from support.scripted_server import ScriptedServer, closing
from support.tables import rows

DOCKERFILE = (Path(__file__).parents[2] / "conf/image/Dockerfile").read_text()
HEALTHCHECK = DOCKERFILE.partition("\nHEALTHCHECK ")[2].partition(" CMD ")[2]


def is_healthy(environ: Mapping[str, str]) -> bool:
    """Run the check as an engine does."""
    done = ended(json.loads(HEALTHCHECK.partition("\n")[0]), environ)
    # An engine allows no other.
    assert done.returncode in {0, 1}
    assert done.stdout == ""
    return done.returncode == 0


@pytest.mark.integration
def test_health_check_of_an_instance_follows_its_state(tmp_path: Path) -> None:
    """Not when its process is stopped or killed, and again after the next start."""
    settings = {"volume_size": 16 << 20, "ip": "127.0.0.1"}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        # It listens on one address; the check asks for what listens on all.
        environ = {"VOLCACHE_IP": "0.0.0.0", "VOLCACHE_PORT": str(server.port)}  # noqa: S104
        assert is_healthy(environ)
        assert is_healthy(environ | {"VOLCACHE_IP": "127.0.0.1"})
        server.send_signal(signal.SIGSTOP)
        assert not is_healthy(environ)
        server.send_signal(signal.SIGCONT)
        assert is_healthy(environ)
        server.kill()
        assert not is_healthy(environ)
        server.restart()
        assert is_healthy(environ)


@rows(
    b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    b"HTTP/1.1 500 no 200 \r\n\r\n",
    b"SSH-2.0\r\n",
    b"200 200" * 100,
    b"",
)
def test_health_check_of_another_answer_fails(answer: bytes) -> None:
    """Another status, not HTTP, or nothing."""
    with ScriptedServer(closing(answer)) as server:
        environ = {"VOLCACHE_IP": "127.0.0.1", "VOLCACHE_PORT": str(server.port)}
        assert not is_healthy(environ)


@rows("0", "65536", "x", "-1", "9" * 5000, "²", "1 2")
def test_health_check_of_a_wrong_port_fails(port: str) -> None:
    """It is what the operator has set."""
    assert not is_healthy({"VOLCACHE_IP": "127.0.0.1", "VOLCACHE_PORT": port})


def test_health_check_without_a_listener_fails() -> None:
    """Also at the address of all of IPv6."""
    port = pick_port("::1") if Path("/proc/net/if_inet6").exists() else pick_port()
    assert not is_healthy({"VOLCACHE_IP": "::", "VOLCACHE_PORT": str(port)})
