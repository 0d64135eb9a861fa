"""The configuration of `make cluster` is consistent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from support.make import make
from support.nginx import SOURCE
from volcache.config import Sources

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "conf" / "cluster"


def test_ports_of_the_instances_match_the_list_of_nginx() -> None:
    """Procfile and instances.conf have the same ports; the mount points differ."""
    text = (CLUSTER / "Procfile").read_text()
    known = re.findall(
        r"^server 127\.0\.0\.1:(\d+) ",
        (SOURCE / "volcache" / "instances.conf").read_text(),
        flags=re.MULTILINE,
    )
    assert re.findall(r"VOLCACHE_PORT=(\d+)", text) == known
    assert re.findall(r"VOLCACHE_RING_SELF=127.0.0.1:(\d+)", text) == known
    assert len(set(re.findall(r"VOLCACHE_MOUNT_POINT=(\S+)", text))) == len(known) == 3


def test_process_of_make_cluster_receives_signals_itself() -> None:
    """A shell in between would receive them instead of the service."""
    lines = [
        line
        for line in (CLUSTER / "Procfile").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert len(lines) == 7
    assert all(" exec " in line for line in lines)


def test_prometheus_and_grafana_run_if_they_are_installed(tmp_path: Path) -> None:
    """With the files of conf/, at addresses of this machine; else they are left out."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("nginx", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    line = "disk1 disk2 disk3 memcached nginx"
    for names in ((), ("prometheus", "grafana")):
        for name in names:
            (bin_ / name).write_text("#!/bin/sh\n")
            (bin_ / name).chmod(0o755)
        done = make(tmp_path, "cluster", PATH=f"{bin_}:/usr/bin:/bin")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].endswith(" ".join([line, *names]))
        assert ("Prometheus: http://127.0.0.1:9090/;" in done.stdout) is bool(names)
    monitors = tmp_path / "cluster"
    (ports,) = json.loads((monitors / "prometheus" / "volcache.json").read_text())
    text = (SOURCE / "volcache" / "instances.conf").read_text()
    assert all(f"server {target} " in text for target in ports["targets"])
    folder = monitors / "grafana"
    sources = yaml.safe_load(
        (folder / "provisioning" / "datasources" / "volcache.yml").read_text()
    )
    assert sources["datasources"][0]["url"] == "http://127.0.0.1:9090"
    boards = yaml.safe_load(
        (folder / "provisioning" / "dashboards" / "volcache.yml").read_text()
    )
    assert boards["providers"][0]["options"]["path"] == "cluster/grafana"


def test_settings_are_valid_and_need_little_space() -> None:
    """Less than a GiB for all three."""
    environ = {"VOLCACHE_RING_SELF": "127.0.0.1:1234"}
    config = Sources(CLUSTER / "volcache.toml", environ).load()
    assert 3 * config.volume_size * config.volume_num < 1 << 30


def test_header_x_instance_is_on() -> None:
    """Unlike in the files that are installed."""
    recipe = (ROOT / "Makefile").read_text().partition("\ncluster:")[2].split("\n\n")[0]
    assert "'default 1;' > cluster/nginx/volcache/show-instance.conf" in recipe
    shipped = (SOURCE / "volcache" / "show-instance.conf").read_text()
    assert re.findall(r"^[^#\n].*$", shipped, re.MULTILINE) == ["default 0;"]
