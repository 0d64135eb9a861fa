"""
The server as users run it: `python src/` in a process of its own.

Uses only its environment variables, its exit codes and `/-/healthy`.
"""

from __future__ import annotations

import http.client
import json
import resource
import socket
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from http import HTTPStatus
from itertools import count
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final, Generic, Self, TypeVar

from support.ports import pick_port
from support.program import Ended, Program, ended
from support.waiting import comes_true
from support.wire import ANSWER_SECONDS, Reply, read_reply, request_bytes

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
ADMIN_TOKEN: Final = "operator"  # noqa: S105 - Of temporary servers.
ADMIN: Final = f"Authorization: Bearer {ADMIN_TOKEN}"
MIB: Final = 1 << 20
# Of servers that several tests use one after the other.
SHARED: Final[Mapping[str, object]] = {
    "volume_size": 16 * MIB,
    "volume_num": 4,
    "max_value_size": MIB,
    "sync_mode": "none",
    "admin_token": ADMIN_TOKEN,
}
# What systemd does between fork and exec: the socket becomes descriptor 3.
_ACTIVATE: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
_P = TypeVar("_P", bound=Program)


def settings_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as environment variables."""
    return {f"VOLCACHE_{k.upper()}": _as_text(v) for k, v in settings.items()}


def _as_text(value: object) -> str:
    """Return the value of a setting as in an environment variable."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the limit of this process and its children as far as allowed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(soft, min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def run_to_its_end(folder: Path, settings: Mapping[str, object]) -> Ended:
    """Run `python src/` in a folder until it exits, with settings it rejects."""
    return ended([sys.executable, SOURCE], settings_environment(settings), folder)


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
        program: Sequence[str | Path] = (SOURCE,),
    ) -> None:
        """
        Start nothing yet.

        Args:
            mount_point: The setting of that name.
            settings: Further settings by name, such as `volume_size`. Defaults of `ip`
                and `port`: 127.0.0.1 and a free port.
            environment: Further environment variables.
            program: The arguments of Python.
        """
        super().__init__()
        self.mount_point = Path(mount_point)
        self.settings: dict[str, object] = dict(settings or {})
        self.ip = str(self.settings.get("ip", "127.0.0.1"))
        self.port = int(str(self.settings.get("port", 0))) or pick_port(self.ip)
        self.descriptor_limit = 0
        self._environment = dict(environment or {})
        self._program = program

    @property
    def url(self) -> str:
        """The address without a slash at the end."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"http://{host}:{self.port}"

    def command(self) -> Sequence[str | Path]:
        """Return the command that a user types; `descriptor_limit` is set before it."""
        limits = f'ulimit -n {self.descriptor_limit} && exec "$@"'
        before = ["sh", "-c", limits, "sh"] if self.descriptor_limit else []
        return [*before, sys.executable, *self._program]

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

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: str = "",
        seconds: float = ANSWER_SECONDS,
    ) -> Reply:
        """Send one request on a new connection and read its response."""
        with socket.create_connection((self.ip, self.port), seconds) as connection:
            connection.sendall(request_bytes(method, path, body, headers))
            return read_reply(connection, method)

    def answers(self) -> bool:
        """Whether `/-/healthy` is 200."""
        with suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/-/healthy", seconds=1).status == HTTPStatus.OK
        return False

    def stats(self, query: str = "") -> dict[str, Any]:
        """Return its statistics."""
        found: dict[str, Any] = json.loads(self.ask("GET", f"/-/stats{query}").body)
        return found

    def memory(self, field: str = "VmRSS") -> int:
        """Return a field of the status of the process, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [line] = [one for one in lines if one.startswith(f"{field}:")]
        return int(line.split()[1]) << 10

    def descriptors(self) -> int:
        """Return how many files and connections it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


class ActivatedServer(ServerProcess):
    """A server with a listening socket, as from systemd; this object keeps it open."""

    def __init__(
        self, mount_point: Path, *, settings: Mapping[str, object] | None = None
    ) -> None:
        """Open the socket; nothing is started yet."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        number, port = self._listener.fileno(), self._listener.getsockname()[1]
        super().__init__(
            mount_point,
            settings={**(settings or {}), "port": port},
            program=("-c", _ACTIVATE, str(number), SOURCE),
        )

    def inherited(self) -> Sequence[int]:
        """Return the descriptor of the socket."""
        return [self._listener.fileno()]

    def __exit__(self, *error: object) -> None:
        """End the server and close the socket."""
        super().__exit__(*error)
        self._listener.close()


class Pool(Generic[_P]):
    """
    Programs that run on when a test has ended, for the next one that needs the same.

    At most `limit` wait for a test; of more, the one that was used longest ago is ended.
    """

    def __init__(
        self, folder: Path, renew: Callable[[_P], bool], limit: int = 6
    ) -> None:
        """
        Begin with none.

        Args:
            folder: Each program gets an own one in it.
            renew: Makes a program as it was, and says whether it could.
            limit: See the class.
        """
        self._folder = folder
        self._numbers = count()
        self._renew = renew
        self._limit = limit
        self._waiting: list[tuple[Hashable, _P]] = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        while self._waiting:
            self._waiting.pop()[1].__exit__()

    @contextmanager
    def lend(self, key: Hashable, make: Callable[[Path], _P]) -> Iterator[_P]:
        """
        Return a running program, made in a folder and started if none with this key waits.

        One that ended, was started again or cannot be renewed is not used again.
        """
        found = next((one for one in self._waiting[::-1] if one[0] == key), None)
        if found:
            self._waiting.remove(found)
        folder = self._folder / str(next(self._numbers))
        program = found[1] if found else make(folder).__enter__()
        process, is_kept, shown = program.process, False, len(program.stderr)
        try:
            yield program
            ended = program.process.poll()
            assert ended in {None, 0, -SIGKILL}, program.stderr
            assert "Traceback" not in program.stderr[shown:], program.stderr
            is_kept = program.process is process and self._renew(program)
        finally:
            if is_kept:
                self._waiting.append((key, program))
            else:
                program.__exit__()
            while len(self._waiting) > self._limit:
                self._waiting.pop(0)[1].__exit__()


class Servers(Pool[ServerProcess]):
    """Servers by their settings, each empty when it is lent."""

    def __init__(self, folder: Path) -> None:
        """Begin with none; the mount points are made in a folder."""
        super().__init__(folder, is_renewed)

    def server(
        self, all_settings: Mapping[str, object] = SHARED, /, **settings: Any
    ) -> AbstractContextManager[ServerProcess]:
        """Lend a server with settings; one without an `admin_token` gets one."""
        given = {"admin_token": ADMIN_TOKEN, **all_settings, **settings}
        key = tuple(sorted((name, str(value)) for name, value in given.items()))
        return self.lend(
            key, lambda folder: ServerProcess(folder / "store", settings=given)
        )


def is_renewed(server: ServerProcess) -> bool:
    """Delete all values; return whether this was done and all clients have left."""
    token = f"Authorization: Bearer {server.settings['admin_token']}"

    def is_alone() -> bool:
        return bool(server.stats("?volumes=0")["server"]["open"] == 1)

    with suppress(OSError, http.client.HTTPException):
        flushed = server.ask("POST", "/-/flush", b"", token)
        return flushed.status == HTTPStatus.OK and comes_true(is_alone, 2)
    return False
