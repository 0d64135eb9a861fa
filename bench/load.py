"""
Load on a server: wrk for HTTP, a small client of our own for memcached.

Each keeps a fixed number of connections busy with one request at a time and returns
how many requests were answered, or fails when a single one went wrong.
"""

from __future__ import annotations

import itertools
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from processes import IP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BENCH: Final = Path(__file__).resolve().parent
REQUESTS: Final = re.compile(r"^\s*(\d+) requests in ", re.MULTILINE)
TROUBLE: Final = re.compile(r"Non-2xx or 3xx|Socket errors|unable to|PANIC|error")
ANSWER_SECONDS: Final = 10.0


class LoadError(RuntimeError):
    """Some requests went wrong, so that the figures mean nothing."""


def wrk_path() -> str:
    """
    Find wrk.

    Raises:
        LoadError: It is not installed.
    """
    path = shutil.which("wrk")
    if path is None:
        raise LoadError("wrk is not installed; on Debian: apt-get install wrk")
    return path


def run_wrk(
    url: str,
    *,
    connections: int,
    seconds: float,
    script: str = "",
    arguments: Sequence[str] = (),
) -> int:
    """
    Run wrk with one thread.

    Args:
        url: What to ask for; a script may change the path.
        connections: How many are kept busy.
        seconds: How long, rounded up to whole seconds.
        script: The name of a Lua script in this folder.
        arguments: The script's arguments.

    Returns:
        The number of answers.

    Raises:
        LoadError: A socket error, a time-out or a status that is not 2xx.
    """
    whole_seconds = max(1, round(seconds))
    command = [wrk_path(), "-t1", f"-c{connections}", f"-d{whole_seconds}s"]
    if script:
        command += ["-s", str(BENCH / script)]
    command += [url, "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = REQUESTS.search(done.stdout)
    if done.returncode or found is None or TROUBLE.search(done.stdout + done.stderr):
        raise LoadError(f"{' '.join(command)} reported:\n{done.stdout}{done.stderr}")
    return int(found[1])


class MemcachedClient:
    """A closed loop over several connections in memcached's text protocol."""

    def __init__(self, port: int, *, connections: int) -> None:
        """Connect."""
        self._sockets = [
            socket.create_connection((IP, port), timeout=ANSWER_SECONDS)
            for _ in range(connections)
        ]
        for connection in self._sockets:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets:
            connection.close()

    def fill(self, keys: Iterable[bytes], value: bytes) -> None:
        """
        Store one value under every key.

        Raises:
            LoadError: memcached did not store it.
        """
        connection = self._sockets[0]
        for key in keys:
            connection.sendall(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
            answer = connection.recv(4096)
            if answer != b"STORED\r\n":
                raise LoadError(f"memcached answered a set with {answer!r}")

    def get(self, keys: Sequence[bytes], value_bytes: int, seconds: float) -> int:
        """
        Get the keys in order, again and again.

        Every connection has one request under way: its answer is read and its next
        request sent, connection after connection, so that memcached always has work.

        Args:
            keys: What to ask for, in an order drawn by the caller.
            value_bytes: The length of every value.
            seconds: How long.

        Returns:
            The number of answers, all of them hits.

        Raises:
            LoadError: An answer is not a hit of the right length.
        """
        source = itertools.cycle(
            (b"get %b\r\n" % key, len(_hit(key, value_bytes)) + value_bytes)
            for key in keys
        )
        expected = []
        for connection in self._sockets:
            request, answer_bytes = next(source)
            connection.sendall(request)
            expected.append(answer_bytes)
        answered = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for number, connection in enumerate(self._sockets):
                _receive_hit(connection, expected[number])
                request, expected[number] = next(source)
                connection.sendall(request)
            answered += len(self._sockets)
        for connection, answer_bytes in zip(self._sockets, expected, strict=True):
            _receive_hit(connection, answer_bytes)
        return answered + len(self._sockets)


def _hit(key: bytes, value_bytes: int) -> bytes:
    """Return what stands around the value in the answer to a get that hits."""
    return b"VALUE %b 0 %d\r\n\r\nEND\r\n" % (key, value_bytes)


def _receive_hit(connection: socket.socket, answer_bytes: int) -> None:
    """
    Read one answer.

    Raises:
        LoadError: It is no hit, or of another length.
    """
    answer = connection.recv(answer_bytes + 1)
    if not answer.startswith(b"VALUE "):
        raise LoadError(f"memcached answered a get with {answer[:40]!r}")
    while len(answer) < answer_bytes:
        more = connection.recv(answer_bytes + 1 - len(answer))
        if not more:
            raise LoadError("memcached closed the connection")
        answer += more
    if not answer.endswith(b"\r\nEND\r\n"):
        raise LoadError(f"memcached's answer ends with {answer[-40:]!r}")
