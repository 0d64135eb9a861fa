"""
The server as its users run it: `python src/` in a process of its own.

A `ServerProcess` holds one process, its port and what it wrote to stderr; it knows
the server only by its environment variables, its exit codes and `/-/healthy`.

Invariants:
    - A process started here is ended by its pid when the context ends.
    - Port and mount point stay the same over `restart`.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from support.ports import pick_port

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from types import TracebackType

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
POLL_SECONDS: Final = 0.01


class ServerStartError(RuntimeError):
    """The server ended or did not answer in time; the text holds its stderr."""


def _as_text(value: object) -> str:
    """Write a setting's value as an environment variable holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class ServerProcess:
    """
    One `python src/`, started when the context begins and ended when it ends.

    Example:
        with ServerProcess(tmp_path, settings={"volume_size": 8 << 20}) as server:
            requests.put(f"{server.url}/key", data=b"value", timeout=5)
            server.kill()
            server.restart()
    """

    def __init__(
        self,
        mount_point: Path | str,
        *,
        settings: Mapping[str, object] | None = None,
        config: Path | None = None,
        environment: Mapping[str, str] | None = None,
        deadline_seconds: float = 30.0,
    ) -> None:
        """
        Prepare a server; nothing is started yet.

        Args:
            mount_point: The setting of that name.
            settings: Further settings by name, such as `volume_size`; they go out as
                `VOLCACHE_<NAME>`. `ip` and `port` are kept when given.
            config: A TOML file given as the argument.
            environment: Further environment variables, as they are.
            deadline_seconds: How long to wait for the first healthy answer, and for
                the end after a signal.
        """
        self.mount_point = Path(mount_point)
        self.settings: dict[str, object] = dict(settings or {})
        self.config = config
        self.deadline_seconds = deadline_seconds
        self.ip = str(self.settings.get("ip", "127.0.0.1"))
        self.port = int(str(self.settings.get("port", 0))) or pick_port(self.ip)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        # An unnamed file: read while the server writes, gone with this object.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__

    @property
    def url(self) -> str:
        """The server's address without a slash at the end."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"http://{host}:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process started last."""
        if self._process is None:
            message = "the server was never started"
            raise RuntimeError(message)
        return self._process

    @property
    def pid(self) -> int:
        """The process id of the server started last."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def stderr(self) -> str:
        """What the server and those before it, by `restart`, wrote to stderr."""
        length = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), length, 0).decode(errors="replace")

    def environment(self) -> dict[str, str]:
        """Make the server's environment: ours, without settings that are not ours."""
        settings = {
            "mount_point": self.mount_point,
            **self.settings,
            "ip": self.ip,
            "port": self.port,
        }
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("VOLCACHE_")
        }
        ours = {f"VOLCACHE_{k.upper()}": _as_text(v) for k, v in settings.items()}
        return inherited | ours | self._environment

    def launch(self) -> None:
        """Start the process without waiting until it answers."""
        if self.is_running:
            message = f"the server runs already, pid {self.pid}"
            raise RuntimeError(message)
        arguments = [] if self.config is None else [str(self.config)]
        self._process = subprocess.Popen(
            [sys.executable, str(SOURCE), *arguments],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
        )

    def start(self) -> None:
        """
        Start the process and wait until it answers.

        Raises:
            ServerStartError: It ended, or did not answer within the deadline.
        """
        self.launch()
        try:
            self.wait_healthy()
        except ServerStartError:
            self.kill()
            raise

    def wait_healthy(self) -> None:
        """
        Wait until `/-/healthy` answers 200.

        Raises:
            ServerStartError: The process ended, or the deadline passed.
        """
        end = time.monotonic() + self.deadline_seconds
        while time.monotonic() < end:
            if not self.is_running:
                message = f"the server ended with {self.exit_code}:\n{self.stderr}"
                raise ServerStartError(message)
            if self._is_healthy():
                return
            time.sleep(POLL_SECONDS)
        message = f"no answer in {self.deadline_seconds} s:\n{self.stderr}"
        raise ServerStartError(message)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(self.ip, self.port, timeout=1)
        try:
            connection.request("GET", "/-/healthy")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the server at once, as `kill -9` does; harmless when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    kill9 = kill

    def terminate(self) -> int:
        """
        Ask the server to end, with SIGTERM.

        Returns:
            Its exit code.

        Raises:
            subprocess.TimeoutExpired: It did not end in time; it was killed.
        """
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """
        Wait for the server to end by itself.

        Returns:
            Its exit code.

        Raises:
            subprocess.TimeoutExpired: It did not end in time; it was killed.
        """
        try:
            return self.process.wait(self.deadline_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def restart(self) -> None:
        """Start again on the same port, after ending what still runs by SIGTERM."""
        if self.is_running:
            self.terminate()
        self.start()

    def __enter__(self) -> Self:
        """Start the server."""
        try:
            self.start()
        except BaseException:
            self._stderr.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the server, by SIGKILL when it does not end by SIGTERM."""
        try:
            if self.is_running:
                self.terminate()
        finally:
            self.kill()
            self._stderr.close()
