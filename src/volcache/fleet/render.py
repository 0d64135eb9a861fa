"""
What an inventory stands for, as files: for nginx, for Prometheus, and for each machine.

The text of a file depends on the inventory only, except for `BEFORE`, which is the list of
instances before it was last changed.
"""

from __future__ import annotations

import json
import re
import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Final

from volcache.config import ENVIRONMENT_PREFIX
from volcache.fleet.inventory import (
    LISTEN_DEFAULT,
    MOUNT_POINT_DEFAULT,
    in_brackets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from volcache.fleet.inventory import Instance, Inventory, Machine

# Requests in flight to one instance, of one nginx: few of all that a client may have, or
# more, if there are few instances and each has a large share of them.
_CONNECTIONS_MIN: Final = 128
_CONNECTIONS_ALL: Final = 768
INSTANCES: Final = "nginx/volcache/instances.conf"
BEFORE: Final = "nginx/volcache/instances-before.conf"
PROMETHEUS: Final = "prometheus/volcache.json"
TARGETS_BEGIN: Final = '[\n  {"targets": ['  # Of `PROMETHEUS`.
MACHINES: Final = "machines"
_DOWN: Final = " down"  # Of a line of nginx's list.
# The setting `ring` of the instances; on a machine in etc/.
LISTS: Final = ("volcache/instances.conf", "volcache/instances-before.conf")
SCRIPT: Final = "apply.sh"  # The file that is executable.

# Escaped within double quotes by systemd.
_ESCAPED: Final = re.compile(r'(["\\`$])')
_BACKSLASH: Final = r"\\\1"
_PLACE: Final = re.compile(r"@([a-z_]+)@")  # Of a text.
_FOLDER: Final = resources.files("volcache.fleet")
_TEXTS: Final = tomllib.loads(_FOLDER.joinpath("rendered.toml").read_text("utf-8"))
HEADER: Final[str] = _TEXTS["header"]
_SCRIPT_TEXT: Final = _FOLDER.joinpath(SCRIPT).read_text("utf-8")
_RING_UNIT: Final = "etc/systemd/system/volcache@.service.d/ring.conf"


def render(inventory: Inventory, present: Mapping[str, str]) -> dict[str, str]:
    """
    Return the text of each file, by its path.

    Args:
        inventory: The machines and instances.
        present: The text of the files as they were last rendered, by path. Only the lists
            of instances are used.
    """
    instances = _instances_text(inventory)
    before = _before_text(instances, present)
    files = {
        INSTANCES: instances,
        BEFORE: before,
        PROMETHEUS: _prometheus_text(inventory),
    }
    lists = dict(zip(LISTS, _ring_texts(inventory, instances, before), strict=False))
    for machine in inventory.machines:
        own = inventory.of(machine)
        for path, text in _machine_files(machine, own, lists).items():
            files[f"{MACHINES}/{machine.name}/{path}"] = text
    return files


def machine_of(path: str) -> str | None:
    """Return the machine that a rendered file is for; None: it is for all."""
    top, _, rest = path.partition("/")
    return rest.partition("/")[0] if top == MACHINES else None


def _ring_texts(inventory: Inventory, instances: str, before: str) -> list[str]:
    """Return what is in `LISTS`: nothing if other instances take keys over."""
    if inventory.is_failover:
        return []
    now, old = (_servers(text) for text in (instances, before))
    if not inventory.is_growing or not old[0].startswith("server "):
        old = now
    return [_text("ring") + _lines(now), _text("ring_before") + _lines(old)]


def _instances_text(inventory: Inventory) -> str:
    how = "max_fails=1 fail_timeout=5s"
    if not inventory.is_failover:
        share = _CONNECTIONS_ALL // len(inventory.instances)
        how += f" max_conns={max(_CONNECTIONS_MIN, share)}"
    parts = [_text("instances")]
    for machine in inventory.machines:
        parts.append(f"\n# {machine.name}\n")
        parts += (
            f"server {found.address} weight={found.weight} {how}"
            f"{_DOWN if found.name in inventory.drained else ''};\n"
            for found in inventory.of(machine)
        )
    return "".join(parts)


def _before_text(instances: str, present: Mapping[str, str]) -> str:
    """Return the list before the last change: that of now if there is a change now."""
    old = present.get(INSTANCES)
    if old is None or _ring(old) == _ring(instances):
        return present.get(BEFORE, _text("before") + _TEXTS["no_before"])
    return _text("before") + _lines(_servers(old))


def _text(name: str, **values: object) -> str:
    """Return one of the texts, with its values filled in."""
    return HEADER + _filled(_TEXTS[name], values)


def _filled(text: str, values: Mapping[str, object]) -> str:
    return _PLACE.sub(lambda match: str(values[match[1]]), text)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _servers(text: str) -> list[str]:
    """Return the lines of a list without comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _ring(text: str) -> list[str]:
    """Return the lines that decide which keys an instance has."""
    return [line.replace(_DOWN, "") for line in _servers(text)]


def _prometheus_text(inventory: Inventory) -> str:
    """Return a file for file_sd_configs; it has a line for each instance."""
    rows = [
        {
            "targets": [found.operator_address],
            "labels": {
                "machine": found.machine.name,
                "disk": found.disk,
                "instance": found.address,
                **({"nginx": "down"} if found.name in inventory.drained else {}),
            },
        }
        for found in inventory.instances
    ]
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def _machine_files(
    machine: Machine, instances: Sequence[Instance], lists: Mapping[str, str]
) -> dict[str, str]:
    """Return the files of a machine, by their path below its folder."""
    files = {SCRIPT: _script_text(machine, instances)}
    files |= {f"etc/{path}": text for path, text in lists.items()}
    if lists:
        names = ",".join(f"/etc/{path}" for path in lists)
        host = in_brackets(machine.address)
        files[_RING_UNIT] = _text("ring_unit", lists=names, host=host)
    if machine.listen != LISTEN_DEFAULT:
        address, _, interface = machine.listen.partition("%")
        listen = f"[{address}]:%i" if ":" in address else f"{address}:%i"
        path = "etc/systemd/system/volcache@.socket.d/listen.conf"
        listen += interface and f"%%{interface}"
        files[path] = _text("listen", listen=listen)
    for found in instances:
        if variables := _variables(found):
            about = _text("environment", port=found.port)
            files[f"etc/volcache/{found.port}.env"] = about + variables
        if not _is_usual(found):
            path = f"etc/systemd/system/volcache@{found.port}.service.d/disk.conf"
            files[path] = _text("disk", port=found.port, mount_point=found.mount_point)
    return files


def _variables(instance: Instance) -> str:
    """Return the lines of an environment file of systemd; empty if there are none."""
    values = dict(instance.settings)
    if not _is_usual(instance):
        values["mount_point"] = instance.mount_point
    return "".join(
        f'{ENVIRONMENT_PREFIX}{name.upper()}="{_ESCAPED.sub(_BACKSLASH, value)}"\n'
        for name, value in sorted(values.items())
    )


def _is_usual(instance: Instance) -> bool:
    """Return whether the unit has the mount point already."""
    return instance.mount_point == MOUNT_POINT_DEFAULT.format(port=instance.port)


def _script_text(machine: Machine, instances: Sequence[Instance]) -> str:
    """Return the script that installs and enables; all paths are plain words."""
    folders = [found.mount_point for found in instances]
    disks = [
        found.disk
        if found.mount_point.startswith(f"{found.disk}/")
        else found.mount_point
        for found in instances
    ]
    values = {
        "header": HEADER.rstrip(),
        "machine": machine.name,
        "ports": " ".join(str(found.port) for found in instances),
        "lists": " ".join(LISTS),
        "ring_unit": _RING_UNIT,
        "disks": _words(dict.fromkeys(disks)),
        "folders": _words(folders),
    }
    return _filled(_SCRIPT_TEXT, values)


def _words(words: Iterable[str]) -> str:
    """Return words for a loop of the shell, one in each line."""
    return " \\\n".join(f"    {word}" for word in words)
