"""
The front: loops in C that serve clients of both protocols, and bjoern behind them.

The loops answer what clients usually send, without Python; `front/http.h` says what. They
forward other requests to bjoern, which runs unmodified in a thread of its own and listens
on a Unix socket that only this process can reach. Another thread works for the loops: it
takes what they have counted and recorded, and promotes hot keys. With memcached clients,
one more executes what may take long (`memcache/caller.py`).
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import bjoern

from volcache.background import Background
from volcache.front import Server
from volcache.http.app import ALLOW
from volcache.http.content_types import TYPES
from volcache.http.cors import header_lines
from volcache.http.entrance import ADMIN
from volcache.memcache.caller import Caller
from volcache.server.connection_log import ConnectionLog
from volcache.server.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from volcache.access import Access
    from volcache.front import AccessLog, CommandFacts, Readers
    from volcache.http.app import App
    from volcache.http.cors import CorsHeaders
    from volcache.server.addresses import Addresses

_logger: Final = logging.getLogger("volcache.server")

# The field in which the loops pass the client's address on; clients cannot set it. The
# prefix tells that the client uses the operator's address.
_REMOTE_FIELD: Final = "HTTP_X_VOLCACHE_REMOTE"
_ADMIN_PREFIX: Final = "admin "
_BACKLOG: Final = 1024
# Of bjoern's thread, above that of the loops; as of reader threads.
_NICENESS: Final = 10
_FIRST_REQUEST: Final = b"GET / HTTP/1.1\r\nHost: bjoern\r\nConnection: close\r\n\r\n"
_WORK_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 1.0
_THREADS_MAX: Final = 4
# Descriptors that connections leave to files that are opened while serving.
_RESERVED_DESCRIPTORS: Final = 64
_CONNECTIONS_MIN: Final = 8
# To the operator's address; whatever clients do, these are free for it.
_ADMIN_CONNECTIONS: Final = 32
# More than a machine has memory for; the limit may be "unlimited".
_CONNECTIONS_MAX: Final = 1 << 20


class Timeouts(NamedTuple):
    """Seconds after which a connection is closed; 0 = never."""

    head: float  # from the first byte of a request's head to its end
    idle: float  # without a request
    transfer: float  # without progress of a body, a command or an answer
    memcache_idle: float = 0.0  # without a command


def raise_descriptor_limit() -> None:
    """Let the process open as many files and connections as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # Some kernels refuse an unlimited number.
        _logger.warning(
            "descriptors.limited limit=%d allowed=%d error=%r", soft, hard, str(error)
        )


def connections_max() -> int:
    """Return how many connections leave enough descriptors for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - Only counted.
    free = soft - used - _RESERVED_DESCRIPTORS
    return min(max(free, _CONNECTIONS_MIN), _CONNECTIONS_MAX)


def _served(
    addresses: Addresses, connections: int, timeouts: Timeouts
) -> dict[str, tuple[int, int, float, float]]:
    """Return what is served: sockets, connections at most, seconds for head and idle."""
    http, admin, memcache = addresses.http, addresses.admin, addresses.memcache
    head, idle = timeouts.head, timeouts.idle
    served: dict[str, tuple[int, int, float, float]] = {}
    if http is not None:
        served["http"] = http.fileno(), connections, head, idle
    if memcache is not None:
        fd = memcache.socket.fileno()
        served["memcache"] = fd, connections, 0, timeouts.memcache_idle
    if admin is not None:
        served["admin"] = admin.socket.fileno(), _ADMIN_CONNECTIONS, head, idle
    return served


def usual_threads() -> int:
    """Return how many loops use the processors of this machine."""
    return min(_THREADS_MAX, len(os.sched_getaffinity(0)))


def _give_way() -> None:
    """Let the loops have the processor before this thread, without starving it."""
    with suppress(OSError):  # Whoever has started the process may not allow it.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.nice(_NICENESS)


class Application:
    """bjoern, in a thread of its own, on a Unix socket that only this process can reach."""

    def __init__(self) -> None:
        """Open the socket; its name is removed at once, and its file stays reachable."""
        self._listener = socket.socket(socket.AF_UNIX)
        with tempfile.TemporaryDirectory(prefix="volcache-") as folder:
            path = str(Path(folder, "bjoern"))
            self._listener.bind(path)
            self._file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)  # noqa: FBT003 - The library's signature.
        self._thread: threading.Thread | None = None
        # Where the loops connect to.
        self.path = f"/proc/self/fd/{self._file}"

    def start(self, app: WSGIApplication) -> None:
        """
        Answer requests; main thread only, with SIGINT blocked.

        Returns when bjoern serves. Its signal handling has unblocked SIGINT in its thread
        then; the first request blocks it there again, so that a signal sent to the process
        is left to whoever waits for it.
        """
        is_serving = False

        def answer(
            environ: WSGIEnvironment, start_response: StartResponse
        ) -> list[bytes]:
            nonlocal is_serving
            if not is_serving:
                is_serving = True
                _give_way()
                signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
                start_response("200 OK", [("Content-Length", "0")])
                return []
            remote = environ.pop(_REMOTE_FIELD, "")
            environ[ADMIN] = remote.startswith(_ADMIN_PREFIX)
            environ["REMOTE_ADDR"] = remote.removeprefix(_ADMIN_PREFIX)
            return app(environ, start_response)  # type: ignore[return-value]

        def ignore(_number: int, _frame: FrameType | None) -> None:
            """Do nothing: bjoern sends itself a SIGINT at its end."""

        self._handler = signal.signal(signal.SIGINT, ignore)
        self._thread = threading.Thread(
            target=bjoern.server_run, args=(self._listener, answer), name="bjoern"
        )
        # A request that never ends must not keep the process.
        self._thread.daemon = True
        self._thread.start()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self.path)
            client.sendall(_FIRST_REQUEST)
            while client.recv(4096):
                pass

    def close(self, seconds: float) -> None:
        """
        End, at the latest after a time; the loops have ended.

        bjoern ends when it gets a SIGINT and has no connection. It gets only one: at its
        end it restores the default, by which another would end the process.
        """
        if self._thread is not None:
            # One that is pending would be another.
            while signal.sigtimedwait({signal.SIGINT}, 0):
                pass
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            signal.raise_signal(signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            self._thread.join(seconds)
            # None is a handler that was not installed by Python.
            signal.signal(signal.SIGINT, self._handler or signal.SIG_DFL)
            self._thread = None
        self._listener.close()
        os.close(self._file)


class Front:
    """Serves clients; every method is for the main thread, unless it says otherwise."""

    def __init__(  # noqa: PLR0913 - The parts, by keyword.
        self,
        app: App,
        *,
        addresses: Addresses,
        threads: int,
        timeouts: Timeouts,
        readers: Readers,
        connections: int,
        memory: int,
        commands: CommandFacts | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        """
        Prepare; nothing is accepted before `start`.

        Args:
            app: Defines every answer; its counters are those of the loops, too.
            addresses: Where clients are served; the caller's.
            threads: Loops.
            timeouts: Of connections.
            readers: Read records which are not in memory.
            connections: The most of each protocol; see `connections_max`.
            memory: Bytes that are held for clients; at least the largest body.
            commands: What commands of memcached clients use; None without such clients.
            access_log: Gets a line for each request; None: there is none.
        """
        self._addresses = addresses
        has_http = addresses.http is not None or addresses.admin is not None
        self._application = Application() if has_http else None
        self.loops = Server(
            app,
            TYPES,
            loops=threads,
            served=_served(addresses, connections, timeouts),
            application=self._application.path if self._application else "",
            allow=ALLOW[1],
            log=ConnectionLog(),
            access_log=access_log,
            readers=readers,
            memory=memory,
            transfer=timeouts.transfer,
            commands=commands,
        )
        self._caller: Caller | None = None
        if commands is not None:
            self._caller = Caller(commands.service, self.loops.serve_call)
            commands.stats.flush = self.loops.flush
            of_clients = partial(self.loops.connections, "memcache")
            commands.service.statistics.connections = of_clients
        self._has_ended = threading.Event()
        self._worker = Background("front", self._work, self._has_ended.is_set)

    def change(self, access: Access, cors: CorsHeaders) -> None:
        """
        Answer by other settings, from the next request on; any thread.

        Also takes over `slow_ns` and `ring` of the application, and what the service and
        the log of the commands have. Before the first call, the loops forward each request
        and allow no command.

        Args:
            access: Who may read and write.
            cors: Headers for browsers.
        """
        self.loops.change(
            may_read=access.forms("read"),
            may_write=access.forms("write"),
            headers=header_lines(cors.common),
            origins={
                origin: header_lines(headers)
                for origin, headers in cors.by_origin.items()
            },
        )

    def start(
        self, app: WSGIApplication, pulse: Callable[[], None], seconds: float
    ) -> None:
        """
        Serve clients.

        Args:
            app: Called for the requests that the loops forward.
            pulse: Called in the thread of the front.
            seconds: From one such call to the next.
        """
        self._pulse, self._pulse_seconds, self._pulse_at = pulse, seconds, 0.0
        if self._application is not None:
            self._application.start(app)
        self._worker.start()
        self.loops.start()
        if self._caller is not None:
            self._caller.start()

    def stalled_seconds(self) -> float:
        """Return for how long a loop, all reads, bjoern or a call have not got on."""
        return max(self.loops.stalled_seconds(), self.calls_stalled_seconds())

    def calls_stalled_seconds(self) -> float:
        """Return for how long calls of memcached clients have not got on; any thread."""
        return self._caller.stalled_seconds() if self._caller else 0.0

    @property
    def is_failing(self) -> bool:
        """Whether calls of memcached clients raise, because of a bug; any thread."""
        return self._caller is not None and self._caller.is_failing

    def drain(self, seconds: float) -> int:
        """
        Answer the requests in progress, and end.

        Connections are refused from now on; those to an inherited socket wait for the next
        process.

        Args:
            seconds: The longest time for them, 0 or more.

        Returns:
            How many connections were cut.
        """
        http, is_inherited, *others = self._addresses
        if http is not None and not is_inherited:
            http.shutdown(socket.SHUT_RDWR)
        for other in filter(None, others):
            other.socket.shutdown(socket.SHUT_RDWR)
        return self.loops.drain(seconds)

    def close(self) -> None:
        """Release everything; may be called without `start` and `drain`."""
        self.loops.drain(0)
        self._has_ended.set()
        if self._worker.is_alive():
            self._worker.join()
        if self._caller is not None:
            self._caller.join()
        if self._application is not None:
            self._application.close(_CLOSE_SECONDS)

    def _work(self) -> None:
        """Wait for something that the loops ask for, and do it."""
        self.loops.wait(_WORK_SECONDS)
        self.loops.work()
        now = time.monotonic()
        if now >= self._pulse_at:
            self._pulse_at = now + self._pulse_seconds
            self._pulse()
