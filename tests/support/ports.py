"""Free ports for the servers that a test starts."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the range of the ports of outgoing connections: a client that connects while the
# server is down can neither occupy its port nor connect to itself.
PORTS: Final = range(20_000, 32_000)


def pick_port(ip: str = "127.0.0.1") -> int:
    """
    Return a port that is free at the moment.

    Raises:
        OSError: None of the ports tried was free.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    for port in random.SystemRandom().sample(PORTS, k=50):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((ip, port))
            except OSError:
                continue
            return port
    message = f"no free port found on {ip}"
    raise OSError(message)


def listens(port: int, ip: str = "127.0.0.1") -> bool:
    """Whether connections to a port are accepted."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        return probe.connect_ex((ip, port)) == 0
