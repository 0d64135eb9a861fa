"""The image is built by podman from the wheel in dist/, and works as an engine runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import requests

from support.ports import pick_port
from support.program import ended
from support.waiting import wait_until
from volcache import __version__

ROOT: Final = Path(__file__).parents[2]
IMAGE: Final = f"volcache:{__version__}"
# As a test may: without systemd, in a container, and as a process that is limited.
CONTAINERS: Final = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
STORAGE: Final = """
[storage]
driver = "overlay"
graphroot = "{0}/images"
runroot = "{0}/run"
"""
# Without it, the base has the package usrmerge and all of Perl.
HOOK: Final = "/usr/share/mmdebstrap/hooks/merged-usr"
HARDENED: Final = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")


def may_build() -> bool:
    """Whether there are a wheel, an engine, and what makes a base."""
    wheels = list((ROOT / "dist").glob(f"volcache-{__version__}-*.whl"))
    programs = map(shutil.which, ("mmdebstrap", "podman", "runc"))
    return bool(wheels and all(programs) and not os.geteuid())


class Engine:
    """podman, with images and containers in a folder."""

    def __init__(self, folder: Path) -> None:
        """Have no image yet."""
        (folder / "containers.conf").write_text(CONTAINERS)
        (folder / "storage.conf").write_text(STORAGE.format(folder))
        self.environ = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_CONF": f"{folder}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
            "PATH": f"{folder}:{os.environ['PATH']}",
        }
        (folder / "docker").write_text("#!/bin/sh\nexit 1\n")
        (folder / "docker").chmod(0o755)

    def run(self, *words: str | Path) -> str:
        """Run a program that succeeds; return what it printed."""
        done = ended(words, self.environ, seconds=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def podman(self, *words: str) -> str:
        """Run podman."""
        return self.run("podman", *words)

    @contextmanager
    def container(self, port: int) -> Iterator[str]:
        """Run the image with the volume `data` as IMAGE.md says; yield its name."""
        variables = {"PORT": port, "IP": "127.0.0.1", "VOLUME_SIZE": "16MiB"}
        given = [f"--env=VOLCACHE_{name}={value}" for name, value in variables.items()]
        name = self.podman(
            "run", "--detach", "--volume=data:/data", *HARDENED, *given, IMAGE
        )
        try:
            wait_until(lambda: self.is_healthy(name), "the health check")
            yield name
        finally:
            self.podman("rm", "--force", name)

    def is_healthy(self, name: str) -> bool:
        """Whether the health check of the image succeeds."""
        command = ["podman", "healthcheck", "run", name]
        return ended(command, self.environ).returncode == 0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Build the image; its base is made here, as a registry may be out of reach."""
    engine = Engine(tmp_path)
    base = tmp_path / "base.tar"
    minimal = ("mmdebstrap", "--variant=minbase", f"--hook-dir={HOOK}")
    engine.run(*minimal, "bookworm", base)
    engine.podman("import", str(base), "debian:bookworm-slim")
    trusted = os.environ.get("SSL_CERT_FILE")
    secret = [f"--secret=id=ca,src={trusted}"] if trusted else []
    engine.run(ROOT / "tools" / "image.sh", *secret)
    yield engine
    engine.podman("system", "reset", "--force")


@pytest.mark.disk
@pytest.mark.nightly
@pytest.mark.skipif(
    not may_build(), reason="needs root, podman, runc, mmdebstrap and make wheels"
)
def test_image_after_a_kill_serves_its_values(engine: Engine) -> None:
    """It is process 1 and the user of the manual, and ends by SIGTERM."""
    port = pick_port()
    url = f"http://127.0.0.1:{port}"
    with engine.container(port) as name:
        assert requests.put(f"{url}/kept", b"value", timeout=10).status_code == 200
        facts = json.loads(engine.podman("inspect", name))[0]
        status = Path(f"/proc/{facts['State']['Pid']}/status").read_text()
        lines = dict(line.split(":\t", 1) for line in status.splitlines())
        assert lines["NSpid"].split()[-1] == "1"
        assert lines["Uid"].split() == ["1234"] * 4
        assert int(lines["CapEff"], 16) == 0
        assert facts["Config"]["StopSignal"] == signal.SIGTERM
        engine.podman("kill", name)
        assert not engine.is_healthy(name)
    with engine.container(port) as name:
        assert requests.get(f"{url}/kept", timeout=10).content == b"value"
        assert "keys 1" in engine.podman(
            *("exec", name, "volcache", "stats", "--once", f"127.0.0.1:{port}")
        )
        engine.podman("stop", "--time=30", name)
        [found] = json.loads(engine.podman("inspect", name))
        assert found["State"]["ExitCode"] == 0
        logs = ended(["podman", "logs", name], engine.environ).stderr
        assert "store.closed" in logs
    labels = json.loads(engine.podman("image", "inspect", IMAGE))[0]["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert "org.opencontainers.image.revision" in labels
