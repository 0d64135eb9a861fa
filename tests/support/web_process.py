"""
bjoern and the application in a process of its own, with a fake cache.

Run as a script, it prints its port, serves until a signal, and then prints whether `serve`
has restored the signal handlers and the signal mask.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple, cast

if not __package__:  # Run as a script: helpers and package are in folders above.
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests.parent / "src")]

from collections.abc import Sequence

from support.fake_cache import FakeCache
from support.program import Program
from volcache.cache import Cache
from volcache.http.app import App, Limits
from volcache.server.bjoern import listen, serve
from volcache.server.drain import stop_signals_blocked

KEY_SIZE_MAX: Final = 64
VALUE_SIZE_MAX: Final = 32 << 20
END_SECONDS: Final = 15.0
GET: Final = b"GET /key HTTP/1.1\r\nHost: test\r\n\r\n"
PUT: Final = b"PUT /key HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n"
RESTORED: Final = "handlers=True mask=True"


class Ending(NamedTuple):
    """Exit code, duration and output of a server."""

    exit_code: int
    seconds: float
    out: str
    err: str


class WebProcess(Program):
    """One process; `port` is set as soon as it listens."""

    is_asked_to_end = False  # After a failed test its exit is of no interest.

    def __init__(
        self, *, drain: float = 3.0, listener: socket.socket | None = None
    ) -> None:
        """Start nothing yet; `drain` is in seconds, `listener` a socket to inherit."""
        super().__init__()
        self.port = 0
        self._listener = listener
        self._options = ["--drain", str(drain)]
        if listener is not None:
            self._options += ["--fd", str(listener.fileno())]

    def command(self) -> Sequence[str | Path]:
        """Return the command that runs this file."""
        return [sys.executable, __file__, *self._options]

    def inherited(self) -> Sequence[int]:
        """Return the descriptor of the inherited socket, if any."""
        return [] if self._listener is None else [self._listener.fileno()]

    def answers(self) -> bool:
        """Whether it has printed its port."""
        port, end, _ = self.stdout.partition("\n")
        self.port = int(port) if end else 0
        return bool(end)

    def connect(self, data: bytes = b"") -> socket.socket:
        """Open a connection and send bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), END_SECONDS)
        connection.sendall(data)
        return connection

    def ask(self, data: bytes) -> socket.socket:
        """Send a request and wait for its short response."""
        connection = self.connect(data)
        assert connection.recv(4096).startswith(b"HTTP/1.1 ")
        return connection

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Ending:
        """Send a signal and wait for the exit."""
        self.send_signal(number)
        return self.end()

    def end(self) -> Ending:
        """Wait for the exit; `seconds` is the time waited here."""
        began = time.monotonic()
        exit_code = self.wait()
        seconds = time.monotonic() - began
        _, _, out = self.stdout.partition("\n")
        return Ending(exit_code, seconds, out, self.stderr)


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--drain", type=float, required=True)
    parser.add_argument("--fd", type=int)
    options = parser.parse_args()
    is_ours = options.fd is None
    listener = listen("127.0.0.1", 0) if is_ours else socket.socket(fileno=options.fd)
    app = App(
        cast("Cache", FakeCache()),
        Limits(key_size=KEY_SIZE_MAX, value_size=VALUE_SIZE_MAX),
    )
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_signals_blocked():  # From the moment the test knows the port.
        print(listener.getsockname()[1], flush=True)  # noqa: T201 - What it is for.
        serve(listener, app, drain_seconds=options.drain, owns_listener=is_ours)
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print(f"handlers={before == after} mask={not mask}")  # noqa: T201
    listener.close()


if __name__ == "__main__":
    main()
