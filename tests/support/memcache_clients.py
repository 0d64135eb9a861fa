"""
The clients of memcached that applications use.

`Driver` has the commands of all clients in one form, so that a test is written once and
run with each. Keys are text, values bytes; times to live are sent as they are given.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Final

import aiomcache
import bmemcached
import emcache
from pymemcache.client.base import Client, PooledClient  # noqa: TID251 - Under test.
from pymemcache.exceptions import MemcacheError  # noqa: TID251

# It is built for some versions of Python only.
PYLIBMC: Final[Any] = import_module("pylibmc") if find_spec("pylibmc") else None
SECONDS: Final = 10.0  # How long a client waits for an answer.


class Driver(ABC):
    """One client, connected to one server; what it may do otherwise is overridden."""

    name: ClassVar[str]
    # What the client does not have, by method.
    lacks: ClassVar[frozenset[str]] = frozenset()
    # What it raises when a command was refused or the connection is lost.
    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    # What the client calls a method, where it is another name.
    names: ClassVar[Mapping[str, str]] = {}
    client: Any

    @abstractmethod
    def __init__(self, port: int) -> None:
        """Use the server on a port of this machine."""

    def do(self, method: str, *arguments: Any) -> Any:
        """Call a method of the client."""
        return getattr(self.client, self.names.get(method, method))(*arguments)

    def get(self, key: str) -> bytes | None:
        """Return the value, None if there is none."""
        value: bytes | None = self.do("get", key)
        return value

    def gets(self, key: str) -> tuple[bytes, Any]:
        """Return the value and its cas unique."""
        value, unique = self.do("gets", key)
        return value, unique

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the values there are."""
        return dict(self.do("get_many", list(keys)))

    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        """Store a value; raise one of `errors` if it is not stored."""
        if not self.do("set", key, value, seconds):
            raise ConnectionError("not stored")

    def __getattr__(self, name: str) -> Callable[..., bool]:
        """Return add, append, cas, delete, prepend, replace or touch: is it done?"""
        if name.startswith("_") or name == "client":
            raise AttributeError(name)
        return lambda *arguments: bool(self.do(name, *arguments))

    def incr(self, key: str, number: int) -> int:
        """Add to a number."""
        return int(self.do("incr", key, number))

    def decr(self, key: str, number: int) -> int:
        """Subtract from a number."""
        return int(self.do("decr", key, number))

    def close(self) -> None:
        """Close the connections."""
        self.do("close")


class Pymemcache(Driver):
    """pymemcache: the text protocol."""

    name = "pymemcache"
    errors = (OSError, MemcacheError)
    kind: ClassVar[Any] = Client
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, port: int) -> None:
        """Connect; wait for all answers."""
        self.client = self.kind(
            ("127.0.0.1", port),
            timeout=SECONDS,
            connect_timeout=SECONDS,
            default_noreply=False,
            **self.options,
        )


class PymemcachePool(Pymemcache):
    """pymemcache with a pool of connections."""

    name = "pymemcache pool"
    kind = PooledClient
    options: ClassVar = {"max_pool_size": 2}


class _Asynchronous(Driver):
    """A client that is asynchronous, with keys of bytes, and its loop."""

    def __init__(self, port: int) -> None:
        """Connect, or prepare to."""
        self._runner = asyncio.Runner()
        self.client = self._run(self.connect(port))

    async def connect(self, port: int) -> Any:
        """Return the client."""
        raise NotImplementedError

    def _run(self, what: Awaitable[Any]) -> Any:
        return self._runner.run(asyncio.wait_for(what, SECONDS))

    def do(self, method: str, *arguments: Any) -> Any:
        sent = (one.encode() if isinstance(one, str) else one for one in arguments)
        return self._run(super().do(method, *sent))

    def close(self) -> None:
        super().close()
        self._runner.close()


class Aiomcache(_Asynchronous):
    """aiomcache: asynchronous, the text protocol."""

    name = "aiomcache"
    errors = (OSError, aiomcache.ClientException)

    async def connect(self, port: int) -> Any:
        return aiomcache.Client("127.0.0.1", port, pool_size=2)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        pairs = zip(keys, self.do("multi_get", *keys), strict=True)
        return {key: value for key, value in pairs if value is not None}


class Emcache(_Asynchronous):
    """emcache: asynchronous, the text protocol, several connections."""

    name = "emcache"
    errors = (OSError, emcache.CommandError, asyncio.TimeoutError)
    names: ClassVar = {"incr": "increment", "decr": "decrement"}

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        """Connect; with the text protocol's authentication if there is a user."""
        self._login = {"username": user or None, "password": password or None}
        super().__init__(port)

    async def connect(self, port: int) -> Any:
        address = emcache.MemcachedHostAddress("127.0.0.1", port)
        options: dict[str, Any] = {"timeout": SECONDS, **self._login}
        return await emcache.create_client([address], **options)

    def do(self, method: str, *arguments: Any) -> Any:
        try:
            done = super().do(method, *arguments)
        except (emcache.NotStoredStorageCommandError, emcache.NotFoundCommandError):
            return False
        except emcache.StorageCommandError as error:  # What "cas" raises.
            if "NOT_FOUND" in str(error):
                return False
            raise
        return done if method in {"get", "gets", "incr", "decr"} else True

    def get(self, key: str) -> bytes | None:
        item = self.do("get", key)
        return None if item is None else bytes(item.value)

    def gets(self, key: str) -> tuple[bytes, Any]:
        item = self.do("gets", key)
        return bytes(item.value), item.cas

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        found = self._run(self.client.get_many([key.encode() for key in keys]))
        return {key.decode(): bytes(item.value) for key, item in found.items()}

    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        self._run(self.client.set(key.encode(), value, exptime=seconds))


class Pylibmc(Driver):
    """pylibmc, on libmemcached: the text protocol."""

    name = "pylibmc"
    errors = (OSError, getattr(PYLIBMC, "Error", OSError))
    names: ClassVar = {"get_many": "get_multi", "close": "disconnect_all"}
    is_binary: ClassVar[bool] = False

    def __init__(self, port: int) -> None:
        """Connect with the first command."""
        milliseconds = int(SECONDS * 1000)
        self.client = PYLIBMC.Client(
            [f"127.0.0.1:{port}"],
            binary=self.is_binary,
            behaviors={
                "cas": True,
                "tcp_nodelay": True,
                "retry_timeout": 1,  # Seconds after a connection was lost.
                "connect_timeout": milliseconds,
                "receive_timeout": milliseconds * 1000,
                "send_timeout": milliseconds * 1000,
            },
        )

    def do(self, method: str, *arguments: Any) -> Any:
        refused = [PYLIBMC.NotFound] if method in {"replace", "cas"} else []
        with suppress(*refused):
            return super().do(method, *arguments)
        return False


class PylibmcBinary(Pylibmc):
    """pylibmc, on libmemcached: the binary protocol."""

    name = "pylibmc binary"
    is_binary = True
    lacks = frozenset({"touch"})  # It waits five seconds, also with memcached.


class Bmemcached(Driver):
    """python-binary-memcached: the binary protocol, in Python."""

    name = "bmemcached"
    lacks = frozenset({"append", "prepend", "touch"})
    errors = (OSError, bmemcached.exceptions.MemcachedException)
    names: ClassVar = {"get_many": "get_multi", "close": "disconnect_all"}

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        """Connect with the first command; with SASL PLAIN if there is a user."""
        self.client = bmemcached.Client(
            (f"127.0.0.1:{port}",),
            user or None,
            password or None,
            socket_timeout=SECONDS,
            raw_data=True,
        )
        # After a connection was lost it would not connect again for five seconds.
        self.client.enable_retry_delay(enable=False)


DRIVERS: Final[tuple[type[Driver], ...]] = (
    Pymemcache,
    PymemcachePool,
    Aiomcache,
    Emcache,
    *((Pylibmc, PylibmcBinary) if PYLIBMC else ()),
    Bmemcached,
)
