"""
The two ways to a store: this process owns it, or is a guest of the process that does.

Both have the same methods. In a `Guest`, a call is an exchange on a connection that no
other thread uses meanwhile; in an `Owner`, it is made here.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from _thread import start_new_thread
from contextlib import contextmanager, suppress
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Final, TypeVar, cast

from volcache.embedded.errors import refused
from volcache.errors import StoreLockedError
from volcache.front import LocalClient
from volcache.sharing.owner import Sharing, ask, make_change
from volcache.sharing.wire import (
    ALWAYS,
    VERSION,
    Change,
    Condition,
    Operation,
    Status,
    socket_path,
)
from volcache.store import PeriodicSync
from volcache.store.directory import DATA
from volcache.store.format import Record, new_record
from volcache.store.native import SharedReader, make_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.store import Store
    from volcache.store._core import _native
    from volcache.store.format import RecordFields

T = TypeVar("T")

# Between two questions whether another process still holds.
_BUSY_SECONDS: Final = 0.002


class LinkLostError(Exception):
    """
    The owner of the directory has ended.

    Attributes:
        is_sent: Whether it may have done what it was asked for.
        since_us: If so: when that was, by the clock of the store.
    """

    def __init__(self, *, is_sent: bool, since_us: int = 0) -> None:
        super().__init__()
        self.is_sent: Final = is_sent
        self.since_us: Final = since_us


class Owner:
    """A store that this process has open, and shares."""

    def __init__(
        self, place: str, open_store: Callable[[str], Store], interval: float | None
    ) -> None:
        """
        Open it.

        Args:
            place: The directory.
            open_store: Opens it.
            interval: Seconds between two syncs; None: there are none.

        Raises:
            StoreError: It cannot be opened.
        """
        self.store = store = open_store(place)
        self._index, self.clock = store.index, store.clock
        self.get, self.peek, self.stat = store.get, store.peek, store.stat
        self.value, self.put_value = store.index.value, store.index.put_value
        try:
            self._syncer = None if interval is None else PeriodicSync(store, interval)
            self._sharing = Sharing(store, place)
        except BaseException:
            store.close()
            raise

    def change(self, change: Change, condition: Condition = ALWAYS) -> Record | bool:
        """Make a change; as `make_change`."""
        index = self._index
        fields: RecordFields | bool | None
        try:
            if condition is ALWAYS and change[1] is not None:
                fields = index.put(change[0], change[1], *change[2:])
            else:
                fields = index.change(*change, condition, self.clock.now_ms())
        except (OSError, MemoryError):  # It is found out below what to do.
            fields = None
        if fields is None:
            return uninterrupted(
                partial(make_change, self.store, change, condition), self.store
            )
        if index.has_deferred:
            uninterrupted(self.store.run_deferred, self.store)
        if isinstance(fields, bool):
            return fields
        record: Record = new_record(Record, fields)
        return record

    def ask(self, operation: Operation, key: bytes = b"", value: bytes = b"") -> bytes:
        """Do what is not about one key; as the function of this name."""
        return uninterrupted(
            partial(ask, self.store, operation, key, value), self.store
        )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Return a context in which no other thread and process changes the store; once."""
        with self.store.lock:
            yield

    def close(self) -> None:
        """Close it; no call of this process is under way."""
        if self._syncer is not None:
            self._syncer.stop()
        # Guests are still served while the disk writes what there is.
        self.store.sync()
        self._sharing.close()
        self.store.close()

    def abandon(self) -> None:
        """In a forked child: give up what it has inherited; nothing is written."""
        self._sharing.abandon()
        self.store.abandon()


class Guest:
    """A store that another process has open."""

    def __init__(self, place: str) -> None:
        """
        Connect to its owner.

        Raises:
            LinkLostError: There is none that shares it.
            StoreLockedError: It has another version.
        """
        self._place = place
        # Connections that hold, by the threads that use them.
        self._held: dict[int, socket.socket] = {}
        self._reader: SharedReader | None = None
        self.clock = make_clock()
        self._client = LocalClient(
            cast("_native.Clock", self.clock), self._held, LinkLostError
        )
        facts = json.loads(self.ask(Operation.FACTS))
        if facts["version"] != VERSION:
            self.close()
            raise StoreLockedError(
                f"directory {place!r} is in use by a process with another version of"
                " volcache: end that process, or use the same version"
            )
        self.clock.advance_to(facts["now_us"])
        self._reader = self._share()
        self.get = partial(self._read, Operation.GET)
        self.peek = partial(self._read, Operation.PEEK)
        self.stat = partial(self._read, Operation.STAT)
        self.value = self._reader.value if self._reader else None
        self.put_value = self._client.put_value

    def _share(self) -> SharedReader | None:
        """Return what reads without the owner; None: that is not possible."""
        fd = self._exchange(Operation.SHARE, Change(b"", b""))[2]
        if fd < 0:
            return None
        try:
            return SharedReader(
                cast("_native.Clock", self.clock), fd, f"{self._place}/{DATA}"
            )
        except (OSError, MemoryError):
            return None
        finally:
            os.close(fd)

    # --- Calls ---------------------------------------------------------------------

    def _read(self, operation: Operation, key: bytes) -> Record | None:
        reader = self._reader
        if reader is not None:
            is_get = operation == Operation.GET
            fields = reader.read(key, operation == Operation.STAT, is_get)
            if fields is True:
                raise LinkLostError(is_sent=False)
            if reader.is_full:
                self.ask(Operation.READS, b"", reader.take())
            if fields is None:
                return None
            if fields is not False:
                found: Record = new_record(Record, fields)
                return found
        status, record, _ = self._exchange(operation, Change(key, b""))
        return record if status == Status.DONE else None

    def change(self, change: Change, condition: Condition = ALWAYS) -> Record | bool:
        """Make a change; as `make_change`."""
        value = change.value
        operation = Operation.DELETE if value is None else Operation.PUT
        status, record, _ = self._exchange(operation, change, condition)
        if value is None or status != Status.DONE:
            return status == Status.DONE
        return record._replace(value=value, content_type=change.content_type)

    def ask(self, operation: Operation, key: bytes = b"", value: bytes = b"") -> bytes:
        """Do what is not about one key; as `Owner.ask`."""
        return self._exchange(operation, Change(key, value))[1].value

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Likewise."""
        thread = threading.get_ident()
        # Its end is a release.
        with self._connection() as connection:
            self._held[thread] = connection
            try:
                self.ask(Operation.HOLD)
                yield
            finally:
                del self._held[thread]

    def close(self) -> None:
        """Close the connections."""
        self._reader = None  # Another thread may be reading.
        while self._client.idle:
            self._client.idle.pop().close()

    abandon = close

    # --- Exchanges -----------------------------------------------------------------

    def _connection(self) -> socket.socket:
        """
        Return a connection that no other thread uses.

        Raises:
            LinkLostError: There is no owner.
        """
        with suppress(IndexError):
            return self._client.idle.pop()
        connection = socket.socket(socket.AF_UNIX)
        try:
            with socket_path(self._place) as path:
                connection.connect(path)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise LinkLostError(is_sent=False) from error
            raise
        return connection

    def _exchange(
        self, operation: Operation, change: Change, condition: Condition = ALWAYS
    ) -> tuple[int, Record, int]:
        """
        Return the reply to a request, and a descriptor that came with it or -1.

        Raises:
            LinkLostError: There is none.
            CacheError: The owner refuses.
        """
        while True:
            held = self._held.get(threading.get_ident())
            connection = held or self._connection()
            status, fields, passed = self._client.exchange(
                connection, operation, change, condition
            )
            if not held and connection.fileno() >= 0:
                self._client.idle.append(connection)
            record: Record = new_record(Record, fields)
            if status == Status.GONE:
                raise LinkLostError(is_sent=False)
            if status == Status.REFUSED:
                raise refused(*record.value.decode().split("\0", 1))
            if status != Status.BUSY:
                return status, record, passed
            sleep(_BUSY_SECONDS)


def uninterrupted(call: Callable[[], T], store: Store | None = None) -> T:
    """
    Return what a call returns, in whose middle no handler of a signal raises.

    In the main thread, another one makes the call. An exception that comes meanwhile is
    raised at its end; a second one at once.

    Args:
        call: It changes the store.
        store: The other thread has its lock meanwhile, if this one has it.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Lock()
    done.acquire()
    lock = store.lock if store is not None and store.lock.is_mine else None

    def run() -> None:
        before = lock.lend() if lock else 0
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - It is raised below.
            errors.append(error)
        finally:
            if lock:
                lock.lend(before)
            done.release()

    # Not `Thread`, whose `start` and `join` are in Python and may be ended in the middle.
    start_new_thread(run, ())
    try:
        done.acquire()
    except BaseException:
        if not (results or errors):
            done.acquire()
        raise
    if errors:
        raise errors[0]
    return results[0]
