"""
Tests an installed volcache as a user would, in seconds: run by tools/release.py.

    PYTHON tools/smoke_test.py tools|server|client

PYTHON is that of an environment into which `volcache[tools]`, `volcache[server,tools]` or
`volcache-client` was installed, not a checkout. Each line that is printed is a part that
works; the first failure ends it.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import volcache_client

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS: Final = 60.0  # The longest wait for anything; machines may be busy.
_COMMAND: Final = Path(sysconfig.get_path("scripts")) / "volcache"
_SETTINGS: Final = ("volume_size=8MiB", "volume_num=4", "log_level=error")


def check_client(_folder: Path) -> None:
    """Both clients work without the packages of a server; nothing answers them."""
    place = Path(volcache_client.__file__)
    _require(place.is_relative_to(sys.prefix), f"{place} is not in {sys.prefix}")
    address = f"127.0.0.1:{_free_port()}"
    with volcache_client.Client([address], on_error="miss") as client:
        _require(client.get("key") is None, "a value came from nowhere")

    async def ask() -> object:
        async with volcache_client.AsyncClient([address], on_error="miss") as client:
            return await client.get("key")

    _require(asyncio.run(ask()) is None, "a value came from nowhere")
    _say(f"client: a miss without an instance, Python {sys.version.split()[0]}")


def check_tools(folder: Path) -> None:
    """The embedded store and the commands need no server package."""
    import volcache  # noqa: PLC0415 - Not installed beside the client alone.

    directory = str(folder / "embedded")
    with volcache.open(directory, capacity="256MiB") as cache:
        cache["key"] = b"value"
        cache["gone"] = b"value"
        del cache["gone"]
    with volcache.open(directory, capacity="256MiB") as cache:
        _require(cache.get("key") == b"value", "a value was lost")
        _require(cache.get("gone") is None, "a value was not deleted")
    for words in ([str(_COMMAND)], [sys.executable, "-m", "volcache"]):
        _run([*words, "--version"], has=f"volcache {volcache.__version__}")
    _volcache("check", directory, has="damaged: 0 in volumes, 0 elsewhere")
    _volcache("dump", directory, has="key")
    _volcache("completion", "bash", has="complete ")
    _volcache("files", str(folder / "files"), has="0 unchanged")
    for name in ("nginx/volcache.conf", "conf/volcache.toml", "docs/volcache.1"):
        _require((folder / "files" / name).is_file(), f"volcache files: no {name}")
    _say(f"volcache {volcache.__version__}: the embedded store, commands")


def check_refusal(_folder: Path) -> None:
    """Without the packages of a server, one line says what to install."""
    done = _volcache("serve", code=2, has="pip install 'volcache[server]'")
    _require(done.count("\n") == 1, f"more than one line: {done}")
    _say("serve: refused, names the extra")


def check_server(mount_point: Path) -> None:
    """Requests, then a stop and a kill."""
    port = _free_port()
    with _serving(mount_point, port) as server:
        _ask(port, "PUT", "/key", b"value")
        _ask(port, "PUT", "/gone", b"value")
        _ask(port, "DELETE", "/gone")
        _volcache("stats", f"127.0.0.1:{port}", has="keys 1")
        metrics = _ask(port, "GET", "/-/metrics")
        _require(b"volcache_" in metrics, "there are no metrics")
        server.terminate()
        _require(server.wait(_SECONDS) == 0, "SIGTERM did not end it with exit code 0")
    with _serving(mount_point, port) as server:
        address, patience = f"127.0.0.1:{port}", _SECONDS
        with volcache_client.Client(
            [address], timeout=patience, connect_timeout=patience
        ) as client:
            client.set("late", b"late")
        server.kill()
        server.wait()
    with _serving(mount_point, port):
        _require(_ask(port, "GET", "/key") == b"value", "lost in a restart")
        _require(_ask(port, "GET", "/late") == b"late", "lost in a kill -9")
        _ask(port, "GET", "/gone", status=404)
    _say("server: requests, client, restart, kill -9")


_CHECKS: Final = {
    "client": (check_client,),
    "tools": (check_client, check_tools, check_refusal),
    "server": (check_client, check_tools, check_server),
}


@contextmanager
def _serving(mount_point: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Serve until the end of the context, and first wait until requests are answered."""
    settings = (f"port={port}", f"mount_point={mount_point}", *_SETTINGS)
    options = [f"--set={setting}" for setting in settings]
    server = subprocess.Popen([str(_COMMAND), "serve", *options])
    try:
        deadline = time.monotonic() + _SECONDS
        while not _listens(port):
            _require(server.poll() is None, f"serve ended with {server.returncode}")
            _require(time.monotonic() < deadline, "serve does not answer")
            time.sleep(0.02)
        yield server
    finally:
        server.kill()
        server.wait()


def _ask(
    port: int, method: str, path: str, body: bytes | None = None, *, status: int = 200
) -> bytes:
    """Send one request; return the body of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        _require(
            answer.status == status, f"{method} {path}: {answer.status}, not {status}"
        )
        return answer.read()
    finally:
        connection.close()


def _volcache(*words: str, code: int = 0, has: str = "") -> str:
    return _run([str(_COMMAND), *words], code=code, has=has)


def _run(words: list[str], *, code: int = 0, has: str = "") -> str:
    """Run a command; return all that it printed."""
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_SECONDS,
        env={k: v for k, v in os.environ.items() if not k.startswith("VOLCACHE_")},
    )
    _require(
        done.returncode == code and has in done.stdout,
        f"{words}: exit code {done.returncode}, expected {code} and {has!r}:"
        f" {done.stdout}",
    )
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _require(condition: object, what: str) -> None:
    if not condition:
        sys.exit(f"smoke test: {what}")


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="volcache-smoke") as name:
        for check in _CHECKS[sys.argv[1]]:
            check(Path(name) / check.__name__)
