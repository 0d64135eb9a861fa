"""
The hot tier in memcached. The only import of pymemcache.

A request asks a server that is up, and waits for it no longer than the time-out. The
first failure takes the server down: from then on nobody waits for it. A thread of its own
connects again after half a second, then one, two, four, up to thirty. So it is that
thread, never a request, that resolves names, connects, and waits for a server that hangs.

Nothing is ever removed from memcached: a value that changes gets a new name (`names.py`),
so no lost or late call can bring an old one back. Each item begins with its name, so that
an item that is not the one that was asked for does not count either.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from google_crc32c import value as crc32c
from pymemcache.client.base import Client
from pymemcache.client.rendezvous import RendezvousHash
from pymemcache.exceptions import (
    MemcacheError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
)

from volcache.hot.names import NAME_BYTES
from volcache.hot.tier import HotStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from volcache.hot.names import Names

_log = logging.getLogger("volcache.hot")

_PROBE_SECONDS_MIN: Final = 0.5
_PROBE_SECONDS_MAX: Final = 30.0
# A server that fails sooner than this after it came back is waited for longer.
_STABLE_SECONDS: Final = 60.0
_PREFIX: Final = b"volcache:"
# memcached takes larger numbers for points in time and smaller ones for seconds from
# now; ours are always points in time.
_EXPIRE_MAX: Final = 2**31 - 1


class ServerDownError(Exception):
    """The server is not asked, or did not answer as it should; `kind` says why."""

    def __init__(self, kind: str) -> None:
        """Name the kind of failure, as it is counted."""
        super().__init__(kind)
        self.kind = kind


class _DeadlineSocket(socket.socket):
    """A socket that waits until a point in time, over all its calls together."""

    deadline = 0.0  # of time.monotonic()

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)

    def connect(self, address: Any) -> None:  # noqa: ANN401 - As in the base class.
        """Connect, or time out."""
        self._arm()
        super().connect(address)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ANN401
        """Send all, or time out."""
        self._arm()
        super().sendall(data, flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive something, or time out."""
        self._arm()
        return super().recv(size, flags)


class _Sockets:
    """The module `socket` as pymemcache uses it, with sockets that have a deadline."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._sockets: list[_DeadlineSocket] = []
        self.deadline = 0.0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - Any name of a module.
        return getattr(socket, name)

    def socket(self, *arguments: int) -> _DeadlineSocket:
        """Make a socket that lives under the deadline set last."""
        made = _DeadlineSocket(*arguments)
        made.deadline = self.deadline
        self._sockets = [made]
        return made

    def begin(self) -> None:
        """Let the calls that follow take as long as the time-out together."""
        self.deadline = time.monotonic() + self._timeout
        for made in self._sockets:
            made.deadline = self.deadline


class _Server:
    """One server: up with a connection, or down and probed with back-off."""

    def __init__(
        self, address: str, timeout: float, stats: HotStats, wake: Callable[[], None]
    ) -> None:
        self.address = address
        self._wake = wake
        self._timeout = timeout
        self._stats = stats
        self._connection: tuple[Client, _Sockets] | None = None
        self._delay = _PROBE_SECONDS_MIN
        self._probe_at = 0.0
        self._up_since = time.monotonic()
        self._is_said_down = False

    @property
    def is_up(self) -> bool:
        """Whether it is asked."""
        return self._connection is not None

    def call(self, ask: Callable[[Client], Any]) -> Any:  # noqa: ANN401 - Of `ask`.
        """
        Ask the server.

        Raises:
            ServerDownError: It is down now, perhaps since this call.
            MemcacheServerError: It answered that it will not.
        """
        connection = self._connection
        if connection is None:
            raise ServerDownError("down")
        client, sockets = connection
        if client.sock is None:
            # pymemcache would connect anew, here and now.
            self._take_down("closed")
            raise ServerDownError("closed")
        sockets.begin()
        began = time.perf_counter_ns()
        try:
            return ask(client)
        except MemcacheUnexpectedCloseError as error:
            self._take_down("closed")
            raise ServerDownError("closed") from error
        except MemcacheServerError:
            # The answer was read, but pymemcache has closed the connection.
            self._reconnect_soon()
            raise
        except (MemcacheError, OSError, ValueError) as error:
            kind = _kind_of(error)
            self._take_down(kind)
            raise ServerDownError(kind) from error
        finally:
            # The thread that probes does not call this: one thread counts.
            self._stats.calls.observe(began, time.perf_counter_ns() - began)

    def _reconnect_soon(self) -> None:
        """Go down without blame: the prober connects again at once."""
        self._connection = None
        self._probe_at = 0.0
        self._wake()

    def _take_down(self, kind: str) -> None:
        self._stats.failures[kind] += 1
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[0].close()
            was_stable = time.monotonic() - self._up_since > _STABLE_SECONDS
            self._delay = _PROBE_SECONDS_MIN if was_stable else self._next_delay()
        self._probe_at = time.monotonic() + self._delay
        if not self._is_said_down:
            self._is_said_down = True
            self._stats.states += 1
            _log.warning("hot.down server=%s kind=%s", self.address, kind)

    def _next_delay(self) -> float:
        return min(_PROBE_SECONDS_MAX, 2 * self._delay)

    def probe(self) -> None:
        """Connect if it is down and its time has come; not for the request's thread."""
        if self._connection is not None or time.monotonic() < self._probe_at:
            return
        sockets = _Sockets(self._timeout)
        client = Client(
            _address(self.address),
            connect_timeout=self._timeout,
            timeout=self._timeout,
            no_delay=True,
            socket_module=sockets,
            default_noreply=False,
        )
        sockets.begin()
        try:
            client.version()
        except (MemcacheError, OSError, ValueError) as error:
            client.close()
            self._take_down(_kind_of(error))
            self._delay = self._next_delay()
            return
        self._up_since = time.monotonic()
        self._connection = (client, sockets)
        if self._is_said_down:
            self._is_said_down = False
            self._stats.states += 1
            _log.warning("hot.up server=%s", self.address)

    def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[0].close()


class MemcachedTier:
    """A hot tier over one or several servers; see `tier.HotTier` for the contract."""

    def __init__(
        self,
        servers: Sequence[str],
        names: Names,
        *,
        timeout: float,
        item_size_max: int,
    ) -> None:
        """
        Connect, or begin to try.

        Args:
            servers: `host:port`, `[IPv6]:port` or the path of a unix socket, each.
            names: Of the items; closed with this.
            timeout: Seconds that one call may take.
            item_size_max: The largest item, in bytes, that is promoted.
        """
        self.stats = HotStats()
        self._names = names
        self.may_hold = names.may_hold
        self._item_size_max = item_size_max
        self._is_stopped = False
        self._woken = threading.Event()
        self._servers = {
            address: _Server(address, timeout, self.stats, self._woken.set)
            for address in servers
        }
        self._only = self._servers[servers[0]] if len(self._servers) == 1 else None
        # The hash of pymemcache's HashClient, over a checksum in C. Not the client: it
        # answers for a server that failed lately without asking it, and moves its keys
        # to others, where a get is slower than the disk for as long as it takes to
        # promote them again.
        self._spread = RendezvousHash(
            list(self._servers), hash_function=lambda text, _seed: crc32c(text.encode())
        )
        for server in self._servers.values():
            server.probe()
        self._prober = threading.Thread(target=self._probe, name="hot", daemon=True)
        self._prober.start()

    def _probe(self) -> None:
        while not self._is_stopped:
            self._woken.wait(_PROBE_SECONDS_MIN / 5)
            self._woken.clear()
            for server in self._servers.values():
                server.probe()

    @property
    def up(self) -> dict[str, bool]:
        """Which servers are asked at present."""
        return {address: server.is_up for address, server in self._servers.items()}

    def _locate(self, key: bytes) -> tuple[_Server, bytes, bytes]:
        """Return the server a key belongs to, and its item's name in bytes and there."""
        name = self._names.name(key)
        text = _PREFIX + name.hex().encode()
        if self._only is not None:
            return self._only, name, text
        return self._servers[self._spread.get_node(text.decode())], name, text

    def get(self, key: bytes) -> bytes | None:
        """Return the item under a key, None when there is none or nobody can say."""
        server, name, text = self._locate(key)
        if not server.is_up:
            return None
        self.stats.gets += 1
        try:
            item: bytes | None = server.call(lambda client: client.get(text))
        except MemcacheServerError:
            self.stats.failures["refused"] += 1
            return None
        except ServerDownError:
            return None
        if item is None:
            return None
        self.stats.hits += 1
        if not item.startswith(name):
            self.stats.stale += 1
            return None
        return item[NAME_BYTES:]

    def promote(self, key: bytes, item: bytes, expires_ms: int) -> bool:
        """Keep a copy; see `HotTier.promote`."""
        if len(item) > self._item_size_max or not self._locate(key)[0].is_up:
            return False
        try:
            self._names.note_promotion(key)
        except OSError as error:
            # Not written down, so not sent: nothing has happened.
            self.stats.failures["journal"] += 1
            _log.error("hot.journal_failed error=%r", str(error))
            return False
        server, name, text = self._locate(key)
        expire = min(_EXPIRE_MAX, -(-expires_ms // 1000))
        try:
            is_stored: bool = server.call(
                lambda client: client.set(text, name + item, expire=expire)
            )
        except MemcacheServerError:
            # Too large, or no room. memcached has then removed what it had, too.
            self.stats.refused += 1
            return False
        except ServerDownError:
            return False
        self.stats.promotions += is_stored
        return is_stored

    def invalidate(self, key: bytes) -> None:
        """Make sure that no item of a key is found; see `HotTier.invalidate`."""
        self._names.invalidate(key)
        self.stats.invalidations += 1

    def flush(self) -> None:
        """Make sure that nothing promoted before is found; see `HotTier.flush`."""
        self._names.begin()
        self.stats.flushes += 1

    def close(self) -> None:
        """End the connections; the items stay."""
        self._is_stopped = True
        self._woken.set()
        self._prober.join()
        for server in self._servers.values():
            server.close()
        self._names.close()


def _address(text: str) -> str | tuple[str, int]:
    """Return an address as pymemcache takes it."""
    if text.startswith("/"):
        return text
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _kind_of(error: Exception) -> str:
    """Return the kind of a failure, as it is counted."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return "refused"
    if isinstance(error, MemcacheUnexpectedCloseError | ConnectionError):
        return "closed"
    if isinstance(error, MemcacheError | ValueError):
        return "protocol"
    return "other"
