"""Restarts the instances on this machine."""

from __future__ import annotations

import shlex
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


SYSTEMD: Final = "systemctl restart volcache@{port}.service"


def restart(target: Target, timeout: float, command: str = SYSTEMD) -> float:
    """
    Restart an instance of this machine by a command, and wait until it is ready.

    Args:
        target: The instance.
        timeout: Until it is ready, after the command has ended; seconds.
        command: Its words, split as a shell does; {port} is that of the instance.

    Returns:
        How long it took.

    Raises:
        InstanceError: It was not restarted, or is not ready in time.
    """
    line = command.replace("{port}", str(urlsplit(target.url).port))
    words, began = shlex.split(line), time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603 - It is the operator's command.
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise InstanceError(target.name, f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        said = one_line(done.stderr.decode(errors="replace"), _SHOWN_MAX)
        reason = f"{line}: {_described(done.returncode)}: {said}"
        raise InstanceError(target.name, reason)
    end = time.monotonic() + timeout
    while problem := problem_of(
        target.operator_url, timeout=min(timeout, TIMEOUT_SECONDS)
    ):
        if time.monotonic() > end:
            reason = f"restarted, but not ready within {timeout:g} s: {problem}"
            raise InstanceError(target.name, f"{reason}; see its log")
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - began


def _described(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
