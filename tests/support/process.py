"""
The server as users run it: `python src/` in a process of its own.

Uses only its environment variables, its exit codes and `/-/healthy`.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.ports import pick_port
from support.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"


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
