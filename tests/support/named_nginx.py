"""nginx that finds instances by names: in a hosts file that nobody else sees."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.nginx import NginxProcess, instances_of
from volcache_client.ring import HashRing


class NamedNginx(NginxProcess):
    """One nginx; the instances that it knows need not exist."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        """Make the folder, which gets the hosts file; addresses are by name."""
        super().__init__(folder, "cluster.conf")
        folder.mkdir()
        self.addresses = addresses
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        (folder / "hosts").write_text("".join(lines))

    def command(self) -> list[str]:
        """Return a command that replaces /etc/hosts for nginx alone."""
        hosts = str(self.folder / "hosts")
        return [*alone('mount --bind "$0" /etc/hosts', hosts), *super().command()]

    def names_of(self, paths: Sequence[str]) -> list[str]:
        """Return the name of the instance that each path's key belongs to."""
        names = {f"{address}:1234": name for name, address in self.addresses.items()}
        return [names[found] for found in instances_of(self.port, paths)]


def ring_names(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return what `names_of` should return, by our own ring."""
    ring = HashRing([(f"{name}:1234", 10) for name in names])
    return [ring.node(path[1:]).removesuffix(":1234") for path in paths]


def alone(script: str, argument: str) -> list[str]:
    """Return what runs a script, and then a command, in a mount namespace of its own."""
    if not os.geteuid():
        return ["unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', argument]
    # As root to mount, and then as no root: nginx would look for other users.
    user = 'exec unshare --map-user=1000 --map-group=1000 "$@"'
    front = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    return [*front, f"{script} && {user}", argument]


def may_mount() -> bool:
    """Whether a mount namespace can be made here."""
    command = [*alone('mount --bind "$0" /etc/hosts', "/etc/hosts"), "true"]
    return not subprocess.run(command, capture_output=True, check=False).returncode
