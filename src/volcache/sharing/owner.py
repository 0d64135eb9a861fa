"""
The owner of a directory serves other processes on a socket in it.

A loop in C executes what is plain (front/local.h), so that it waits for no thread of
Python. Another thread answers all else, one request after the other.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from volcache.background import Background
from volcache.errors import StoreIOError, VolcacheError
from volcache.front import LocalLoop
from volcache.sharing.wire import (
    VERSION,
    Change,
    Condition,
    Operation,
    Status,
    decode_request,
    encode_reply,
    encode_words,
    socket_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.front import _native as front
    from volcache.hot.tier import HotKeys
    from volcache.store import Record, Store
    from volcache.store._core import _native

_BACKLOG: Final = 1024
_HELD_BYTES: Final = 64 << 20
# For calls under way; idle guests are told at once.
_DRAIN_SECONDS: Final = 10.0
# Between two looks for what is due.
_TURN_SECONDS: Final = 1.0
_HOLDING_SECONDS: Final = 0.02
_CHANGING: Final = frozenset(
    {
        *(Operation.PUT, Operation.DELETE, Operation.HOLD, Operation.PURGE),
        Operation.CLEAR,
    }
)


def make_change(store: Store, change: Change, condition: Condition) -> Record | bool:
    """
    Make a change if its condition holds, whatever has to be done before.

    Returns:
        The record, or whether there was a value to delete. False: the condition does not
        hold.

    Raises:
        StoreError: As by `Store.put`.
    """
    with store.lock:
        if condition.kind:
            holds = store.index.holds(change.key, condition, store.clock.now_ms())
            if holds is None:
                holds = condition.holds(store.stat(change.key))
            if not holds:
                return False
        if change.value is None:
            return store.delete(change.key)
        return store.put_record((change.key, change.value, *change[2:]))


def ask(store: Store, operation: int, key: bytes, value: bytes) -> bytes:
    """
    Do what is not about one key; return what there is to tell.

    Raises:
        StoreError: The disk refused.
    """
    calls: dict[int, Callable[[], bytes | None]] = {
        Operation.PURGE: lambda: store.purge(key),
        Operation.CLEAR: store.flush,
        Operation.SYNC: lambda: _sync(store),
        Operation.SCAN: lambda: _scan(store, value),
        Operation.FACTS: lambda: _facts(store, needs_disk=bool(value)),
    }
    return calls[operation]() or b""


def _sync(store: Store) -> None:
    """Return when everything written up to now survives a power loss."""
    errors = store.stats.sync_errors
    store.sync()
    last = store.stats.last_errors.get("sync")
    if last and store.stats.sync_errors != errors:
        raise StoreIOError(f"a sync failed: {last.text}")


def _scan(store: Store, cursor: bytes) -> bytes:
    """Return where to go on, and some keys."""
    scan = store.key_scan(cursor.decode("ascii"))
    keys = scan.read() if scan.cursor else []
    return encode_words((scan.cursor.encode(), *keys))


def _facts(store: Store, *, needs_disk: bool) -> bytes:
    """Return numbers about a store; those that count, since it was opened."""
    usage, counts = store.usage(volumes=False), store.stats
    facts = {
        "version": VERSION,
        "pid": os.getpid(),
        "now_us": store.clock.now_us(),
        "keys": usage.keys,
        "live_bytes": usage.live,
        "disk_bytes": store.held_bytes() if needs_disk else 0,
        "capacity": usage.volume_num * usage.volume_size,
        "volumes": sum(ring.volumes for ring in usage.rings),
        "volume_size": usage.volume_size,
        "expired_misses": counts.expired_reads,
        "evicted_misses": counts.evicted_reads,
        "evicted": counts.evicted_records,
        "damaged": counts.damaged_records,
        "read_errors": counts.read_errors,
        "write_errors": counts.write_errors,
        "sync_errors": counts.sync_errors,
    }
    return json.dumps(facts).encode()


class Sharing:
    """
    A store that other processes use, from the beginning until `close`.

    They cannot where the file system has no sockets.
    """

    def __init__(
        self, store: Store, directory: str, copies: HotKeys | None = None
    ) -> None:
        """
        Serve.

        Args:
            store: Is open.
            directory: Of it.
            copies: Of its hot tier; what is changed is invalidated there.
        """
        self._store, self._directory, self._copies = store, directory, copies
        self._holder = 0  # a guest, which alone may make changes
        self._gone: list[int] = []
        self._listener: socket.socket | None = None
        self._loop: LocalLoop | None = None
        try:
            self._listener = _listen(directory)
        except OSError:
            return
        try:
            self._loop = LocalLoop(
                store.index,
                cast("_native.Clock", store.clock),
                listening=self._listener.fileno(),
                memory=_HELD_BYTES + 4 * store.usage(volumes=False).volume_size,
                answer=self._answer,
                gone=self._gone.append,
                copies=cast("front.Copies | None", copies),
            )
        except BaseException:
            self._listener.close()
            raise
        self._thread = Background("sharing", self._turn, self._is_over)
        self._thread.start()

    def close(self) -> None:
        """Return when no other process uses the store."""
        if self._loop is None or self._listener is None:
            return
        with suppress(OSError), socket_path(self._directory) as path:
            os.unlink(path)  # noqa: PTH108 - Paths are str here.
        self._listener.close()
        self._loop.drain(_DRAIN_SECONDS)
        self._thread.join()

    def abandon(self) -> None:
        """
        Close what a forked child has inherited.

        Guests must notice the end of the parent while the child lives on.
        """
        if self._loop is None or self._listener is None:
            return
        name = self._listener.getsockname()
        for fd in (int(path.name) for path in list(Path("/proc/self/fd").iterdir())):
            with suppress(OSError):
                if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                    continue
                found = socket.socket(fileno=fd)
                is_ours = found.family == socket.AF_UNIX and found.getsockname() == name
                found.detach()
                if is_ours:
                    os.close(fd)
        self._listener.detach()
        self._loop = None

    # --- The thread ------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._loop is not None and not self._loop.has_ended:
            return False
        self._release()
        return True

    def _turn(self) -> None:
        """Answer a request, and do what is due."""
        if self._loop is not None:
            self._loop.serve_call(_HOLDING_SECONDS if self._holder else _TURN_SECONDS)
        if self._holder in self._gone:
            self._release()
        self._gone.clear()
        if self._store.index.has_deferred:
            self._store.run_deferred()

    def _answer(self, guest: int, data: bytes) -> bytes:
        operation, change, condition = decode_request(data)
        if self._holder not in {0, guest} and operation in _CHANGING:
            return encode_reply(Status.BUSY)
        try:
            return self._execute(guest, Operation(operation), change, condition)
        except VolcacheError as error:
            text = f"{type(error).__name__}\0{error}"
        except (ValueError, MemoryError) as error:
            text = f"StoreError\0{error}"
        return encode_reply(Status.REFUSED, text.encode())

    def _execute(
        self, guest: int, operation: Operation, change: Change, condition: Condition
    ) -> bytes:
        store, key = self._store, change.key
        reads = {Operation.GET: store.get, Operation.PEEK: store.peek}
        if read := (reads | {Operation.STAT: store.stat}).get(operation):
            record = read(key)
            if record is None:
                return encode_reply(Status.NONE)
            return encode_reply(Status.DONE, record.value, record)
        if operation in {Operation.PUT, Operation.DELETE}:
            return self._change(change, condition)
        if operation == Operation.HOLD:
            return self._hold(guest)
        if operation == Operation.CLEAR:
            return self._clear()
        return encode_reply(
            Status.DONE, ask(store, operation, key, change.value or b"")
        )

    def _change(self, change: Change, condition: Condition) -> bytes:
        with self._store.lock:
            made = make_change(self._store, change, condition)
            if self._copies is not None:
                self._copies.invalidate(change.key)
        if isinstance(made, bool):
            return encode_reply(Status.DONE if made else Status.NONE)
        return encode_reply(Status.DONE, b"", made)

    def _clear(self) -> bytes:
        with self._store.lock:
            self._store.flush()
            if self._copies is not None:
                self._copies.begin_epoch()
        return encode_reply(Status.DONE)

    def _hold(self, guest: int) -> bytes:
        self._store.lock.__enter__()
        self._holder = guest
        return encode_reply(Status.DONE)

    def _release(self) -> None:
        if self._holder:
            self._holder = 0
            self._store.lock.__exit__()


def _listen(directory: str) -> socket.socket:
    """
    Return a socket that listens; only those may connect who may write to the directory.

    Raises:
        OSError: The file system has no sockets, or cannot be written.
    """
    found = Path(directory).stat()
    listener = socket.socket(socket.AF_UNIX)
    try:
        with socket_path(directory) as path:
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - Paths are str here.
            listener.bind(path)
            # No process can connect before it listens.
            with suppress(PermissionError):
                os.chown(path, -1, found.st_gid)
            # With the sticky bit, others may not replace its files.
            writers = 0o200 if found.st_mode & stat.S_ISVTX else 0o222
            os.chmod(path, found.st_mode & writers)  # noqa: PTH101
        listener.setblocking(False)  # noqa: FBT003 - The library's.
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
