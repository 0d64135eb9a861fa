"""The instances on this machine: restart them, or run an inventory, for a trial."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from volcache.config import ENVIRONMENT_PREFIX
from volcache.errors import FolderError, InstanceError
from volcache.fleet.remote import TIMEOUT_SECONDS, problem_of
from volcache.text import counted, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from volcache.fleet.inventory import Instance
    from volcache.fleet.targets import Target

STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1
_SHOWN_MAX: Final = 200
_PROGRAM: Final = "import sys; from volcache.cli.main import main; sys.exit(main())"


def is_local(target: Target) -> bool:
    """Return whether the address of an instance is one of this machine."""
    host = urlsplit(target.url).hostname
    try:
        for family, kind, _, _, address in socket.getaddrinfo(
            host, 0, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind) as probe:
                probe.bind(address)
    except OSError:
        return False
    return True


def restart(target: Target, timeout: float) -> float:
    """
    Let systemd restart an instance of this machine, and wait until it is ready.

    Args:
        target: Its unit is that of its port.
        timeout: Until it is ready, after systemd has started it; seconds.

    Returns:
        How long it took.

    Raises:
        InstanceError: It was not restarted, or is not ready in time.
    """
    unit = f"volcache@{urlsplit(target.url).port}.service"
    began = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603 - The unit has a number only.
            ["systemctl", "restart", unit],  # noqa: S607 - Where the system has it.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise InstanceError(target.name, f"systemctl: {error.strerror}") from error
    if done.returncode:
        said = one_line(done.stderr.decode(errors="replace"), _SHOWN_MAX)
        reason = f"systemctl restart {unit}: {_described(done.returncode)}: {said}"
        raise InstanceError(target.name, reason)
    end = time.monotonic() + timeout
    while problem := problem_of(target.url, timeout=min(timeout, TIMEOUT_SECONDS)):
        if time.monotonic() > end:
            reason = f"restarted, but not ready within {timeout:g} s: {problem}"
            raise InstanceError(target.name, f"{reason}; see journalctl -u {unit}")
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - began


def run_all(
    instances: Sequence[Instance],
    folder: Path,
    config: str | None,
    ring: str,
    report: Callable[[str], None],
) -> bool:
    """
    Run instances until all have ended, or until an exception, as that of Ctrl-C.

    Each has its files in `folder`/MACHINE/PORT, and its log in PORT.log beside it. One
    that ends is not started again. All have ended when this returns or raises.

    Args:
        instances: What to run; they listen where the inventory says.
        folder: Created if it does not exist.
        config: A settings file for all of them.
        ring: nginx's list, from which they know which keys are theirs; empty: all.
        report: Called with a line at the start, and when an instance ends.

    Returns:
        Whether all ended with exit code 0.

    Raises:
        FolderError: The folder cannot be written.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    is_good = True
    path = folder / "instances.conf" if ring else None
    try:
        if path:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(ring, encoding="utf-8")
        for instance in instances:
            running[instance.name] = _start(instance, folder, config, path)
        report(f"started {counted(len(running), 'instance')}; Ctrl-C stops all")
        while running:
            time.sleep(_POLL_SECONDS)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    how = _described(process.returncode)
                    report(f"{name} has ended: {how}; see its log")
                    is_good = is_good and process.returncode == 0
                    del running[name]
    except OSError as error:
        raise FolderError(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        _stop(list(running.values()))
    return is_good


def _start(
    instance: Instance, folder: Path, config: str | None, ring: Path | None
) -> subprocess.Popen[bytes]:
    own = folder / instance.machine.name
    own.mkdir(parents=True, exist_ok=True)
    words = ["serve", config] if config else ["serve"]
    with (own / f"{instance.port}.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - This program.
            [sys.executable, "-c", _PROGRAM, *words],
            env=_environment(instance, own / str(instance.port), ring),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _environment(
    instance: Instance, mount_point: Path, ring: Path | None
) -> Mapping[str, str]:
    settings = {
        **instance.settings,
        "ip": instance.machine.listen,
        "port": str(instance.port),
        "mount_point": str(mount_point),
    }
    if ring:
        settings |= {"ring": str(ring), "ring_self": instance.address}
    settings["instance"] = str(instance.port)  # What %i stands for.
    own = {f"{ENVIRONMENT_PREFIX}{k.upper()}": v for k, v in settings.items()}
    # The package is where this process has found it.
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _described(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
