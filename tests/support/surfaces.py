"""
Where HTTP requests are answered: the application, and three programs that serve it.

Each surface is one of `SURFACES`, with the settings that a row of tests/behaviour asks for.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from email.message import Message
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

from nginx_tokens import render
from support.http_requests import Request
from support.nginx import Nginx
from support.ports import pick_port
from support.process import ADMIN_TOKEN, ServerProcess
from support.program import Program
from support.stores import FakeClock, open_store
from support.wire import Reply, Talk, exchange
from support.wsgi_client import called, make_app
from volcache.access import Access, Limits
from volcache.cache import Cache
from volcache.http.auth import TokenCheck
from volcache.http.cors import Cors, CorsHeaders
from volcache.store import Store
from volcache.tokens import Refusals

Settings = Mapping[str, str]

KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 100_000
VOLUME_BYTES: Final = 16 << 20
VOLUMES: Final = 4
_COMMON: Final[dict[str, object]] = {
    "volume_size": VOLUME_BYTES,
    "volume_num": VOLUMES,
    "max_value_size": VALUE_BYTES_MAX,
    "sync_mode": "none",
    "admin_token": ADMIN_TOKEN,
}
# Longer input is sent in large pieces when it is sent byte by byte.
SMALL_BYTES: Final = 5_000


def application(cache: Cache, settings: Settings, **clocks: Any) -> Any:
    """Return the application of a cache, with what some settings put in front of it."""
    limits = Limits(
        key_size=KEY_BYTES_MAX,
        value_size=VALUE_BYTES_MAX,
        query=settings.get("query", "ignore"),  # type: ignore[arg-type]
        default_ttl=int(settings.get("default_ttl", 0)),
        max_ttl=int(settings.get("max_ttl", 0)),
    )
    hosts = [*filter(None, settings.get("admin_hosts", "").split(","))]
    token = settings.get("admin_token", ADMIN_TOKEN)
    app: Any = make_app(cache, limits, token=token, hosts=hosts, **clocks)
    refusals = Refusals({"read": 0, "write": 0, "admin": 0})
    access = Access(
        read=settings.get("read_token", ""), write=settings.get("write_token", "")
    )
    origins = settings.get("cors_origins", "")
    front = TokenCheck(app, app.send, refusals, access) if access.needs_token else app
    return Cors(front, CorsHeaders(origins.split(","))) if origins else front


class Connection(ABC):
    """One connection to a surface."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Close it."""

    @abstractmethod
    def ask(self, request: Request) -> Reply:
        """Send a request; return the answer."""

    @abstractmethod
    def has_ended(self) -> bool:
        """End our side; return whether nothing but the end follows."""


class Call(Connection):
    """Calls an application."""

    def __init__(self, app: Any) -> None:
        """Call nothing yet."""
        self._app = app

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Request) -> Reply:
        """Call it once."""
        status, pairs, chunks = called(self._app, dict(request.environ))
        headers: Any = Message()
        for name, value in pairs:
            headers[name] = value
        return Reply(int(status[:3]), headers, b"".join(chunks))

    def has_ended(self) -> bool:
        """There is nothing else."""
        return True


class Wired(Connection):
    """A connection to a port."""

    def __init__(self, port: int, *, by_byte: bool = False) -> None:
        """Connect."""
        self._talk, self._by_byte = Talk(port), by_byte

    def __exit__(self, *_: object) -> None:
        self._talk.__exit__()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        size = 1 if self._by_byte and len(data) < SMALL_BYTES else 1 << 16
        for at in range(0, len(data), size):
            self._talk.send(data[at : at + size])

    def read(self, method: str) -> Reply:
        """Read an answer."""
        return self._talk.read(method)

    def ask(self, request: Request) -> Reply:
        """Send a request; return the answer."""
        self.send(request.sent)
        return self.read(request.method)

    def has_ended(self) -> bool:
        """End our side; return whether nothing but the end follows."""
        self._talk.shut()
        return self._talk.has_ended()


class Instances:
    """Instances by their settings, which all surfaces with an instance share."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Start none; `stack` ends them."""
        self.folder, self._stack = folder, stack
        self._ports: dict[str, int] = {}
        self._lock = Lock()

    def port(self, settings: Settings) -> int:
        """Return the port of an instance, which is started if there is none yet."""
        name = str(sorted(settings.items()))
        if name not in self._ports:
            server = ServerProcess(
                self.folder / str(pick_port()), settings=_COMMON | dict(settings)
            )
            server.__enter__()
            with self._lock:
                self._stack.push(server)
                self._ports[name] = server.port
        return self._ports[name]


class Surface(ABC):
    """One surface with some settings, from the beginning of the context to its end."""

    clock: FakeClock | None = None

    def __init__(self, folder: Path, settings: Settings, instances: Instances) -> None:
        """Start nothing yet."""
        self.folder, self.settings, self.instances = folder, settings, instances
        self._stack = ExitStack()

    @abstractmethod
    def __enter__(self) -> Self:
        """Start it."""

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._stack.close()

    @abstractmethod
    def connect(self) -> Connection:
        """Return a new connection."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass, if its clock is ours."""
        if self.clock is not None:
            self.clock.advance(seconds)


class Application(Surface):
    """The application in this process, with a clock of ours."""

    def __enter__(self) -> Self:
        self.clock = clock = FakeClock()
        store = open_store(
            self.folder,
            clock=clock,
            volume_size=VOLUME_BYTES,
            volume_num=VOLUMES,
        )
        self._stack.callback(store.close)
        self._app = application(
            Cache(store),
            self.settings,
            clock=lambda: clock.now_ms * 1_000_000,
            timer=count(step=1_000_000_000).__next__,
        )
        return self

    def connect(self) -> Connection:
        """Return what calls it."""
        return Call(self._app)


class Served(Surface):
    """A surface with a port."""

    port: int
    by_byte = False

    def connect(self) -> Wired:
        """Connect to the port."""
        return Wired(self.port, by_byte=self.by_byte)


class _BjoernProcess(Program):
    """This module as a program: bjoern with the application."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        super().__init__()
        self.port = pick_port()
        self._words = [f"{name}={value}" for name, value in settings.items()]
        self._folder = folder

    def command(self) -> Sequence[str | Path]:
        """Return the command."""
        path = f"import sys; sys.path[:0] = {sys.path!r}"
        code = f"{path}; from support.surfaces import serve; serve(*sys.argv[1:])"
        return [sys.executable, "-c", code, self._folder, str(self.port), *self._words]

    def answers(self) -> bool:
        """Whether it serves."""
        try:
            return exchange(self.port, "GET", "/-/healthy").status == 200
        except OSError:
            return False


def serve(folder: str, port: str, *words: str) -> None:
    """Run bjoern, without anything of the front, until the process is ended."""
    import bjoern  # noqa: PLC0415 - In its own process only.

    settings = dict(word.split("=", 1) for word in words)
    store = Store.open(
        folder, volume_size=VOLUME_BYTES, volume_num=VOLUMES, sync_mode="none"
    )
    bjoern.run(application(Cache(store), settings), "127.0.0.1", int(port))


class Bjoern(Served):
    """The application on bjoern, without the front."""

    def __enter__(self) -> Self:
        process = self._stack.enter_context(_BjoernProcess(self.folder, self.settings))
        self.port = process.port
        return self


class Front(Served):
    """An instance."""

    def __enter__(self) -> Self:
        self.port = self.instances.port(self.settings)
        return self


class FrontByByte(Front):
    """An instance that receives each byte for itself."""

    by_byte = True


class BehindNginx(Served):
    """An instance, asked through nginx, which has the same tokens."""

    def __enter__(self) -> Self:
        instance = f"127.0.0.1:{self.instances.port(self.settings)}"
        given = [self.settings.get(f"{kind}_token", "") for kind in ("read", "write")]
        files = {"volcache/tokens.conf": render(*given)} if any(given) else {}
        nginx = Nginx(self.folder, [instance], files=files)
        self.port = self._stack.enter_context(nginx).port
        return self


# With the mark that answers of it alone have in the rows.
SURFACES: Final[Mapping[str, tuple[str, type[Surface]]]] = {
    "application": ("a", Application),
    "bjoern": ("b", Bjoern),
    "front": ("f", Front),
    "front by byte": ("f", FrontByByte),
    "nginx": ("n", BehindNginx),
}
