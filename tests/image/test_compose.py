"""The composition is consistent; its nginx spreads keys by the names of the services."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from scale import scaled, targets
from support.named_nginx import NamedNginx, may_mount, ring_names
from support.nginx import SOURCE
from support.program import ended
from support.tables import rows
from volcache import __version__
from volcache.config import Sources

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = ROOT / "conf" / "compose"
GRAFANA: Final = ROOT / "conf" / "grafana"
INSTANCES: Final = ["disk1", "disk2", "disk3"]


def composed(number: int) -> dict[str, Any]:
    """Return the composition of a number of instances."""
    text = scaled((COMPOSE / "compose.yaml").read_text(), number)
    # As compose puts a variable in that is not set.
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    found: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))
    return found


PROJECT: Final = composed(len(INSTANCES))
SERVICES: Final[dict[str, dict[str, Any]]] = PROJECT["services"]


def mounts(service: str) -> dict[str, str]:
    """Return the volumes of a service: source by target."""
    return {
        volume.split(":")[1]: volume.split(":")[0]
        for volume in SERVICES[service].get("volumes", [])
    }


def test_services_are_as_described() -> None:
    """Three instances, each with a volume of its own."""
    assert set(SERVICES) == {
        *INSTANCES,
        *("memcached", "nginx", "nginx-exporter", "prometheus", "grafana"),
    }
    # With nginx's list, of which they know by it which keys are theirs.
    folder = "./nginx"
    assert [mounts(name) for name in INSTANCES] == [
        {"/data": name, "/etc/volcache": folder} for name in INSTANCES
    ]
    named = {s for n in SERVICES for s in mounts(n).values() if not s.startswith(".")}
    assert named == set(PROJECT["volumes"])


def test_compose_mounts_files_that_exist() -> None:
    """They are read-only, and nginx's replace files that exist."""
    found = 0
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                found += 1
                assert (COMPOSE / source).exists(), source
                assert mode == ["ro"]
                if target.startswith("/etc/volcache/"):
                    assert (SOURCE / target.removeprefix("/etc/volcache/")).exists()
    assert found == 13


def test_compose_images_are_pinned() -> None:
    """By a version; that of the instances is the one of this tree."""
    for name, service in SERVICES.items():
        tag = service["image"].rpartition(":")[2]
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), service["image"]
        if name in INSTANCES:
            assert service["image"] == f"volcache:{__version__}"
            assert service["build"]["args"] == {"VERSION": __version__}


def test_compose_settings_are_valid() -> None:
    """With the tokens that .env may have; without, everyone may write."""
    for name in INSTANCES:
        config = Sources(None, SERVICES[name]["environment"]).load()
        assert config.memc_on
        assert config.memc_ip in SERVICES
        assert SERVICES[name]["init"] is True
        assert config.admin_hosts == (name,)
        assert (config.read_token, config.write_token) == ("", "")
        assert "VOLCACHE_PORT" not in SERVICES[name]["environment"]


@rows(1, 3, 12, 100)
def test_scale_makes_equal_lists_of_instances(number: int) -> None:
    """That of nginx, that of Prometheus, and the addresses."""
    project, names = composed(number), [f"disk{n}" for n in range(1, number + 1)]
    services = project["services"]
    assert [name for name in services if name.startswith("disk")] == names
    text = scaled((COMPOSE / "nginx" / "instances.conf").read_text(), number)
    (connections,) = set(re.findall(r" max_conns=(\d+);$", text, re.MULTILINE))
    assert int(connections) == max(128, 768 // number)
    form = f"weight=10 max_fails=1 fail_timeout=5s max_conns={connections};"
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    assert lines == [f"server {name}:1234 {form}" for name in names]
    groups = json.loads(targets(number))
    assert [group["targets"] for group in groups] == [
        [f"{name}:1234"] for name in names
    ]
    assert [group["labels"]["disk"] for group in groups] == names
    hosts = dict(line.split(":") for line in project["x-hosts"])
    assert hosts == {
        name: services[name]["networks"]["inside"]["ipv4_address"] for name in names
    }
    assert len(set(hosts.values())) == number
    for name in ("nginx", "prometheus"):
        assert services[name]["extra_hosts"] == project["x-hosts"]
    (network,) = project["networks"]["inside"]["ipam"]["config"]
    subnet, others = (IPv4Network(network[name]) for name in ("subnet", "ip_range"))
    addresses = [IPv4Address(address) for address in hosts.values()]
    assert all(address in subnet and address not in others for address in addresses)
    assert others.subnet_of(subnet)
    assert set(names) < set(project["volumes"])
    for name in names:
        environment = services[name]["environment"]
        assert environment["VOLCACHE_RING_SELF"] == f"{name}:1234"
        assert environment["VOLCACHE_ADMIN_HOSTS"] == name


def test_compose_publishes_nginx_only() -> None:
    """Instances and memcached are on no network but the internal one."""
    assert PROJECT["networks"]["inside"]["internal"] is True
    ports = {n: s["ports"] for n, s in SERVICES.items() if "ports" in s}
    assert ports == {
        "nginx": ["127.0.0.1:8080:8080"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    raw = (COMPOSE / "compose.yaml").read_text()
    assert re.findall(r"\$\{LISTEN:.*", raw) == ['${LISTEN:-127.0.0.1:8080}:8080"]']
    for name in (*INSTANCES, "memcached"):
        assert list(SERVICES[name]["networks"]) == ["inside"]


def test_compose_services_are_bounded_and_restarted() -> None:
    """Memory, processes, logs and privileges; each has a health check."""
    for name, service in SERVICES.items():
        assert service["mem_limit"], name
        # That of an instance is in the image.
        is_checked = name not in (*INSTANCES, "nginx-exporter")
        assert ("healthcheck" in service) == is_checked, name
        assert service["pids_limit"], name
        assert service["restart"] == "unless-stopped"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["logging"]["options"]["max-size"]
        if name != "grafana":  # It unpacks plug-ins.
            assert service["read_only"] is True


@rows("nginx", "memcached")
def test_compose_health_check_needs_an_answer(name: str) -> None:
    """Where nothing listens, or something else does, it fails."""
    *_, script = SERVICES[name]["healthcheck"]["test"]
    port = {"nginx": "8080", "memcached": "11211"}[name]
    assert f"/dev/tcp/127.0.0.1/{port} " in script
    # Answers that are read from a file in place of the connection.
    right = {"nginx": "HTTP/1.1 200 OK\r\n", "memcached": "VERSION 1.6.38\r\n"}[name]
    for text, code in ((right, 0), ("HTTP/1.1 503 draining\r\n", 1), ("", 1)):
        local = re.sub(r"exec 3<>\S+", 'exec 3< <(printf "$0") 4>/dev/null', script)
        local = local.replace(">&3", ">&4")
        assert ended(["bash", "-c", local, text]).returncode == code, text
    refused = script.replace(f"/{port} ", "/1 ")
    assert ended(["bash", "-c", refused]).returncode == 1


def test_compose_ports_of_nginx_agree() -> None:
    """That which is published, and that of the metrics."""
    listen = (COMPOSE / "nginx" / "listen.conf").read_text()
    assert re.findall(r"^listen (\d+) ", listen, re.MULTILINE) == ["8080"]
    status = (COMPOSE / "nginx" / "status.conf").read_text()
    assert "    listen 8089;\n" in status
    assert "    location = /-/nginx/status {\n        stub_status;\n" in status
    (command,) = SERVICES["nginx-exporter"]["command"]
    assert command == "--nginx.scrape-uri=http://nginx:8089/-/nginx/status"
    # scrape.yml has 127.0.0.1:9113.
    assert SERVICES["nginx-exporter"]["network_mode"] == "service:prometheus"


def test_compose_prometheus_finds_its_files() -> None:
    """Beside the file that its command names."""
    scrape = yaml.safe_load((ROOT / "conf/prometheus/scrape.yml").read_text())
    (job, _) = scrape["scrape_configs"]
    needed = {*scrape["rule_files"], *job["file_sd_configs"][0]["files"], "scrape.yml"}
    assert {f"/etc/prometheus/{name}" for name in needed} <= set(mounts("prometheus"))
    assert (
        "--config.file=/etc/prometheus/scrape.yml" in SERVICES["prometheus"]["command"]
    )


def test_compose_grafana_has_the_dashboard() -> None:
    """Its source of data is the Prometheus of the composition."""
    folder = GRAFANA / "provisioning"
    sources = yaml.safe_load((folder / "datasources" / "volcache.yml").read_text())
    assert sources["apiVersion"] == 1
    (source,) = sources["datasources"]
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    dashboards = yaml.safe_load((folder / "dashboards" / "volcache.yml").read_text())
    assert dashboards["apiVersion"] == 1
    (provider,) = dashboards["providers"]
    assert provider["type"] == "file"
    path = f"{provider['options']['path']}/volcache.json"
    assert mounts("grafana")[path] == "../grafana/volcache.json"
    assert mounts("grafana")["/etc/grafana/provisioning"] == "../grafana/provisioning"
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == path


class ComposedNginx(NamedNginx):
    """nginx with the files of the composition."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        """Write the configuration; nothing is started yet."""
        super().__init__(folder, addresses)
        shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
        (folder / "temp").mkdir()
        for name, old, new in (
            ("instances.conf", "max_fails=1", "max_fails=0"),  # No instance is there.
            ("listen.conf", "listen 8080", f"listen 127.0.0.1:{self.port}"),
            ("log.conf", "/dev/stdout", "access.log"),
            ("status.conf", "listen 8089", f"listen unix:{folder}/status"),
        ):
            text = (COMPOSE / "nginx" / name).read_text()
            assert old in text
            (folder / "volcache" / name).write_text(text.replace(old, new))
        (folder / "volcache" / "show-instance.conf").write_text("default 1;\n")


@pytest.mark.integration
@pytest.mark.skipif(not may_mount(), reason="no mount namespaces are allowed here")
def test_compose_nginx_spreads_keys_by_names_of_services(tmp_path: Path) -> None:
    """When containers get other addresses, each key stays on its volume."""
    paths = [f"/spread/{n}" for n in range(300)]
    wanted = ring_names(INSTANCES, paths)
    assert min(Counter(wanted).values()) > 60
    for number, front in enumerate(("127.0.7.", "127.0.8.")):
        # Ports that nothing listens at: nginx still says where it sent a request.
        ends = zip(INSTANCES, (3, 1, 2), strict=True)
        addresses = {name: f"{front}{n}" for name, n in ends}
        with ComposedNginx(tmp_path / f"nginx{number}", addresses) as nginx:
            assert nginx.names_of(paths) == wanted
