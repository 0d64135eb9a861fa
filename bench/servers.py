"""
What is measured, each as it is started: `Server`s that do not run yet.

Those in Python that are no volcache take the web part, and nothing else, from `src`.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nginx_static
from machine import ROOT
from processes import IP, Server
from support.nginx import copy_configuration, instances_text, start_command
from support.process import settings_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BENCH: Final = ROOT / "bench"
# What is done to the files of a configuration, given their folder.
Change = Callable[[Path], None]

PYTHON_PATH: Final = {"PYTHONPATH": str(ROOT / "src")}


def volcache(settings: Mapping[str, object], tree: Path | None = None) -> Server:
    """Make volcache as `python src/`, of this tree or of another one."""
    return Server(
        lambda _: (sys.executable, (tree or ROOT) / "src"),
        environment=lambda port: settings_environment(
            {"ip": IP, **settings, "port": port}
        ),
    )


def floor(value_bytes: int, status: str) -> Server:
    """Make what answers a constant of a length."""
    script = BENCH / "floor.py"
    return Server(
        lambda port: (sys.executable, script, str(port), str(value_bytes), status),
        environment=lambda _: PYTHON_PATH,
    )


def step(name: str, count: int, value_bytes: int, folder: Path) -> Server:
    """Make one of the steps between the floor and volcache; `folder` is for its files."""
    script, sizes = BENCH / "ladder.py", (str(count), str(value_bytes))
    return Server(
        lambda port: (sys.executable, script, str(port), name, *sizes, folder),
        environment=lambda _: PYTHON_PATH,
    )


def one_file_per_key(root: Path) -> Server:
    """Make what serves a folder in Python."""
    script = BENCH / "one_file_per_key.py"
    return Server(
        lambda port: (sys.executable, script, str(port), root),
        environment=lambda _: PYTHON_PATH,
    )


def nginx(folder: Path, root: Path, *, cached: bool) -> Server:
    """Make nginx that serves `root`; the rest is as `nginx_static.command` has it."""
    return Server(lambda port: nginx_static.command(folder, root, port, cached=cached))


def unchanged(_folder: Path) -> None:
    """Leave the configuration as it is."""


def replaced(name: str, old: str, new: str) -> Change:
    """Make a change of one piece of a file of the configuration."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{name} does not hold {old!r}")
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


def nginx_before(
    instances: Sequence[Server], folder: Path, change: Change = unchanged
) -> Server:
    """
    Make nginx with the configuration of this repository.

    Args:
        instances: What it passes requests on to.
        folder: For the configuration and nginx's own files; made.
        change: What is changed of the configuration.

    """

    def command(port: int) -> Sequence[str]:
        copy_configuration(folder)
        replaced("volcache/listen.conf", "127.0.0.1:8080", f"{IP}:{port}")(folder)
        replaced("volcache/log.conf", "/var/log/nginx/", f"{folder}/")(folder)
        names = [f"{IP}:{server.port}" for server in instances]
        lines = instances_text(names)
        (folder / "volcache/instances.conf").write_text(lines, encoding="utf-8")
        change(folder)
        return start_command(folder, "cluster.conf")

    return Server(command)


def memcached(memory_mib: int) -> Server:
    """Make memcached with one thread, as bjoern has one."""
    user = ("-u", getpass.getuser()) if os.geteuid() == 0 else ()
    options = ("-U", "0", "-t", "1", "-m", str(memory_mib), "-I", "2m", *user)
    return Server(lambda port: ("memcached", "-l", IP, "-p", str(port), *options))
