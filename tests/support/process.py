"""
The server as users run it: `python src/` in a process of its own.

Uses only its environment variables, its exit codes and `/-/healthy`.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.ports import pick_port
from support.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
POOL_TOKEN: Final = "operator"  # noqa: S105 - Of temporary servers.
_IDLE_MAX: Final = 6


def settings_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as environment variables."""
    return {f"VOLCACHE_{k.upper()}": _as_text(v) for k, v in settings.items()}


def _as_text(value: object) -> str:
    """Return the value of a setting as in an environment variable."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def run_to_its_end(
    folder: Path, settings: Mapping[str, object]
) -> subprocess.CompletedProcess[str]:
    """Run `python src/` in a folder until it exits, with settings it rejects."""
    return subprocess.run(
        [sys.executable, str(SOURCE)],
        cwd=folder,
        env=settings_environment(settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


class ServerProcess(Program):
    """
    One `python src/`, from the beginning of the context to its end.

    Keeps its port and mount point over restarts.

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
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Start nothing yet.

        Args:
            mount_point: The setting of that name.
            settings: Further settings by name, such as `volume_size`. Defaults of `ip`
                and `port`: 127.0.0.1 and a free port.
            environment: Further environment variables.
        """
        super().__init__()
        self.mount_point = Path(mount_point)
        self.settings: dict[str, object] = dict(settings or {})
        self.ip = str(self.settings.get("ip", "127.0.0.1"))
        self.port = int(str(self.settings.get("port", 0))) or pick_port(self.ip)
        self._environment = dict(environment or {})

    @property
    def url(self) -> str:
        """The address without a slash at the end."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"http://{host}:{self.port}"

    def command(self) -> Sequence[str | Path]:
        """Return the command that a user types."""
        return [sys.executable, SOURCE]

    def environment(self) -> dict[str, str]:
        """Return our environment with the settings of the server and no others."""
        settings = {
            "mount_point": self.mount_point,
            **self.settings,
            "ip": self.ip,
            "port": self.port,
        }
        inherited = super().environment()
        return {**inherited, **settings_environment(settings), **self._environment}

    def descriptors(self) -> int:
        """Return how many files and connections it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def answers(self) -> bool:
        """Whether `/-/healthy` is 200."""
        connection = http.client.HTTPConnection(self.ip, self.port, timeout=1)
        try:
            connection.request("GET", "/-/healthy")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class ServerPool:
    """
    Running servers by their settings; each is empty when a test gets it.

    A test may do anything with the server that it has. If it was stopped or restarted, got
    other settings or does not answer, it is thrown away. Its counters and its log go on.
    """

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        """Start nothing yet; each server gets a folder of its own."""
        self._new_folder = new_folder
        self._idle: list[tuple[dict[str, object], ServerProcess]] = []

    @contextmanager
    def server(self, settings: Mapping[str, object]) -> Iterator[ServerProcess]:
        """Lend a server until the context ends; without an `admin_token` it gets one."""
        wanted = {"admin_token": POOL_TOKEN, **settings}
        server = self._take(wanted) or _started(self._new_folder(), wanted)
        pid = server.pid
        try:
            yield server
        finally:
            if (server.settings, server.pid) == (wanted, pid) and server.is_running:
                self._idle.append((wanted, server))
            else:
                server.__exit__()
            while len(self._idle) > _IDLE_MAX:
                self._idle.pop(0)[1].__exit__()

    def close(self) -> None:
        """Stop all servers."""
        while self._idle:
            self._idle.pop()[1].__exit__()

    def _take(self, wanted: dict[str, object]) -> ServerProcess | None:
        """Return an idle server with these settings, emptied; None if there is none."""
        for entry in [entry for entry in self._idle if entry[0] == wanted]:
            self._idle.remove(entry)
            if _is_emptied(entry[1]):
                return entry[1]
            entry[1].__exit__()
        return None


def _started(folder: Path, settings: Mapping[str, object]) -> ServerProcess:
    server = ServerProcess(folder, settings=settings)
    server.__enter__()
    return server


def _is_emptied(server: ServerProcess) -> bool:
    """Whether a server answers, and has no keys from now on."""
    connection = http.client.HTTPConnection(server.ip, server.port, timeout=5)
    token = {"Authorization": f"Bearer {server.settings['admin_token']}"}
    try:
        connection.request("POST", "/-/flush", b"", token)
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
