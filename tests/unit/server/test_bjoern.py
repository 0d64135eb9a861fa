"""Listening and serving, as far as no process of its own is needed."""

from __future__ import annotations

import errno
import os
import signal
import socket

import pytest

from support.ports import pick_port
from volcache.errors import ListenError
from volcache.server.bjoern import listen, serve


def never(*_: object) -> list[bytes]:
    """Stand for an application that is never called."""
    raise AssertionError


def test_listener_has_what_bjoern_needs() -> None:
    """Options the connections inherit, no waiting, not passed to children."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert not listener.getblocking()
        assert not listener.get_inheritable()


def test_port_in_use_names_address_and_way_out() -> None:
    """One line that says which address, why, and what to do."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            listen("127.0.0.1", port)
    text = str(caught.value)
    assert text.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "another port" in text
    assert "\n" not in text


def test_port_can_be_taken_again_at_once() -> None:
    """A restart does not wait for connections of the process before."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.setblocking(True)  # noqa: FBT003
            listener.accept()[0].close()  # Now in TIME_WAIT on this side.
            assert client.recv(1) == b""
    listen("127.0.0.1", port).close()


def test_foreign_address_is_refused() -> None:
    """An address of another machine; nothing stays open."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:\d+: .*take an ip"):
        listen("192.0.2.1", pick_port())
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EACCES, "1024"), (errno.EAFNOSUPPORT, "IPv4"), (errno.EIO, "check ip")],
)
def test_every_cause_has_an_advice(
    number: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPv6 addresses are shown in brackets."""

    def refuse(*_: object) -> socket.socket:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("volcache.server.bjoern.socket.socket", refuse)
    with pytest.raises(ListenError, match=rf"on \[::1\]:80: .*{advice}"):
        listen("::1", 80)


def test_loop_that_fails_leaves_signals_as_they_were() -> None:
    """An error of bjoern comes out, and handlers, mask and descriptors are back."""
    listener = listen("127.0.0.1", 0)
    listener.close()
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(ValueError, match="descriptor"):
        serve(listener, never)
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    assert len(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208
