"""
Tests an installed volcache as a user would, in a minute: run by tools/release.py.

    PYTHON tools/smoke_test.py [--server]

PYTHON is that of an environment into which volcache was installed, not a checkout. Needs
nothing else. Each line that is printed is a part that works; the first failure ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import volcache
import volcache_client
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS: Final = 60.0  # The longest wait for anything; machines may be busy.
_VOLUME_BYTES: Final = 8 << 20
_SERVER_PACKAGES: Final = ("bjoern", "prometheus_client")
_COMMAND: Final = Path(sysconfig.get_path("scripts")) / "volcache"
# Stores values one after the other and says so, until it is killed.
_WRITER: Final = f"""
import itertools, sys
from volcache.store import Store
store = Store.open(sys.argv[1], volume_size={_VOLUME_BYTES}, volume_num=4)
for number in itertools.count():
    store.put(b"%d" % number, b"value %d" % number)
    print(number, flush=True)
"""


def main() -> None:
    """Run all parts that the environment is meant for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="volcache-smoke") as name:
        folder = Path(name)
        check_installation()
        check_store(folder / "store")
        check_embedded(folder / "embedded")
        check_tools(folder)
        if arguments.server:
            check_server(folder / "server")
            check_client(folder)
        else:
            check_client_alone()
            check_refusal()


def check_installation() -> None:
    """It is installed, and not a checkout."""
    place = Path(volcache.__file__)
    _require(place.is_relative_to(sys.prefix), f"{place} is not in {sys.prefix}")
    version = sys.version.split()[0]
    _say(f"volcache {volcache.__version__}, Python {version}")


def check_store(directory: Path) -> None:
    """What was stored is there after a kill -9."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = writer.stdout
    assert lines is not None  # noqa: S101 - For mypy.
    while int(lines.readline() or 1000) < 1000:  # noqa: PLR2004
        pass
    writer.kill()
    stored = 1001 + len(lines.readlines()[:-1])  # The last line may be a part.
    writer.wait()
    store = Store.open(str(directory), volume_size=_VOLUME_BYTES, volume_num=4)
    try:
        for number in range(stored):
            record = store.get(b"%d" % number)
            _require(
                record is not None and record.value == b"value %d" % number,
                f"key {number} of {stored} was lost in a kill -9",
            )
    finally:
        store.close()
    _say(f"store: {stored} values after kill -9")


def check_embedded(directory: Path) -> None:
    """`volcache.open`: what is stored in one process is found by the next."""
    with volcache.open(directory, capacity="256MiB") as cache:
        cache["key"] = b"value"
        cache.set("short", b"value", ttl=0.001)
        made = cache.get_or_set("made", lambda: b"made")
        _require(made == b"made", f"get_or_set returned {made!r}")
        del cache["made"]
    read = f"""
import volcache
with volcache.open({str(directory)!r}, capacity="256MiB") as cache:
    print(cache.get("key"), cache.get("short"), cache.get("made"), len(cache))
"""
    _run([sys.executable, "-c", read], has="b'value' None None ")
    _say("embedded: stored, expired, deleted, read by another process")


def check_tools(folder: Path) -> None:
    """The commands that need no server package."""
    for words in ([str(_COMMAND)], [sys.executable, "-m", "volcache"]):
        _run([*words, "--version"], has=f"volcache {volcache.__version__}")
    _volcache("check", str(folder / "store"), has="damaged: 0 in volumes, 0 elsewhere")
    _volcache("dump", str(folder / "store"), has="999")
    _volcache("config", "check")
    _volcache("completion", "bash", has="complete ")
    files = folder / "files"
    _volcache("files", str(files), has="0 unchanged")
    _volcache("files", str(files), has="0 files written")
    for name in ("nginx/volcache.conf", "conf/volcache.toml", "docs/volcache.1"):
        _require((files / name).is_file(), f"volcache files wrote no {name}")
    url = f"127.0.0.1:{_free_port()}"
    _volcache("stats", url, code=1, has=url)
    _volcache("cluster", "status", url, code=1, has=url)
    _say("tools: check, dump, config, completion, files, stats, cluster")


def check_refusal() -> None:
    """Without the packages of a server, one line says what to install."""
    missing = [name for name in _SERVER_PACKAGES if find_spec(name) is None]
    _require(
        missing == list(_SERVER_PACKAGES), f"of the extra, only {missing} are missing"
    )
    done = _volcache("serve", code=2, has="pip install 'volcache[server]'")
    _require(done.count("\n") == 1, f"more than one line: {done}")
    _say("serve: refused, names the extra")


def check_server(mount_point: Path) -> None:
    """Requests of all methods, then a restart and a kill."""
    port = _free_port()
    with _serving(mount_point, port) as server:
        _ask(port, "PUT", "/key", b"value")
        _require(_ask(port, "GET", "/key") == b"value", "GET has other bytes")
        _require(_ask(port, "HEAD", "/key") == b"", "HEAD has a body")
        _ask(port, "PUT", "/gone", b"value")
        _ask(port, "DELETE", "/gone")
        _ask(port, "GET", "/gone", status=404)
        _volcache("stats", f"127.0.0.1:{port}", has="keys 1")
        _require(
            b"volcache_" in _ask(port, "GET", "/-/metrics"), "there are no metrics"
        )
        server.terminate()
        _require(server.wait(_SECONDS) == 0, "SIGTERM did not end it with exit code 0")
    with _serving(mount_point, port) as server:
        _require(_ask(port, "GET", "/key") == b"value", "lost in a restart")
        _ask(port, "PUT", "/late", b"late")
        server.kill()
        server.wait()
    with _serving(mount_point, port):
        for key in ("key", "late"):
            _ask(port, "GET", f"/{key}")
    _say("server: all methods, restart, kill -9")


def check_client_alone() -> None:
    """Both clients work without the packages of a server; nothing answers them."""
    address = f"127.0.0.1:{_free_port()}"
    with volcache_client.Client([address], on_error="miss") as client:
        _require(client.get("key") is None, "a value came from nowhere")

    async def ask() -> object:
        async with volcache_client.AsyncClient([address], on_error="miss") as client:
            return await client.get("key")

    _require(asyncio.run(ask()) is None, "a value came from nowhere")
    _say("client: a miss without an instance, with threads and asyncio")


def check_client(folder: Path) -> None:
    """Three instances, one of which is killed: its keys are misses, the others hits."""
    ports = [_free_port() for _ in range(3)]
    keys = [f"client/{number}" for number in range(100)]
    with ExitStack() as servers:
        started = [
            servers.enter_context(_serving(folder / f"client{port}", port))
            for port in ports
        ]
        nodes = [f"127.0.0.1:{port}" for port in ports]
        with volcache_client.Client(nodes, on_error="miss") as client:
            for key in keys:
                client.set(key, key.encode())
            found = [client.get(key) for key in keys]
            _require(found == [key.encode() for key in keys], "a value was not found")
            started[0].send_signal(signal.SIGKILL)
            started[0].wait()
            found = [client.get(key) for key in keys]
            hits = len(keys) - found.count(None)
            _require(0 < hits < len(keys), f"{hits} hits with one of three killed")
    _say(f"client: three instances, {hits} of {len(keys)} keys after one was killed")


@contextmanager
def _serving(mount_point: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Serve until the end of the context, and first wait until requests are answered."""
    settings = [f"port={port}", f"mount_point={mount_point}"]
    settings += [f"volume_size={_VOLUME_BYTES}", "volume_num=4", "log_level=error"]
    options = [word for setting in settings for word in ("--set", setting)]
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
    main()
