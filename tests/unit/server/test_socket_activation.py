"""inherited.py: which socket is taken over, and which is refused with a reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from volcache.errors import ListenError
from volcache.server import bjoern as inherited
from volcache.server.bjoern import activated_listener

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Give a listening socket under a number of our own instead of 3."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        duplicate = os.dup(listener.fileno())
        monkeypatch.setattr(inherited, "FIRST_DESCRIPTOR", duplicate)
        yield listener
        try:
            os.close(duplicate)
        except OSError:
            return  # Taken over, and closed by the test.


def test_given_socket_is_prepared_for_bjoern(given: socket.socket) -> None:
    """It is the same socket, with the options connections inherit."""
    environ = ENVIRONMENT | {"LISTEN_FDNAMES": "volcache", "HOME": "/"}
    listener = activated_listener(environ)
    assert listener is not None
    with listener:
        assert listener.getsockname() == given.getsockname()
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not listener.getblocking()
        assert not listener.get_inheritable()
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    "environ",
    [{}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}],
    ids=["none", "no pid", "another's"],
)
def test_what_is_not_for_us_is_left_alone(
    environ: dict[str, str], given: socket.socket
) -> None:
    """Variables of a parent that did not clear them mean nothing."""
    assert activated_listener(environ) is None
    assert environ == {}
    assert given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


@pytest.mark.parametrize("count", ["0", "2", "", "one"])
def test_exactly_one_socket_is_taken(count: str) -> None:
    """Two addresses would need two of them; the text says what to give."""
    with pytest.raises(ListenError, match="give one, by one ListenStream"):
        activated_listener(ENVIRONMENT | {"LISTEN_FDS": count})


def test_descriptor_that_is_no_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, no traceback of an OSError."""
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setattr(inherited, "FIRST_DESCRIPTOR", file.fileno())
        with pytest.raises(ListenError, match="is no socket"):
            activated_listener(dict(ENVIRONMENT))


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (socket.AF_INET, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_STREAM),
    ],
    ids=["not listening", "UDP", "a path"],
)
def test_other_kinds_of_socket_are_refused(
    family: socket.AddressFamily,
    kind: socket.SocketKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A unit with another kind of line is told so at the start."""
    other = socket.socket(family, kind)
    monkeypatch.setattr(inherited, "FIRST_DESCRIPTOR", other.detach())
    with pytest.raises(ListenError, match="does not listen for TCP"):
        activated_listener(dict(ENVIRONMENT))


def test_wrong_unit_ends_the_start_with_one_line(tmp_path: Path) -> None:
    """`python src/` says what is wrong and returns 1, before it touches the disk."""
    source = Path(inherited.__file__).parents[2]
    done = subprocess.run(
        ["sh", "-c", f"LISTEN_PID=$$ exec {sys.executable} {source} 3<&-"],
        env={"LISTEN_FDS": "1", "VOLCACHE_MOUNT_POINT": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("volcache: descriptor 3 is no socket")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()
