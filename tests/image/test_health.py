"""The health check of the image, of a real instance."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.ports import pick_port
from support.process import ServerProcess
from support.scripted_server import ScriptedServer, closing
from support.tables import each_row

CHECK = Path(__file__).parents[2] / "tools" / "image_health.py"


def checked(environ: Mapping[str, str]) -> tuple[int, str]:
    """Run the check as an engine does; return its exit code and errors."""
    done = subprocess.run(
        [sys.executable, "-I", CHECK],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.integration
def test_instance_is_healthy_while_it_answers(tmp_path: Path) -> None:
    """Not when its process is stopped or killed, and again after the next start."""
    settings = {"volume_size": 16 << 20, "ip": "127.0.0.1"}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        # It listens on one address; the check asks for what listens on all.
        environ = {"VOLCACHE_IP": "0.0.0.0", "VOLCACHE_PORT": str(server.port)}  # noqa: S104
        assert checked(environ) == (0, "")
        assert checked(environ | {"VOLCACHE_IP": "127.0.0.1"}) == (0, "")
        server.send_signal(signal.SIGSTOP)
        assert checked(environ) == (1, f"127.0.0.1 port {server.port}: timed out\n")
        server.send_signal(signal.SIGCONT)
        assert checked(environ) == (0, "")
        server.kill()
        code, text = checked(environ)
        assert (code, "refused" in text) == (1, True)
        server.restart()
        assert checked(environ) == (0, "")


@each_row(
    ("answer", "shown"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "'HTTP/1.1 503 Service"),
        (b"SSH-2.0\r\n", "'SSH-2.0"),
        (b"200 200" * 100, "'200 200"),
        (b"", "''"),
    ],
)
def test_another_answer_is_not_healthy(answer: bytes, shown: str) -> None:
    """Another status, not HTTP, or nothing."""
    with ScriptedServer(closing([], answer)) as server:
        code, text = checked(
            {"VOLCACHE_IP": "127.0.0.1", "VOLCACHE_PORT": str(server.port)}
        )
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith(f"127.0.0.1 port {server.port}: not 200 but {shown}")


@each_row("port", ["0", "65536", "x", "", "-1", "%i", "9" * 5000, "²"])
def test_port_that_cannot_be_asked_is_named(port: str) -> None:
    """It is what the operator has set."""
    code, text = checked({"VOLCACHE_PORT": port})
    assert code == 1
    assert text == (
        f"VOLCACHE_PORT = {port[:20]!r}: the health check needs 1 to 65535\n"
    )


def test_nothing_that_listens_is_not_healthy() -> None:
    """The reason is one line."""
    port = pick_port("::1") if Path("/proc/net/if_inet6").exists() else pick_port()
    code, text = checked({"VOLCACHE_IP": "::", "VOLCACHE_PORT": str(port)})
    assert (code, text.count("\n")) == (1, 1)
