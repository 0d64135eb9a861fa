"""The connections of a listening socket, found among descriptors, and which are idle."""

from __future__ import annotations

import socket
import time

from support.waiting import wait_until
from volcache.server.bjoern import listen
from volcache.server.connections import accepted, is_idle


def test_connections_are_found_and_told_apart() -> None:
    """Only those of the socket; idle are those that wait for a request's first byte."""
    with (
        listen("127.0.0.1", 0) as listener,
        listen("127.0.0.1", 0) as other,
        socket.create_connection(listener.getsockname()) as client,
        socket.create_connection(other.getsockname()),
    ):
        listener.setblocking(True)  # noqa: FBT003
        served, _ = listener.accept()
        with served:
            assert [c.getpeername() for c in accepted(listener)] == [
                client.getsockname()
            ]
            assert is_idle(served, quiet_ms=0)
            assert not is_idle(served, quiet_ms=60_000)
            client.sendall(b"request")
            assert not is_idle(served, quiet_ms=0)  # Not read yet.
            served.recv(100)
            assert not is_idle(served, quiet_ms=0)  # Not answered yet.
            time.sleep(0.02)  # The kernel's clock ticks every 1 to 10 ms.
            served.sendall(b"answer")  # Whether it has been taken does not matter.
            wait_until(lambda: is_idle(served, quiet_ms=10), "it to be idle")
            client.sendall(b"begin of the ")
            served.recv(100)
            assert not is_idle(served, quiet_ms=0)


def test_other_kinds_of_sockets_are_never_idle() -> None:
    """In doubt nothing is shut down."""
    one, two = socket.socketpair()
    with one, two:
        assert not is_idle(one, quiet_ms=0)
