"""
memcached servers that are up or down. The only import of pymemcache.

A request asks a server that is up, and waits for it no longer than the time-out. The
first failure takes the server down: from then on nobody waits for it. A thread of its own
connects again after half a second, then one, two, four, up to thirty. So it is that
thread, never a request, that resolves names, connects, and waits for a server that hangs.

Knows nothing of what the items are.

Sockets that wait until a point in time, over all their calls together.

A time-out of each call is none of the whole: a server that sends a byte now and then
would stretch it for ever.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from volcache.hot.tier import HotStats

_logger = logging.getLogger("volcache.hot")

_PROBE_SECONDS_MIN: Final = 0.5
_PROBE_SECONDS_MAX: Final = 30.0
# A server that fails sooner than this after it came back is waited for longer.
_STABLE_SECONDS: Final = 60.0


class ServerDownError(Exception):
    """The server is not asked, or did not answer as it should; `kind` says why."""

    def __init__(self, kind: str) -> None:
        """Name the kind of failure, as it is counted."""
        super().__init__(kind)
        self.kind = kind


class RefusedError(Exception):
    """The server answered that it will not."""


class Server:
    """One server: up with a connection, or down and probed with back-off."""

    def __init__(
        self, address: str, timeout: float, stats: HotStats, wake: Callable[[], None]
    ) -> None:
        """
        Begin down; the first `probe` connects.

        Args:
            address: As a setting has it.
            timeout: Seconds that one call may take.
            stats: Where calls, failures and changes of state are counted.
            wake: Is called when the server should be probed at once.
        """
        self.address = address
        self._wake = wake
        self._timeout = timeout
        self._stats = stats
        self._connection: tuple[Client, DeadlineSockets] | None = None
        self._delay = _PROBE_SECONDS_MIN
        self._probe_at = 0.0
        self._up_since = time.monotonic()
        self._is_said_down = False

    @property
    def is_up(self) -> bool:
        """Whether it is asked."""
        return self._connection is not None

    def get(self, name: bytes) -> bytes | None:
        """
        Return an item, None when there is none.

        Raises:
            ServerDownError: It is down now, perhaps since this call.
            RefusedError: It answered that it will not.
        """
        item: bytes | None = self._call(lambda client: client.get(name))
        return item

    def set(self, name: bytes, item: bytes, expire: int) -> bool:
        """
        Store an item until a point in time; return whether it is there.

        Raises:
            ServerDownError: It is down now, perhaps since this call.
            RefusedError: The item is too large, or there is no room. The server has
                then removed what it had, too.
        """
        is_stored: bool = self._call(
            lambda client: client.set(name, item, expire=expire)
        )
        return is_stored

    def _call(self, ask: Callable[[Client], Any]) -> Any:  # noqa: ANN401 - Of `ask`.
        connection = self._connection
        if connection is None:
            raise ServerDownError("down")
        client, sockets = connection
        if client.sock is None:
            # pymemcache would connect anew, here and now.
            self._take_down("closed")
            raise ServerDownError("closed")
        sockets.begin()
        started_ns = time.perf_counter_ns()
        try:
            return ask(client)
        except MemcacheUnexpectedCloseError as error:
            self._take_down("closed")
            raise ServerDownError("closed") from error
        except MemcacheServerError as error:
            # The answer was read, but pymemcache has closed the connection.
            self._reconnect_soon()
            raise RefusedError from error
        except (MemcacheError, OSError, ValueError) as error:
            kind = _kind_of(error)
            self._take_down(kind)
            raise ServerDownError(kind) from error
        finally:
            # The thread that probes does not call this: one thread counts.
            self._stats.calls.observe(started_ns, time.perf_counter_ns() - started_ns)

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
            _logger.warning("hot.down server=%s kind=%s", self.address, kind)

    def _next_delay(self) -> float:
        return min(_PROBE_SECONDS_MAX, 2 * self._delay)

    def probe(self) -> None:
        """Connect if it is down and its time has come; not for the request's thread."""
        if self._connection is not None or time.monotonic() < self._probe_at:
            return
        sockets = DeadlineSockets(self._timeout)
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
            _logger.warning("hot.up server=%s", self.address)

    def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[0].close()


class Servers:
    """All servers; each key belongs to one, which stays so when another is down."""

    def __init__(
        self, addresses: Sequence[str], timeout: float, stats: HotStats
    ) -> None:
        """Connect, or begin to try; the arguments are those of each `Server`."""
        self._is_stopped = False
        self._woken = threading.Event()
        self.by_address = {
            address: Server(address, timeout, stats, self._woken.set)
            for address in addresses
        }
        self._only = self.by_address[addresses[0]] if len(addresses) == 1 else None
        # The hash of pymemcache's HashClient, over a checksum in C. Not the client: it
        # answers for a server that failed lately without asking it, and moves its keys
        # to others, where a get is slower than the disk for as long as it takes to
        # promote them again.
        self._spread = RendezvousHash(
            list(addresses), hash_function=lambda text, _seed: crc32c(text.encode())
        )
        for server in self.by_address.values():
            server.probe()
        self._prober = threading.Thread(target=self._probe, name="hot", daemon=True)
        self._prober.start()

    def _probe(self) -> None:
        while not self._is_stopped:
            self._woken.wait(_PROBE_SECONDS_MIN / 5)
            self._woken.clear()
            for server in self.by_address.values():
                server.probe()

    def of(self, name: bytes) -> Server:
        """Return the server an item belongs to."""
        if self._only is not None:
            return self._only
        return self.by_address[self._spread.get_node(name.decode())]

    @property
    def up(self) -> dict[str, bool]:
        """Which servers are asked at present."""
        return {address: server.is_up for address, server in self.by_address.items()}

    def close(self) -> None:
        """End the connections; the items stay."""
        self._is_stopped = True
        self._woken.set()
        self._prober.join()
        for server in self.by_address.values():
            server.close()


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


class DeadlineSocket(socket.socket):
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


class DeadlineSockets:
    """The module `socket` as pymemcache uses it, with sockets that have a deadline."""

    def __init__(self, timeout: float) -> None:
        """Have none yet; `timeout` is in seconds."""
        self._timeout = timeout
        self._sockets: list[DeadlineSocket] = []
        self.deadline = 0.0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - Any name of a module.
        """Return what the module has."""
        return getattr(socket, name)

    def socket(self, *arguments: int) -> DeadlineSocket:
        """Make a socket that lives under the deadline set last."""
        made = DeadlineSocket(*arguments)
        made.deadline = self.deadline
        self._sockets = [made]
        return made

    def begin(self) -> None:
        """Let the calls that follow take as long as the time-out together."""
        self.deadline = time.monotonic() + self._timeout
        for made in self._sockets:
            made.deadline = self.deadline
