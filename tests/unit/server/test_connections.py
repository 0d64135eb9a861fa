"""connections.py: which connections are found, and which are idle."""

from __future__ import annotations

import socket
import time

from support.waiting import wait_until
from volcache.server.bjoern import listen
from volcache.server.connections import accepted, is_idle


def test_connections_of_a_listener_are_found() -> None:
    """And only those; idle are those that wait for the first byte of a request."""
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
            assert not is_idle(served, quiet_ms=0)  # Unread.
            served.recv(100)
            assert not is_idle(served, quiet_ms=0)  # Unanswered.
            time.sleep(0.02)  # The kernel's clock ticks every 1 to 10 ms.
            served.sendall(b"answer")  # Idle even if the client has not read it.
            wait_until(lambda: is_idle(served, quiet_ms=10), "it to be idle")
            client.sendall(b"begin of the ")
            served.recv(100)
            assert not is_idle(served, quiet_ms=0)


def test_socket_of_another_kind_is_not_idle() -> None:
    """In doubt nothing is shut down."""
    one, two = socket.socketpair()
    with one, two:
        assert not is_idle(one, quiet_ms=0)
