"""
Both ends of the memcached protocol: servers, and the clients that applications use.

`Driver` has the commands of all clients in one form, so that a test is written once and
run with each. Keys are text, values bytes; times to live are sent as they are given.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import aiomcache
import bmemcached
import emcache
from pymemcache.client.base import Client, PooledClient  # noqa: TID251 - Under test.
from pymemcache.exceptions import MemcacheError  # noqa: TID251

from support.ports import listens, pick_port
from support.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from pathlib import Path

# It is built for some versions of Python only.
PYLIBMC: Final[Any] = import_module("pylibmc") if find_spec("pylibmc") else None
_T = TypeVar("_T")
SECONDS: Final = 10.0  # How long a client waits for an answer.
ADMIN_TOKEN: Final = "secret"  # noqa: S105 - Of the tests.
_SETTINGS: Final = {
    "volume_size": 16 << 20,
    "volume_num": 4,
    "admin_token": ADMIN_TOKEN,
}


class MemcacheInstance(ServerProcess):
    """An instance that serves HTTP and the memcached protocol."""

    def __init__(
        self, mount_point: Path, settings: Mapping[str, object] | None = None
    ) -> None:
        """Choose a port for each."""
        self.memcache_port = pick_port()
        more = {"memcache_listen": f"127.0.0.1:{self.memcache_port}"}
        super().__init__(
            mount_point, settings={**_SETTINGS, **more, **(settings or {})}
        )

    @property
    def memcache_address(self) -> str:
        """The setting `memcache_listen`."""
        return f"127.0.0.1:{self.memcache_port}"

    def answers(self) -> bool:
        """Whether both answer."""
        return super().answers() and listens(self.memcache_port)


class Driver(ABC):
    """One client, connected to one server."""

    name: ClassVar[str]
    # What the client does not have, by method.
    lacks: ClassVar[frozenset[str]] = frozenset()
    # What it raises when a command was refused or the connection is lost.
    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)

    @abstractmethod
    def __init__(self, port: int) -> None:
        """Use the server on a port of this machine."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the value, None if there is none."""

    @abstractmethod
    def gets(self, key: str) -> tuple[bytes, Any]:
        """Return the value and its cas unique."""

    @abstractmethod
    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the values there are."""

    @abstractmethod
    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        """Store a value; raise one of `errors` if it is not stored."""

    @abstractmethod
    def add(self, key: str, value: bytes) -> bool:
        """Store a value if there is none."""

    @abstractmethod
    def replace(self, key: str, value: bytes) -> bool:
        """Store a value if there is one."""

    @abstractmethod
    def cas(self, key: str, value: bytes, unique: Any) -> bool:
        """Store a value if the one there is has this cas unique."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Delete a key."""

    @abstractmethod
    def incr(self, key: str, number: int) -> int:
        """Add to a number."""

    @abstractmethod
    def decr(self, key: str, number: int) -> int:
        """Subtract from a number."""

    def append(self, key: str, value: bytes) -> bool:
        """Append to the value there is."""
        raise NotImplementedError

    def prepend(self, key: str, value: bytes) -> bool:
        """Prepend to the value there is."""
        raise NotImplementedError

    def touch(self, key: str, seconds: int) -> bool:
        """Set the time to live."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class Pymemcache(Driver):
    """pymemcache: the text protocol."""

    name = "pymemcache"
    errors = (OSError, MemcacheError)

    def __init__(self, port: int) -> None:
        """Connect."""
        self.client = self.connect(("127.0.0.1", port))

    def connect(self, server: tuple[str, int]) -> Any:
        """Return a client that waits for all answers."""
        wait = {"timeout": SECONDS, "connect_timeout": SECONDS}
        return Client(server, default_noreply=False, **wait)

    def get(self, key: str) -> bytes | None:
        value: bytes | None = self.client.get(key)
        return value

    def gets(self, key: str) -> tuple[bytes, Any]:
        value, unique = self.client.gets(key)
        return value, unique

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        return dict(self.client.get_many(keys))

    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        assert self.client.set(key, value, expire=seconds) is True

    def add(self, key: str, value: bytes) -> bool:
        return bool(self.client.add(key, value))

    def replace(self, key: str, value: bytes) -> bool:
        return bool(self.client.replace(key, value))

    def cas(self, key: str, value: bytes, unique: Any) -> bool:
        return bool(self.client.cas(key, value, unique))

    def delete(self, key: str) -> bool:
        return bool(self.client.delete(key))

    def incr(self, key: str, number: int) -> int:
        return int(self.client.incr(key, number))

    def decr(self, key: str, number: int) -> int:
        return int(self.client.decr(key, number))

    def append(self, key: str, value: bytes) -> bool:
        return bool(self.client.append(key, value))

    def prepend(self, key: str, value: bytes) -> bool:
        return bool(self.client.prepend(key, value))

    def touch(self, key: str, seconds: int) -> bool:
        return bool(self.client.touch(key, seconds))

    def close(self) -> None:
        self.client.close()


class PymemcachePool(Pymemcache):
    """pymemcache with a pool of connections."""

    name = "pymemcache pool"

    def connect(self, server: tuple[str, int]) -> Any:
        wait = {"timeout": SECONDS, "connect_timeout": SECONDS}
        return PooledClient(server, max_pool_size=2, default_noreply=False, **wait)


class _Loop:
    """A loop for a client that is asynchronous."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, what: Awaitable[_T]) -> _T:
        return self._runner.run(asyncio.wait_for(what, SECONDS))

    def close(self) -> None:
        self._runner.close()


class Aiomcache(Driver):
    """aiomcache: asynchronous, the text protocol."""

    name = "aiomcache"
    errors = (OSError, aiomcache.ClientException)

    def __init__(self, port: int) -> None:
        """Connect with the first command."""
        self._loop = _Loop()
        self._run = self._loop.run
        self._client = aiomcache.Client("127.0.0.1", port, pool_size=2)

    def get(self, key: str) -> bytes | None:
        return self._run(self._client.get(key.encode()))

    def gets(self, key: str) -> tuple[bytes, Any]:
        value, unique = self._run(self._client.gets(key.encode()))
        assert value is not None
        return value, unique

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        found = self._run(self._client.multi_get(*(key.encode() for key in keys)))
        pairs = zip(keys, found, strict=True)
        return {key: value for key, value in pairs if value is not None}

    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        assert self._run(self._client.set(key.encode(), value, seconds))

    def add(self, key: str, value: bytes) -> bool:
        return self._run(self._client.add(key.encode(), value))

    def replace(self, key: str, value: bytes) -> bool:
        return self._run(self._client.replace(key.encode(), value))

    def cas(self, key: str, value: bytes, unique: Any) -> bool:
        return self._run(self._client.cas(key.encode(), value, unique))

    def delete(self, key: str) -> bool:
        return self._run(self._client.delete(key.encode()))

    def incr(self, key: str, number: int) -> int:
        return self._run(self._client.incr(key.encode(), number)) or 0

    def decr(self, key: str, number: int) -> int:
        return self._run(self._client.decr(key.encode(), number)) or 0

    def append(self, key: str, value: bytes) -> bool:
        return self._run(self._client.append(key.encode(), value))

    def prepend(self, key: str, value: bytes) -> bool:
        return self._run(self._client.prepend(key.encode(), value))

    def touch(self, key: str, seconds: int) -> bool:
        return self._run(self._client.touch(key.encode(), seconds))

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.close()


class Emcache(Driver):
    """emcache: asynchronous, the text protocol, several connections."""

    name = "emcache"
    errors = (OSError, emcache.CommandError, asyncio.TimeoutError)

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        """Connect; with the text protocol's authentication if there is a user."""
        self._loop = _Loop()
        self._run = self._loop.run
        address = emcache.MemcachedHostAddress("127.0.0.1", port)
        self._client = self._run(
            emcache.create_client(
                [address],
                timeout=SECONDS,
                username=user or None,
                password=password or None,
            )
        )

    def get(self, key: str) -> bytes | None:
        item = self._run(self._client.get(key.encode()))
        return None if item is None else bytes(item.value)

    def gets(self, key: str) -> tuple[bytes, Any]:
        item = self._run(self._client.gets(key.encode()))
        assert item is not None
        return bytes(item.value), item.cas

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        found = self._run(self._client.get_many([key.encode() for key in keys]))
        return {key.decode(): bytes(item.value) for key, item in found.items()}

    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        self._run(self._client.set(key.encode(), value, exptime=seconds))

    def add(self, key: str, value: bytes) -> bool:
        return self._is_done(self._client.add(key.encode(), value))

    def replace(self, key: str, value: bytes) -> bool:
        return self._is_done(self._client.replace(key.encode(), value))

    def cas(self, key: str, value: bytes, unique: Any) -> bool:
        return self._is_done(self._client.cas(key.encode(), value, unique))

    def delete(self, key: str) -> bool:
        return self._is_done(self._client.delete(key.encode()))

    def incr(self, key: str, number: int) -> int:
        return self._run(self._client.increment(key.encode(), number)) or 0

    def decr(self, key: str, number: int) -> int:
        return self._run(self._client.decrement(key.encode(), number)) or 0

    def append(self, key: str, value: bytes) -> bool:
        return self._is_done(self._client.append(key.encode(), value))

    def prepend(self, key: str, value: bytes) -> bool:
        return self._is_done(self._client.prepend(key.encode(), value))

    def touch(self, key: str, seconds: int) -> bool:
        return self._is_done(self._client.touch(key.encode(), seconds))

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.close()

    def _is_done(self, what: Awaitable[object]) -> bool:
        try:
            self._run(what)
        except (emcache.NotStoredStorageCommandError, emcache.NotFoundCommandError):
            return False
        except emcache.StorageCommandError as error:  # What "cas" raises.
            if "NOT_FOUND" in str(error):
                return False
            raise
        return True


class Pylibmc(Driver):
    """pylibmc, on libmemcached: the text protocol."""

    name = "pylibmc"
    errors = (OSError, getattr(PYLIBMC, "Error", OSError))
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

    def get(self, key: str) -> bytes | None:
        value: bytes | None = self.client.get(key)
        return value

    def gets(self, key: str) -> tuple[bytes, Any]:
        value, unique = self.client.gets(key)
        return value, unique

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        return dict(self.client.get_multi(keys))

    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        assert self.client.set(key, value, time=seconds)

    def add(self, key: str, value: bytes) -> bool:
        return bool(self.client.add(key, value))

    def replace(self, key: str, value: bytes) -> bool:
        with suppress(PYLIBMC.NotFound):
            return bool(self.client.replace(key, value))
        return False

    def cas(self, key: str, value: bytes, unique: Any) -> bool:
        with suppress(PYLIBMC.NotFound):
            return bool(self.client.cas(key, value, unique))
        return False

    def delete(self, key: str) -> bool:
        return bool(self.client.delete(key))

    def incr(self, key: str, number: int) -> int:
        return int(self.client.incr(key, number))

    def decr(self, key: str, number: int) -> int:
        return int(self.client.decr(key, number))

    def append(self, key: str, value: bytes) -> bool:
        return bool(self.client.append(key, value))

    def prepend(self, key: str, value: bytes) -> bool:
        return bool(self.client.prepend(key, value))

    def touch(self, key: str, seconds: int) -> bool:
        return bool(self.client.touch(key, seconds))

    def close(self) -> None:
        self.client.disconnect_all()


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

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        """Connect with the first command; with SASL PLAIN if there is a user."""
        self._client = bmemcached.Client(
            (f"127.0.0.1:{port}",),
            user or None,
            password or None,
            socket_timeout=SECONDS,
            raw_data=True,
        )
        # After a connection was lost it would not connect again for five seconds.
        self._client.enable_retry_delay(enable=False)

    def get(self, key: str) -> bytes | None:
        value: bytes | None = self._client.get(key)
        return value

    def gets(self, key: str) -> tuple[bytes, Any]:
        value, unique = self._client.gets(key)
        return value, unique

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        return dict(self._client.get_multi(list(keys)))

    def set(self, key: str, value: bytes, seconds: int = 0) -> None:
        if not self._client.set(key, value, time=seconds):
            raise ConnectionError("not stored")

    def add(self, key: str, value: bytes) -> bool:
        return bool(self._client.add(key, value))

    def replace(self, key: str, value: bytes) -> bool:
        return bool(self._client.replace(key, value))

    def cas(self, key: str, value: bytes, unique: Any) -> bool:
        return bool(self._client.cas(key, value, unique))

    def delete(self, key: str) -> bool:
        return bool(self._client.delete(key))

    def incr(self, key: str, number: int) -> int:
        return int(self._client.incr(key, number))

    def decr(self, key: str, number: int) -> int:
        return int(self._client.decr(key, number))

    def close(self) -> None:
        self._client.disconnect_all()


DRIVERS: Final[tuple[type[Driver], ...]] = (
    Pymemcache,
    PymemcachePool,
    Aiomcache,
    Emcache,
    *((Pylibmc, PylibmcBinary) if PYLIBMC else ()),
    Bmemcached,
)
