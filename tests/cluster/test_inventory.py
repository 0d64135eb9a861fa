"""What an inventory stands for is accepted by the programs it is for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.cluster import Cluster
from support.fetched import fetched_program
from support.nginx import Nginx
from volcache import __version__
from volcache.cli import main as cli
from volcache.fleet.checks import check
from volcache.fleet.collector import FleetCollector

pytestmark = pytest.mark.integration

UNITS = Path(__file__).parents[2] / "conf/systemd"
INVENTORY = """
[defaults]
disks = 12
[machines]
cache-1 = "10.0.0.5"
cache-2 = { address = "fd00::6", disks = ["/srv/a", "/srv/b"], processes = 2 }
cache-3 = { address = "127.0.0.1", weight = 20, settings = { volume_num = 400 } }
"""


def render(tmp_path: Path, text: str = INVENTORY) -> Path:
    """Return a folder with the files of an inventory."""
    (tmp_path / "inventory.toml").write_text(text)
    folder = tmp_path / "rendered"
    arguments = [str(folder), "--inventory", str(tmp_path / "inventory.toml")]
    assert cli.main(["cluster", "render", *arguments]) == 0
    return folder


def test_nginx_accepts_the_lists(tmp_path: Path, mode: dict[str, str]) -> None:
    """That of now, and that of before a machine was added; `nginx -t` reports nothing."""
    render(tmp_path, INVENTORY.replace("cache-1", "# cache-1"))
    lists = (render(tmp_path) / "nginx/volcache").iterdir()
    files = mode | {f"volcache/{path.name}": path.read_text() for path in lists}
    assert files["volcache/instances.conf"].count("\nserver ") == 28
    assert files["volcache/instances-before.conf"].count("\nserver ") == 16
    done = Nginx(tmp_path / "nginx", [], files=files).test()
    assert (done.returncode, "[" in done.stderr) == (0, False), done.stderr


def test_prometheus_accepts_the_targets(tmp_path: Path) -> None:
    """As a file of `file_sd_configs`."""
    promtool = fetched_program("promtool")
    folder = render(tmp_path)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n  - job_name: volcache\n    metrics_path: /-/metrics\n"
        f"    file_sd_configs:\n      - files: [{folder}/prometheus/volcache.json]\n"
    )
    subprocess.run([promtool, "check", "config", config], check=True)
    (folder / "prometheus/volcache.json").write_text("{}")
    assert subprocess.run([promtool, "check", "config", config], check=False).returncode


def test_systemd_accepts_the_files(tmp_path: Path) -> None:
    """`systemd-analyze verify` reports nothing, and reads them."""
    folder = render(tmp_path) / "machines/cache-2/etc/systemd/system"
    for unit in UNITS.glob("volcache@.*"):
        text = unit.read_text().replace("/opt/volcache/.venv/bin/volcache", "/bin/env")
        text = text.replace("file:/opt/volcache", "file:/usr/share")
        (folder / unit.name).write_text(text)

    def verify() -> str:
        units = [f"{folder}/volcache@1234.{kind}" for kind in ("service", "socket")]
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *units],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    assert verify() == ""
    # Also an address of an interface, whose sign is that of a specifier of systemd.
    for address in ("::", "fe80::1%lo"):
        machine = f'cache-2 = {{ address = "h", listen = "{address}" }}\n'
        render(tmp_path, f"[machines]\n{machine}")
        assert verify() == "", address
        render(tmp_path)
    for name in ("volcache@1234.service.d/disk.conf", "volcache@.socket.d/listen.conf"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("=", "X=", 1))
        assert name in verify()
        (folder / name).write_text(text)


def test_running_instances_that_are_alike_have_no_findings(cluster: Cluster) -> None:
    """What they report of themselves is understood, and nothing is wrong with it."""
    rows = FleetCollector(list(cluster.instances), timeout=30).poll()
    assert [(row.health.state, row.about.version) for row in rows] == [
        ("ok", __version__)
    ] * 3
    assert check(rows) == []
