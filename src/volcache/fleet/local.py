"""Restarts the instances on this machine."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from volcache.errors import InstanceError
from volcache.fleet.remote import TIMEOUT_SECONDS, problem_of
from volcache.text import one_line

if TYPE_CHECKING:
    from volcache.fleet.targets import Target

_POLL_SECONDS: Final = 0.1
_SHOWN_MAX: Final = 200


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


def _described(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
