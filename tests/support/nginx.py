"""
nginx with the configuration of this repository, in a folder of its own.

What an operator edits (`instances.conf`, `listen.conf`, `log.conf`) is written here;
everything else is taken as it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from support.ports import pick_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

SOURCE: Final = Path(__file__).resolve().parents[2] / "nginx"
PROGRAM: Final = (
    shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"
)
END_SECONDS: Final = 15.0


class Nginx:
    """One nginx in front of some instances."""

    def __init__(
        self,
        folder: Path,
        instances: Sequence[str],
        *,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """
        Write the configuration; nothing is started yet.

        Args:
            folder: Created; everything nginx writes is in it.
            instances: `host:port` of each.
            files: Text of further files below `nginx/`, by name; they replace those
                that are there.

        """
        self.folder = folder
        self.port = pick_port()
        shutil.copytree(SOURCE, folder)
        (folder / "temp").mkdir()
        listen = f"listen 127.0.0.1:{self.port} reuseport backlog=4096;\n"
        self.write("volcache/listen.conf", listen)
        self.write("volcache/log.conf", "access_log access.log volcache;\n")
        self.write_instances(instances)
        for name, text in (files or {}).items():
            self.write(name, text)

    @property
    def url(self) -> str:
        """The address without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def write(self, name: str, text: str) -> None:
        """Replace a file of the configuration."""
        (self.folder / name).write_text(text)

    def write_instances(self, instances: Sequence[str]) -> None:
        """Name the instances; holds from the next start or reload on."""
        lines = [f"server {name} weight=10 max_fails=0;\n" for name in instances]
        self.write("volcache/instances.conf", "".join(lines))

    def test(self) -> subprocess.CompletedProcess[str]:
        """Run `nginx -t`."""
        return subprocess.run(
            [*self._command, "-t"], capture_output=True, text=True, check=False
        )

    def log(self) -> str:
        """Return what the access log holds."""
        return (self.folder / "access.log").read_text()

    def logged(self, text: str) -> str:
        """Wait for a line of the access log, which follows the answer, and return it."""
        deadline = time.monotonic() + END_SECONDS
        while True:
            for line in self.log().splitlines():
                if text in line:
                    return line
            assert time.monotonic() < deadline, f"{text} is not logged"
            time.sleep(0.01)

    @property
    def _command(self) -> list[str]:
        command = [
            PROGRAM,
            "-e",
            "stderr",
            "-p",
            f"{self.folder}/",
            "-c",
            "cluster.conf",
        ]
        if not os.geteuid():  # Workers of another user could not enter the folder.
            command += ["-g", "user root;"]
        return command

    @property
    def pid(self) -> int:
        """The process id of the master."""
        return self._process.pid

    def reload(self) -> None:
        """Take a changed configuration; returns when old workers are leaving."""
        before = set(self.workers())
        os.kill(self.pid, signal.SIGHUP)
        deadline = time.monotonic() + END_SECONDS
        while before & set(self.workers()):
            assert time.monotonic() < deadline, "the old workers are still there"
            time.sleep(0.02)

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def __enter__(self) -> Self:
        """Start, and wait until it answers."""
        self._stderr = (self.folder / "stderr").open("wb")
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stderr=self._stderr
        )
        deadline = time.monotonic() + END_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RuntimeError((self.folder / "stderr").read_text())
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
        # The socket listens before there are workers, which `reload` has to know.
        return len(self.workers()) >= (os.cpu_count() or 1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it with its workers."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            workers = self.workers()
            self._process.kill()
            self._process.wait()
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        self._stderr.close()


class Wire:
    """One connection to nginx; requests may be sent many at once."""

    def __init__(self, port: int) -> None:
        """Connect."""
        self.socket = socket.create_connection(("127.0.0.1", port), END_SECONDS)

    def __enter__(self) -> Self:
        """Give the connection."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.socket.close()

    def ask(self, data: bytes) -> bytes:
        """Send something, and return all that comes until the other side closes."""
        with contextlib.suppress(ConnectionError):  # Refused before it was all sent.
            self.socket.sendall(data)
        return b"".join(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(1 << 16):
                yield piece


def instances_of(port: int, paths: Sequence[str]) -> list[str]:
    """
    Return for each path the instance its key belongs to, as X-Instance says.

    Asked with HEAD, many at once on one connection, whether it is stored or not.
    """
    found: list[str] = []
    with Wire(port) as wire:
        stream = wire.socket.makefile("rb")
        for start in range(0, len(paths), 200):
            some = paths[start : start + 200]
            wire.socket.sendall(
                b"".join(
                    b"HEAD %b HTTP/1.1\r\nHost: t\r\n\r\n" % p.encode() for p in some
                )
            )
            for _ in some:
                instance = ""
                while (line := stream.readline()) not in {b"\r\n", b""}:
                    name, _, value = line.decode().partition(": ")
                    if name == "X-Instance":
                        instance = value.split()[-1]
                found.append(instance)
    return found
