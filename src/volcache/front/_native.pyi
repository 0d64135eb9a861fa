"""The contracts of the native front."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from socket import socket
from typing import Protocol

from volcache.memcache.service import Service
from volcache.monitoring.commands import CommandStats
from volcache.slow_log import CommandLog
from volcache.store._core._native import Clock, Index
from volcache.store.format import RecordFields

class Parts:
    """Some keys, as `volcache.ring` describes them; without bounds, all keys."""

    def __init__(self, bounds: array[int] | tuple[()] = ()) -> None: ...
    def have(self, path: bytes) -> bool:
        """Return whether they have the key of a path, which begins with a slash."""

class AccessLog:
    """Lines of the access log, see log.h, until they are taken."""

    def __init__(self, *, as_json: bool, bytes_max: int = ...) -> None:
        """Have no lines; those beyond so many bytes are dropped."""

    dropped: int  # Lines, until the last call of `take`.

    def take(self) -> bytes:
        """Return the lines since the last call."""

class Copies:
    """
    The keys of the hot tier: which are promoted, and under which names; see copies.h.

    Any thread may call its methods, which wait for nothing.
    """

    def __init__(
        self,
        *,
        reads: int,
        seconds: float,
        keys: int = 262_144,
        first: int = 65_536,
        counted: int = 65_536,
    ) -> None:
        """
        Begin an epoch without keys.

        Args:
            reads: That make a key hot, at least 1.
            seconds: The longest time from the first of these reads to the last.
            keys: That have a version. Then a new epoch begins, and hot keys are promoted
                again within a few reads. As many items of 4 KiB fill 1 GiB.
            first: That are looked up in memcached before the disk.
            counted: Whose reads are counted.
        """

    first: int  # keys that are looked up in memcached before the disk
    invalidations: int  # promoted keys that were put or deleted, since the start

    def may_hold(self, key: bytes) -> bool:
        """Whether memcached may have a valid copy of a key; False is certain."""

    def is_first(self, key: bytes) -> bool:
        """Whether memcached is asked for a key before the disk is read."""

    def ask_first(self, key: bytes, is_first: bool) -> None:
        """Change that, unless the key is not promoted."""

    def name(self, key: bytes) -> bytes:
        """
        Return the name of a key's item at its present version: 16 bytes.

        While the key is not promoted, no item has this name.
        """

    def promote(self, key: bytes) -> bytes:
        """
        Register a key as promoted; to be called before its item is sent.

        Returns:
            The name of the item. If the key is invalidated from now on, also before the
            item is sent, no call looks up this name again.
        """

    def invalidate(self, key: bytes) -> bool:
        """Increase the version of a promoted key; return whether it was promoted."""

    def count_read(self, key: bytes, now_ms: int | None = None) -> bool:
        """Count a read from the disk; return whether it makes the key hot."""

    def begin_epoch(self, epoch: bytes | None = None) -> None:
        """Make every copy unreachable and forget all reads; None: at random."""

    def add(self, hashed: int, version: int) -> bool:
        """Add what an earlier process had in this epoch; False: there is no room."""

    def entries(self) -> tuple[bytes, list[tuple[int, int]]]:
        """Return the epoch, and hash and version of each key; see HOT.txt."""

class Readers:
    """Threads that read records which are not in memory, for all that serve clients."""

    def __init__(self, index: object, *, threads: int) -> None:
        """
        Start 1 to 64 threads, which read records of the index of a store.

        Raises:
            MemoryError: There is no memory, or no thread can be started.
        """

    def close(self) -> None:
        """Stop the threads: after everything that uses them, before the store."""

class HotClient:
    """
    Asks memcached for items, and sends them; see hot_client.h.

    An item is named by 16 bytes, with which it begins. A result is "found", "absent",
    "stored", "not_stored", "refused" (an error of a healthy server), or the kind of a
    failure, after which the connection must not be used: "timeout", "closed",
    "protocol", "other".
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        timeout: float,
        record_max: int,
        loops: int = 1,
    ) -> None:
        """
        Have no connections.

        Args:
            addresses: Of the servers, at least one.
            timeout: Of one call, in seconds.
            record_max: Bytes of a record, at most.
            loops: That have connections, 1 to 16.
        """

    count: int  # of loops

    def server_of(self, name: bytes) -> int:
        """Return the number of the server that an item belongs to."""

    def get_command(self, name: bytes) -> bytes:
        """Return the command that asks for an item."""

    def set_command(self, name: bytes, item: bytes, expires_s: int) -> bytes:
        """Return the command that stores an item; seconds since the epoch, or 0."""

    def parse(self, received: bytes, name: bytes | None) -> tuple[str, bytes | None]:
        """
        Return the result in a reply, and the item; empty: it is not whole.

        Args:
            received: All bytes since the command.
            name: Of the item that was asked for; None: one was sent.
        """

    def give(self, server: int, fds: Sequence[int]) -> None:
        """Let each loop use a copy of a socket, in place of the one it has."""

    def failure(self, server: int) -> str:
        """Return why the connection of a loop has failed since; empty: none has."""

class ServerLog(Protocol):
    """What the loops tell; its methods must not raise."""

    def figures(self, now: Mapping[str, Mapping[str, int]], /) -> bool:
        """Something has become of connections; return whether all of it is logged."""

class Server:
    """The loops that serve clients; see server.h and http.h. Any thread may call it."""

    def __init__(
        self,
        app: object,
        types: Mapping[bytes, str],
        *,
        loops: int,
        served: Mapping[str, tuple[int, int, float, float]],
        application: str,
        allow: str,
        log: ServerLog,
        access_log: AccessLog | None,
        readers: Readers,
        memory: int,
        transfer: float,
        commands: CommandFacts | None,
    ) -> None:
        """
        Prepare; nothing is accepted before `start`.

        Args:
            app: An `App`: its counters and limits are those of the loops.
            types: Content types by suffix, in lower case with its dot.
            loops: Threads, 1 to 16.
            served: By name, "http", "memcache" and "admin": the operator's address, all of
                whose requests are forwarded. Descriptor of a socket that does not block,
                the caller's; the most connections; seconds for the head of a request, and
                without a request, 0 = no limit.
            application: Path of the socket of bjoern; empty: there is none.
            allow: The methods, for a 405.
            log: Is told what is to be logged.
            access_log: Gets a line for each request; None: there is none.
            readers: Read records that are not in memory.
            memory: Bytes that are held for clients, at most.
            transfer: Seconds without a byte of a body, a command or an answer; 0 = no
                limit.
            commands: What commands of memcached clients use; None without such clients.

        Raises:
            MemoryError: There is no memory, or no descriptor.
        """

    def start(self) -> None:
        """
        Start the threads.

        Raises:
            MemoryError: There are none.
        """

    def change(
        self,
        *,
        may_read: Sequence[bytes],
        may_write: Sequence[bytes],
        headers: str,
        origins: Mapping[str, str],
    ) -> None:
        """
        Answer by these, from now on.

        Also by `slow_ns` and `ring` of the application, the tokens of the service and
        `threshold_ns` of the log of commands. Before the first call, every request is
        forwarded, and no command is allowed.

        Args:
            may_read: Tokens for reading, any of which is right, at most 4; without one,
                everyone may.
            may_write: Likewise, for writing.
            headers: More of them for the answers to requests for a key: CR LF, then one
                header, for each; ASCII, less than 1 KiB.
            origins: What replaces them in answers to pages, by origin.
        """

    def wait(self, seconds: float) -> None:
        """Wait until there is something for `work`, at most for a time."""

    def work(self) -> None:
        """Do what the loops ask for: `flush`, promotions, what is due in the store."""

    def flush(self) -> None:
        """Add to the counters in Python, and log, what was counted since the last time."""

    def set_ready(self) -> None:
        """Note whether the disk can be read: if not, no key is known to be absent."""

    def serve_call(self, timeout: float) -> bool:
        """
        Wait for a command that may take long, and execute it; for one thread.

        Args:
            timeout: Seconds to wait; below 0: no limit.

        Returns:
            Whether the loops have ended: there will be none.
        """

    def figures(self, name: str) -> dict[str, int]:
        """Return the figures of connections of a protocol, and of reads and memory."""

    def connections(self, name: str) -> list[tuple[int, str, bool, float]]:
        """
        Return the connections of a protocol that are open; for one thread.

        Returns:
            Of each its descriptor, the address of its client, whether it is idle, and for
            how many seconds it has executed nothing.
        """

    def drain(self, seconds: float) -> int:
        """Answer the requests in progress and end the threads; return how many were cut."""

    def stalled_seconds(self) -> float:
        """Return for how long a loop, all reads, or a call have made no progress."""

class CommandFacts:
    """What commands of the memcached protocol use, and what Python answers and learns."""

    service: Service
    stats: CommandStats
    log: CommandLog

    def __init__(
        self,
        service: Service,
        stats: CommandStats,
        log: CommandLog,
        sample: Callable[[bytes], None],
        access_log: AccessLog | None = None,
    ) -> None:
        """
        Use the cache of a service, whose store is open, and its limits.

        Args:
            service: Answers what commands ask.
            stats: Is added to.
            log: Of slow commands.
            sample: Gets one key in 64 of those that were read.
            access_log: Gets a line for each command; None: there is none.
        """

class LocalLoop:
    """
    The loop that serves other processes with the same directory; see local.h.

    Attributes:
        has_ended: Whether `serve_call` will find no call.
    """

    has_ended: bool

    def __init__(
        self,
        index: Index,
        clock: Clock,
        *,
        listening: int,
        memory: int,
        answer: Callable[[int, bytes], bytes],
        gone: Callable[[int], None],
        copies: Copies | None = None,
    ) -> None:
        """
        Serve, in a thread.

        Args:
            index: Of the store.
            clock: Of the store.
            listening: The descriptor of a socket.
            memory: Bytes that may be held for the guests.
            answer: Returns the reply to a request of the guest with a number, by the
                thread that calls `serve_call`.
            gone: Called when a guest with this number has gone that had asked to hold;
                must not raise, and wait for nothing.
            copies: What is changed is invalidated there.

        Raises:
            MemoryError: There is none, or there are no descriptors or threads.
        """

    def serve_call(self, timeout: float) -> None:
        """
        Wait for a request that is to be answered, at most for a time, and answer it.

        Raises:
            Exception: What `answer` has raised; the connection is closed.
        """

    def drain(self, seconds: float) -> None:
        """Return when all connections are closed, after this time at the latest."""

class LocalClient:
    """
    The connections of a guest; see local.h.

    Attributes:
        idle: Those that no thread uses.
    """

    idle: list[socket]

    def __init__(
        self, clock: Clock, held: Mapping[int, object], lost: Callable[..., Exception]
    ) -> None:
        """
        Have none yet.

        Args:
            clock: Of the store.
            held: Not empty while a thread needs a connection of its own for its changes.
            lost: Is made, with `is_sent` and `since_us`, and raised if there is no reply.
        """

    def exchange(
        self,
        connection: socket,
        operation: int,
        change: tuple[bytes, bytes | None, bytes, bytes, bytes, int, int, int],
        condition: tuple[int, int, int],
    ) -> tuple[int, RecordFields, int]:
        """
        Return the status of a reply, the fields in it, and the descriptor with it or -1.

        The connection is closed if it cannot be used again.
        """

    def put_value(
        self, key: str | bytes, value: bytes, content_type: bytes
    ) -> str | None:
        """Put a value that does not expire; as `Index.put_value`."""
