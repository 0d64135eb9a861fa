"""The real server with clients that misbehave and a system short of resources."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from support.extent import step
from support.process import ServerProcess
from support.waiting import wait_until
from support.wire import connect

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.slow]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a server with one value, which it must still have at the end."""
    with ServerProcess(tmp_path, settings={"volume_size": 16 << 20}) as running:
        assert running.ask("PUT", "/kept", b"value").status == 200
        yield running
        assert running.ask("GET", "/kept").body == b"value"


def is_pending(server: ServerProcess) -> bool:
    """Return whether a signal is pending for the server."""
    try:
        lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    except OSError:
        return False
    pending = [line.split()[1] for line in lines if line.startswith("ShdPnd")]
    return int(pending[0], 16) != 0 if pending else False


DEADLY = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}
HARMLESS = {signal.SIGPIPE, signal.SIGCHLD, signal.SIGWINCH}


def test_start_after_any_signal_has_all_values(server: ServerProcess) -> None:
    """A process that is killed by one has all values after a restart."""
    ended = []
    # SIGSTOP is followed by SIGCONT here, which is a signal like any other.
    ordinary = sorted(n for n in signal.valid_signals() if n < signal.SIGRTMIN)
    sample = {*ordinary[:: step(3)], *DEADLY, *HARMLESS, signal.SIGRTMAX}
    for number in sorted(sample - {signal.SIGCONT}):
        path, value = f"/{int(number)}", b"value %d" % number
        assert server.ask("PUT", path, value).status == 200
        with connect(server.port) as half:
            half.sendall(b"PUT /kept HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n")
            server.send_signal(number)
            server.send_signal(signal.SIGCONT)
            if number in {signal.SIGTERM, signal.SIGINT}:
                server.wait()
            else:
                wait_until(
                    lambda: not server.is_running or not is_pending(server),
                    "the signal to be taken",
                )
            answered = False
            with suppress(OSError, HTTPException):
                answered = server.ask("GET", "/kept").body == b"value"
        if not answered:
            server.wait()  # It was on its way out.
        if not server.is_running:
            ended.append(int(number))
            server.start()
        assert server.ask("GET", path).body == value
    assert set(ended) >= DEADLY
    assert not HARMLESS & set(ended)
