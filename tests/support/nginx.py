"""
nginx in a process of its own: `Nginx` with our configuration, others with a minimal one.

Of our configuration, only files that an operator edits are written here (`instances.conf`,
`listen.conf`, `log.conf`, `show-instance.conf`).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from support.ports import listens, pick_port
from support.program import Program
from support.waiting import wait_until
from support.wire import connect

SOURCE: Final = Path(__file__).resolve().parents[2] / "nginx"
_PLAIN: Final = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log {level};
{before}
events {{ worker_connections 256; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    {http}
}}
"""
_RINGS: Final = """
    access_log off;
    merge_slashes off;
    keepalive_requests 1000000;
    large_client_header_buffers 4 8k;
    server_names_hash_bucket_size 128;
    proxy_next_upstream off;
    add_header X-Instance "$upstream_addr" always;
"""
_RING: Final = """
    upstream {name} {{ hash $uri consistent; {servers} }}
    server {{
        listen 127.0.0.1:{port};
        server_name {name};
        location / {{ proxy_pass http://{name}; }}
    }}
"""


def start_command(folder: Path, configuration: str) -> list[str]:
    """Return the command that starts nginx in a folder, with a configuration in it."""
    # Debian keeps it in /usr/sbin, which is not on every user's path.
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    command = [program or "nginx", "-e", "stderr", "-p", f"{folder}/"]
    if not os.geteuid():  # Workers of another user could not enter the folder.
        command += ["-g", "user root;"]
    return [*command, "-c", configuration]


def copy_configuration(folder: Path) -> None:
    """Make a folder in which nginx can run with our configuration."""
    shutil.copytree(SOURCE, folder)
    (folder / "temp").mkdir()


def with_mode(name: str) -> dict[str, str]:
    """Return the main file with another failure mode, as `files` of `Nginx`."""
    text = (SOURCE / "volcache.conf").read_text()
    assert "include volcache/pinned.conf;" in text
    return {"volcache.conf": text.replace("volcache/pinned", f"volcache/{name}")}


def with_purges(text: str) -> str:
    """Return the main file with purges allowed."""
    line = "include volcache/purge.conf;"
    assert f"    # {line}\n" in text
    return text.replace(f"# {line}", line)


def instances_text(instances: Sequence[str]) -> str:
    """Return `instances.conf` for the `host:port` of each instance."""
    lines = [f"server {name} weight=10 max_fails=0;\n" for name in instances]
    return "".join(lines)


def instances_of(port: int, paths: Sequence[str], host: str = "localhost") -> list[str]:
    """
    Return the instance that each path's key belongs to, from X-Instance.

    Sends HEAD requests, 200 at a time on one connection; no key need be stored.
    """
    found: list[str] = []
    with connect(port) as connection:
        for start in range(0, len(paths), 200):
            some = paths[start : start + 200]
            lines = (f"HEAD {path} HTTP/1.1\r\nHost: {host}\r\n\r\n" for path in some)
            connection.sendall("".join(lines).encode())
            received = b""
            while received.count(b"\r\n\r\n") < len(some):
                piece = connection.recv(1 << 18)
                assert piece, received
                received += piece
            for head in received.split(b"\r\n\r\n")[: len(some)]:
                named = re.search(rb"\r\nX-Instance: ([^\r]*)", head)
                found.append(named[1].decode().split()[-1] if named else "")
    return found


class NginxProcess(Program):
    """One nginx; `folder` holds its configuration and all that it writes."""

    def __init__(self, folder: Path, configuration: str) -> None:
        """Choose a port; the caller writes the configuration for it."""
        super().__init__()
        self.folder = folder
        self.port = pick_port()
        self._configuration = configuration

    def command(self) -> list[str]:
        """Return the command that starts nginx."""
        return start_command(self.folder, self._configuration)

    def answers(self) -> bool:
        """Whether it accepts connections."""
        return listens(self.port)

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def kill(self) -> None:
        """Kill nginx and its workers."""
        workers = self.workers() if self.is_running else []
        super().kill()
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


class PlainNginx(NginxProcess):
    """One nginx with a minimal configuration."""

    def __init__(self, folder: Path) -> None:
        """Make the folder; the caller writes the configuration."""
        super().__init__(folder, "nginx.conf")
        folder.mkdir(exist_ok=True)

    def configure(self, http: str, *, before: str = "", level: str = "error") -> None:
        """Write the contents of `http`, the lines before it and the level of the log."""
        text = _PLAIN.format(folder=self.folder, http=http, before=before, level=level)
        (self.folder / "nginx.conf").write_text(text)


class RingNginx(PlainNginx):
    """One nginx with some rings, by name; the servers need not exist."""

    def __init__(
        self, folder: Path, rings: Mapping[str, Sequence[tuple[str, int]]]
    ) -> None:
        """Write the configuration into a folder; a server is a name and a weight."""
        super().__init__(folder)
        parts = [_RINGS]
        for name, nodes in rings.items():
            servers = " ".join(
                f"server {node} weight={weight} max_fails=0;" for node, weight in nodes
            )
            parts.append(_RING.format(name=name, servers=servers, port=self.port))
        self.configure("".join(parts), level="emerg")


class Nginx(NginxProcess):
    """One nginx in front of some instances, with our configuration."""

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
            files: Text of files below `nginx/`, by name; added or replaced.

        """
        super().__init__(folder, "cluster.conf")
        copy_configuration(folder)
        listen = f"listen 127.0.0.1:{self.port} reuseport backlog=4096;\n"
        self.write("volcache/listen.conf", listen)
        self.write("volcache/log.conf", "access_log access.log volcache;\n")
        self.write("volcache/show-instance.conf", "default 1;\n")
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
        """Write the list of instances, for the next start or reload."""
        self.write("volcache/instances.conf", instances_text(instances))

    def test(self) -> subprocess.CompletedProcess[str]:
        """Run `nginx -t`."""
        return subprocess.run(
            [*self.command(), "-t"], capture_output=True, text=True, check=False
        )

    def log(self) -> str:
        """Return the access log."""
        return (self.folder / "access.log").read_text()

    def logged(self, text: str) -> str:
        """Return a line of the access log; waits, as it is written after the response."""
        found: list[str] = []

        def is_there() -> bool:
            found.extend(line for line in self.log().splitlines() if text in line)
            return bool(found)

        wait_until(is_there, f"{text} in the log")
        return found[0]

    def reload(self) -> None:
        """Load the changed configuration; return when new workers have replaced the old."""
        before = set(self.workers())
        self.send_signal(signal.SIGHUP)
        wait_until(lambda: not before & set(self.workers()), "old workers to leave")

    def answers(self) -> bool:
        """Whether it accepts connections and has all its workers."""
        # The socket listens before there are workers.
        return super().answers() and len(self.workers()) >= (os.cpu_count() or 1)
