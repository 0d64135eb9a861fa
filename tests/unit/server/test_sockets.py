"""sockets.py: listening, and socket activation."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.ports import pick_port
from volcache.errors import ListenError
from volcache.server import sockets as module
from volcache.server.sockets import activated_listener, listen


def descriptors() -> int:
    """Return how many are open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def require_options(listener: socket.socket) -> None:
    """Require what the loops need: options that connections inherit, and no waiting."""
    assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    assert not listener.getblocking()
    assert not listener.get_inheritable()


def test_listen_on_a_port_in_use_names_the_remedy() -> None:
    """One line with the address, the reason and the remedy."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        require_options(listener)
        with pytest.raises(ListenError) as caught:
            listen("127.0.0.1", port)
    text = str(caught.value)
    assert text.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "use another port" in text
    assert "\n" not in text


def test_listen_after_another_process_reuses_the_port() -> None:
    """A restart does not wait for the connections of the previous process."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.setblocking(True)  # noqa: FBT003
            listener.accept()[0].close()  # This side is in TIME_WAIT.
            assert client.recv(1) == b""
    listen("127.0.0.1", port).close()


def test_listen_on_a_wrong_address_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IPv6 addresses are shown in brackets; no descriptor stays open."""
    before = descriptors()
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:\d+: .*use an ip"):
        listen("192.0.2.1", pick_port())
    assert descriptors() == before
    for number, remedy in (
        (errno.EACCES, "1024"),
        (errno.EAFNOSUPPORT, "IPv4"),
        (errno.EIO, "check ip"),
    ):
        refuse = Mock(side_effect=OSError(number, os.strerror(number)))
        monkeypatch.setattr("volcache.server.sockets.socket.socket", refuse)
        with pytest.raises(ListenError, match=rf"on \[::1\]:80: .*{remedy}"):
            listen("::1", 80)


# --- Socket activation -------------------------------------------------------------

ENVIRONMENT = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Pass a listening socket, with a free descriptor instead of 3."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        duplicate = os.dup(listener.fileno())
        monkeypatch.setattr(module, "FIRST_DESCRIPTOR", duplicate)
        yield listener
        try:
            os.close(duplicate)
        except OSError:
            return  # The test has closed it.


def test_passed_socket_gets_the_options_of_connections(passed: socket.socket) -> None:
    """It is the same socket; the variables are removed."""
    environ = ENVIRONMENT | {"LISTEN_FDNAMES": "volcache", "HOME": "/"}
    listener = activated_listener(environ)
    assert listener is not None
    with listener:
        assert listener.getsockname() == passed.getsockname()
        require_options(listener)
    assert environ == {"HOME": "/"}


def test_socket_of_another_process_is_not_touched(passed: socket.socket) -> None:
    """A parent may have left its variables in the environment."""
    environs: list[dict[str, str]] = [{}, {"LISTEN_FDS": "1"}]
    for environ in (*environs, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}):
        assert activated_listener(environ) is None
        assert environ == {}
        assert passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_activation_without_one_listening_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start fails for a wrong unit file; the text says what to pass."""
    for count in ("0", "2", "", "one"):
        with pytest.raises(ListenError, match="pass one, by one ListenStream"):
            activated_listener(ENVIRONMENT | {"LISTEN_FDS": count})
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(module, "FIRST_DESCRIPTOR", file.fileno())
        with pytest.raises(ListenError, match="is not a socket"):
            activated_listener(dict(ENVIRONMENT))
    for family, kind in (
        (socket.AF_INET, socket.SOCK_STREAM),  # It does not listen.
        (socket.AF_INET, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_STREAM),
    ):
        other = socket.socket(family, kind)
        monkeypatch.setattr(module, "FIRST_DESCRIPTOR", other.detach())
        with pytest.raises(ListenError, match="does not listen for TCP"):
            activated_listener(dict(ENVIRONMENT))
