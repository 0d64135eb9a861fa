"""
One opening of a directory: the store, its syncs, and how both come to an end.

`close` of the store must not meet another call: a descriptor that is closed may be opened
again, for another file. So every call is noted while it lasts, and `close` waits for those
under way; later calls are refused. Notes are items of a list, whose `append` and `pop` are
atomic: that costs a twentieth of a microsecond.

A handler of a signal, such as that of Ctrl-C, may raise an exception between any two steps
of a change in the main thread. What is in memory may then not be what is on the disk, as
when a process dies. So the store is treated in the same way: before the next change its
files are closed as they are, and it is opened again.

The end can come in five ways:
    - `close`, by the user.
    - The interpreter exits: `close` is called.
    - The last reference goes. The garbage collector may run in any thread, also in the one
      that syncs, within a lock of the store. So that thread closes the store, when it is
      done; without it, there is no other thread in the store.
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
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from volcache.errors import (
    ForkedProcessError,
    StoreClosedError,
    StoreIOError,
    VolcacheError,
)

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
    " a server (docs/EMBEDDED.md)"
)

_sessions: Final = weakref.WeakSet["StoreSession"]()
# Those that close their store; the interpreter waits for them.
_ending: Final = set["_Syncer"]()


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
        self,
        open_store: Callable[[], Store],
        path: str,
        place: str,
        sync_interval: float | None,
    ) -> None:
        """
        Open the store.

        Args:
            open_store: Opens it; is called again after an interrupted change.
            path: Of its directory.
            place: The same, absolute and without symbolic links.
            sync_interval: Seconds between two syncs; None: there are none.

        Raises:
            StoreError: It cannot be opened.
        """
        self.path = path
        self.place = place
        self.lock = threading.RLock()
        self.calls: list[None] = []
        self.end = ""
        self._open_store = open_store
        self._opening = threading.Lock()
        self._sync_interval = sync_interval
        self._is_changing = False  # stays true if the change is interrupted
        self._is_doubtful = False  # a sync was interrupted
        self._syncer: _Syncer | None = None
        self.store = open_store()
        self._start_syncer()
        _sessions.add(self)

    def _start_syncer(self) -> None:
        if self._sync_interval is not None:
            self._syncer = _Syncer(self.store, self._sync_interval)

    def change(self, call: Callable[[Store], T]) -> T:
        """
        Return what a call returns that changes the store.

        Raises:
            StoreClosedError: See `refuse`. And what the call raises.
        """
        # Before as well: in a forked child, another thread may have had the lock.
        if self.end:
            self.wait()
        with self.lock:
            if self.end or self._is_changing or self._is_doubtful:
                self._prepare()
            try:
                self._is_changing = True
                result = call(self.store)
                self._is_changing = False
            except VolcacheError:  # The store has decided what is in memory then.
                self._is_changing = False
                raise
        return result

    def wait(self) -> None:
        """
        Return when calls may begin.

        Raises:
            StoreClosedError: They may not: see `refuse`.
        """
        if self.end not in {"", _OPENING}:
            self.refuse()
        with self.lock:
            self._prepare()

    def refuse(self) -> NoReturn:
        """
        Raise the error of a session that has ended.

        Raises:
            StoreClosedError: It was closed, or could not be opened again.
            ForkedProcessError: This process is a child of the one that has opened it.
        """
        kind = ForkedProcessError if self.end is _FORKED else StoreClosedError
        raise kind(f"cache {self.path!r} {self.end}")

    def _prepare(self) -> None:
        """Open the store again if a change was interrupted; the lock is held."""
        if self.end not in {"", _OPENING}:
            self.refuse()
        if self.end or self._is_changing or self._is_doubtful:
            self.end = _OPENING  # Reads wait for the lock.
            _uninterrupted(self._open_again)

    def _open_again(self) -> None:
        """
        Open the store again, unless another thread has; see `_prepare`.

        Raises:
            StoreError: It cannot be opened; calls are refused from now on.
        """
        with self._opening:
            if self.end != _OPENING:
                return
            self._drain()
            self.store.drop()
            try:
                self.store = self._open_store()
            except VolcacheError as error:
                self.end = (
                    f"could not be opened again after an interrupted write: {error}"
                )
                raise
            self._start_syncer()
            self._is_changing = self._is_doubtful = False
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
            StoreIOError: The disk refused; what was written since the last sync may be
                lost by a power loss.
        """
        store = self.store
        errors = store.stats.sync_errors
        try:
            store.sync()
        except BaseException:
            self._is_doubtful = True
            raise
        if store.stats.sync_errors != errors:
            last = store.stats.last_errors.get("sync")
            raise StoreIOError(
                f"cache {self.path!r}: a sync failed: {last.text if last else 'unknown'}"
            )

    def close(self, *, at_exit: bool = False) -> None:
        """
        Return when the store is closed; again, or in a forked child, do nothing.

        Args:
            at_exit: The interpreter exits: a thread can perhaps not be started.

        Raises:
            RuntimeError: This thread is within `exclusive`.
        """
        if self.end is _FORKED:
            return
        if self.lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            raise RuntimeError("close() within exclusive(): leave its block before")
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

    def _close(self) -> None:
        with self._opening:
            self._drain()
            self._ending()()

    def _ending(self) -> Callable[[], None]:
        """Return what closes the store as it is; this object is not needed for it."""
        is_whole = not (self._is_changing or self._is_doubtful)
        return self.store.close if is_whole else self.store.drop

    def __del__(self) -> None:
        # No call can come. An object without an end is one whose `__init__` has failed.
        if getattr(self, "end", _CLOSED) or not hasattr(self, "store"):
            return
        self.end = _CLOSED
        if self._syncer is None:
            self._ending()()
        else:
            self._syncer.stop_and(self._ending())

    def mark_forked(self) -> None:
        """Refuse every call, in the child."""
        if not self.end:
            self.end = _FORKED
            self.store.abandon()


class _Syncer:
    """A thread that syncs a store."""

    def __init__(self, store: Store, interval: float) -> None:
        self._store = store
        self._interval = interval
        self._is_stopped = False
        self._last: Callable[[], None] | None = None
        self._thread = threading.Thread(
            target=self._run, name="volcache-sync", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        self._store.wait_to_sync(self._interval)
        while not self._is_stopped:
            self._store.sync()
            self._store.wait_to_sync(self._interval)
        if self._last is not None:
            self._last()
            _ending.discard(self)

    def stop(self) -> None:
        """Return when the thread has ended."""
        self._is_stopped = True
        self._store.want_sync()
        self._thread.join()

    def stop_and(self, last: Callable[[], None]) -> None:
        """Let the thread end soon, with a call."""
        self._last = last
        _ending.add(self)
        self._is_stopped = True
        self._store.want_sync()


def open_session(
    open_store: Callable[[], Store],
    path: str,
    place: str,
    sync_interval: float | None,
) -> StoreSession:
    """Return a session; see there. If this is interrupted, the store is closed again."""
    return _uninterrupted(lambda: StoreSession(open_store, path, place, sync_interval))


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


def is_open(place: str) -> bool:
    """Return whether this process has a directory open; absolute, without links."""
    return any(session.place == place and not session.end for session in _sessions)


def _close_all() -> None:
    for session in list(_sessions):
        session.close(at_exit=True)
    for syncer in list(_ending):
        syncer.stop()


def _mark_sessions_forked() -> None:
    _ending.clear()
    for session in list(_sessions):
        session.mark_forked()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_mark_sessions_forked)
