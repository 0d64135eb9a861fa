"""
The health check of the image: exit code 0 if the instance answers `/-/healthy` with 200.

Asks at VOLCACHE_IP and VOLCACHE_PORT, as the instance of this container listens there; a
port that is set in a file or by `--set` is not known here. Run every few seconds, so it
imports as little as possible.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_SECONDS: Final = 3.0
PORT: Final = "1234"
# What listens on all addresses is reached through loopback.
LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_REQUEST: Final = b"GET /-/healthy HTTP/1.0\r\nHost: localhost\r\n\r\n"
_PORTS: Final = range(1, 65536)


def problem(environ: Mapping[str, str]) -> str:
    """Return why the instance is not healthy; empty if it is."""
    ip = environ.get("VOLCACHE_IP", "")
    text = environ.get("VOLCACHE_PORT", PORT)
    # Five digits at most: int() refuses thousands of them.
    if not (text.isascii() and text.isdigit() and int(text[:6]) in _PORTS):
        return f"VOLCACHE_PORT = {text[:20]!r}: the health check needs 1 to 65535"
    address = LOOPBACK.get(ip, ip), int(text)
    try:
        with socket.create_connection(address, TIMEOUT_SECONDS) as connection:
            connection.sendall(_REQUEST)
            with connection.makefile("rb") as stream:
                line = stream.readline(256)
    except OSError as error:
        return f"{address[0]} port {text}: {error}"
    # HTTP/1.1 200 OK
    if not line.startswith(b"HTTP/") or line.split()[1:2] != [b"200"]:
        return f"{address[0]} port {text}: not 200 but {line.decode('latin-1')!r}"
    return ""


if __name__ == "__main__":
    sys.exit(problem(os.environ) or None)
