"""
One opening of a directory: the store, its syncs, and how both come to an end.

`close` of the store must not meet another call: a descriptor that is closed may be opened
again, for another file. So every call is recorded while it lasts, and `close` waits for
those under way; later calls are refused. They are recorded as items of a list, whose
`append` and `pop` are atomic: that costs a twentieth of a microsecond.

A handler of a signal, such as that of Ctrl-C, may raise an exception between any two steps
of a change in the main thread. What is in memory may then not be what is on the disk, as
when a process dies. So the store is treated in the same way: before the next change its
files are closed as they are, and it is opened again.

The end can come in five ways:
    - `close`, by the user.
    - The interpreter exits: `close` is called.
    - The last reference goes. The garbage collector may run in any thread, also in the one
      that syncs, within a lock of the store. So another thread closes the store.
    - The process forks. In the child nothing is written: the locks of the directory are
      given up there, so that they end with the parent, and every call is refused.
    - The process dies: see `Store`.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from _thread import start_new_thread
from typing import TYPE_CHECKING, Final, TypeVar

from volcache.embedded.errors import StorageLockedError, translated
from volcache.errors import VolcacheError
from volcache.store import PeriodicSync
from volcache_client.errors import CacheError, ClientUsageError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store import Store

T = TypeVar("T")

_POLL_SECONDS: Final = 0.001
_EXIT_SECONDS: Final = 5.0
_CLOSED: Final = "is closed"
_OPENING: Final = "is being opened again"
_FORKED: Final = (
    "was opened before this process was forked, and can be used in the parent only: one"
    " process at a time can have a directory open. Open it after the fork, or share it by"
    " a server"
)

_sessions: Final = weakref.WeakSet["StoreSession"]()
# Held by the threads that close a store without references; the interpreter waits for them.
_ending: Final = set[threading.Lock]()


class StoreSession:
    """
    A store that is open.

    Attributes:
        store: The store; another object after it was opened again.
        path: Of its directory, as it was given.
        place: The same, absolute and without symbolic links.
        lock: Held by whatever changes the store.
        calls: One item for each call under way that does not hold the lock.
        end: Why no call may begin; empty: it may.
    """

    def __init__(
        self, path: str, open_store: Callable[[str], Store], interval: float | None
    ) -> None:
        """
        Open the store.

        Args:
            path: Of its directory.
            open_store: Opens it; is called again after an interrupted change.
            interval: Seconds between two syncs; None: there are none.

        Raises:
            StorageLockedError: It is open in this process.
            StoreError: It cannot be opened.
        """
        self.path, self.place = path, os.path.realpath(path)
        self.lock = threading.RLock()
        self.calls: list[None] = []
        self.end = ""
        self._open_store, self._interval = open_store, interval
        self._opening = threading.Lock()
        self._is_changing = False  # stays true if the change is interrupted
        self._syncer: PeriodicSync | None = None
        if any(one.place == self.place and not one.end for one in _sessions):
            raise StorageLockedError(
                f"directory {path!r} is open in this process already: share that object"
                " between the threads, or close it first"
            )
        self._open()
        _sessions.add(self)

    def _open(self) -> None:
        self.store = self._open_store(self.place)
        if self._interval is not None:
            self._syncer = PeriodicSync(self.store, self._interval)

    def read(self, call: Callable[[Store], T]) -> T:
        """Return what a call returns that does not change the store."""
        while True:
            try:
                # Within, as Ctrl-C may end a method after any call.
                self.calls.append(None)
                if not self.end:
                    return call(self.store)
            except VolcacheError as error:
                raise translated(error) from error
            finally:
                self.calls.pop()
            self.wait()

    def change(self, call: Callable[[Store], T]) -> T:
        """Return what a call returns that changes the store."""
        # Before as well: in a forked child, another thread may have had the lock.
        if self.end:
            self.wait()
        with self.lock:
            if self.end or self._is_changing:
                self.wait()
            try:
                self._is_changing = True
                result = call(self.store)
                self._is_changing = False
            except CacheError:  # Of the call, before the store has changed anything.
                self._is_changing = False
                raise
            except (
                VolcacheError
            ) as error:  # The store has decided what is in memory then.
                self._is_changing = False
                raise translated(error) from error
        return result

    def wait(self) -> None:
        """
        Return when calls may begin; the store is opened again if a change was interrupted.

        Raises:
            ClientUsageError: They may not, as the session has ended.
            StorageError: The store cannot be opened; calls are refused from now on.
        """
        self._refuse_ended()
        with self.lock:
            self._refuse_ended()
            if self.end or self._is_changing:
                self.end = _OPENING  # Reads wait for the lock.
                _uninterrupted(self._open_again)

    def _refuse_ended(self) -> None:
        if self.end not in {"", _OPENING}:
            raise ClientUsageError(f"cache {self.path!r} {self.end}")

    def _open_again(self) -> None:
        """Open the store again, unless another thread has; see `wait`."""
        with self._opening:
            if self.end != _OPENING:
                return
            self._drain()
            self.store.drop()
            try:
                self._open()
            except VolcacheError as error:
                self.end = (
                    f"could not be opened again after an interrupted write: {error}"
                )
                raise translated(error) from error
            self._is_changing = False
            self.end = ""

    def _drain(self) -> None:
        """Return when no other thread uses the store; `end` is set."""
        while self.calls:
            time.sleep(_POLL_SECONDS)
        if self._syncer is not None:
            self._syncer.stop()

    def sync(self) -> None:
        """
        Return when everything written up to now survives a power loss.

        Raises:
            StorageError: The disk refused; what was written since the last sync may be
                lost by a power loss.
        """

        def sync(store: Store) -> str:
            errors = store.stats.sync_errors
            store.sync()
            last = store.stats.last_errors.get("sync")
            is_refused = store.stats.sync_errors != errors
            return last.text if last and is_refused else ""

        if refused := self.change(sync):
            raise StorageError(f"cache {self.path!r}: a sync failed: {refused}")

    def close(self, *, at_exit: bool = False) -> None:
        """
        Return when the store is closed; again, or in a forked child, do nothing.

        Args:
            at_exit: The interpreter exits: a thread can perhaps not be started.

        Raises:
            ClientUsageError: This thread is within `exclusive`, or its handler of a signal
                within a change.
        """
        if self.end is _FORKED:
            return
        if self._is_mine():
            raise ClientUsageError("close() within exclusive(): leave its block before")
        # A thread that the interpreter does not wait for may hold it for ever.
        if not self.lock.acquire(timeout=_EXIT_SECONDS if at_exit else -1):
            return
        try:
            if self.end not in {"", _OPENING}:
                return
            self.end = _CLOSED
            if at_exit:
                self._close()
            else:
                _uninterrupted(self._close)
        finally:
            self.lock.release()

    def _is_mine(self) -> bool:
        """Whether this thread holds the lock: only then a condition of it may notify."""
        try:
            threading.Condition(self.lock).notify()
        except RuntimeError:
            return False
        return True

    def _close(self) -> None:
        with self._opening:
            self._drain()
            self._ending()()

    def _ending(self) -> Callable[[], None]:
        """Return what closes the store as it is; this object is not needed for it."""
        return self.store.drop if self._is_changing else self.store.close

    def __del__(self) -> None:
        # No call can come. An object without an end is one whose `__init__` has failed.
        if getattr(self, "end", _CLOSED) or not hasattr(self, "store"):
            return
        self.end = _CLOSED
        done = threading.Lock()
        done.acquire()
        # Without a thread, the directory stays locked until the process ends.
        start_new_thread(_end, (self._syncer, self._ending(), done))
        _ending.add(done)

    def mark_forked(self) -> None:
        """Refuse every call, in the child."""
        if not self.end:
            self.end = _FORKED
            self.store.abandon()


def _end(
    syncer: PeriodicSync | None, close: Callable[[], None], done: threading.Lock
) -> None:
    """Close a store to which there is no reference."""
    try:
        if syncer is not None:
            syncer.stop()
        close()
    finally:
        _ending.discard(done)
        done.release()


def _uninterrupted(call: Callable[[], T]) -> T:
    """
    Return what a call returns, in whose middle no handler of a signal raises.

    In the main thread, such an exception ends this, and the call is completed all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - It is raised below.
            errors.append(error)
        finally:
            done.release()

    # Not `Thread`, whose `start` and `join` are in Python and may be ended in the middle.
    start_new_thread(run, ())
    done.acquire()
    if errors:
        raise errors[0]
    return results[0]


def open_session(
    path: str, open_store: Callable[[str], Store], interval: float | None
) -> StoreSession:
    """
    Return a session; see there. If this is interrupted, the store is closed again.

    Raises:
        StorageLockedError: The directory is open, in this process or another one.
        StorageError: It cannot be opened.
    """
    try:
        return _uninterrupted(lambda: StoreSession(path, open_store, interval))
    except VolcacheError as error:
        raise translated(error) from error


def _close_all() -> None:
    for session in list(_sessions):
        session.close(at_exit=True)
    for done in list(_ending):
        done.acquire()


def _mark_sessions_forked() -> None:
    _ending.clear()
    for session in list(_sessions):
        session.mark_forked()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_mark_sessions_forked)
