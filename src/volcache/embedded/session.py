"""
One opening of a directory, from the first call to the last.

The first process that opens a directory owns it; the others are its guests (`links.py`).
When the owner ends, the next call of a guest finds that out, and either becomes the owner
or finds the new one. What was under way is repeated, unless that could do harm.

`close` of the store must not meet another call: a descriptor that is closed may be opened
again, for another file. So every call is recorded while it lasts, and `close` waits for
those under way; later calls are refused. They are recorded as items of a list, whose
`append` and `pop` are atomic: that costs a twentieth of a microsecond.

A child that was forked gives up what it has inherited, and is a guest from its next call
on. A handler of a signal, such as that of Ctrl-C, may raise an exception in any call: a
change is made by C or by another thread, and is complete or was not begun.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from _thread import start_new_thread
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from volcache.embedded.errors import UnknownResultError, translated
from volcache.embedded.links import Guest, LinkLostError, Owner, uninterrupted
from volcache.errors import StoreLockedError, VolcacheError
from volcache_client.errors import ClientUsageError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from volcache.sharing.wire import Operation
    from volcache.store import Store
    from volcache_client.keys import Key

    Text = str | None

T = TypeVar("T")

_POLL_SECONDS: Final = 0.001
_EXIT_SECONDS: Final = 5.0
# For the process that has the lock to serve, or to end.
_WAIT_SECONDS: Final = 10.0

_sessions: Final = weakref.WeakSet["Session"]()
# Held by the threads that close a link without references; the interpreter waits for them.
_ending: Final = set[threading.Lock]()


class Session:
    """
    A directory that is open.

    Attributes:
        path: As it was given.
        link: How its store is reached; None: not yet, or no longer.
        value, put_value: Of `Index`, or `SharedReader` and `LocalClient`, for plain calls.
        calls: One item for each call under way.
        is_closed: Whether no call may begin.
    """

    def __init__(
        self, path: str, open_store: Callable[[str], Store], interval: float | None
    ) -> None:
        """
        Open the directory.

        Args:
            path: Of it.
            open_store: Opens the store, if no other process has.
            interval: Seconds between two syncs; None: there are none.

        Raises:
            StorageLockedError: Another process has it open, and does not share it.
            StorageError: It cannot be opened.
        """
        self.path, self._place = path, os.path.realpath(path)
        self.calls: list[None] = []
        self.link: Owner | Guest | None = None
        self.value: Callable[[Key], bytes | bool | None] = _is_unknown
        self.put_value: Callable[[Key, bytes, bytes], Text] = _is_not_put
        self.is_closed = False
        self._open_store, self._interval = open_store, interval
        self._linking = threading.RLock()
        self._exclusive = threading.local()
        self._holding: list[None] = []  # one item for each block of `exclusive`
        self.attach(None)
        _sessions.add(self)

    def run(self, call: Callable[[Owner | Guest], T], *, is_repeated: bool = True) -> T:
        """
        Return what a call returns.

        Args:
            call: It gets the link.
            is_repeated: Make it again if it may have been made; otherwise that is an error.

        Raises:
            ClientUsageError: The cache is closed.
            StorageError: The disk refuses; or it is not known whether the call was made.
        """
        while True:
            link = self.link
            try:
                self.calls.append(None)
                if link is not None and not self.is_closed:
                    return call(link)
            except LinkLostError as error:
                if error.is_sent and not is_repeated:
                    raise UnknownResultError(self.path, error.since_us) from error
                self._refuse_shared()
            except VolcacheError as error:
                raise translated(error) from error
            finally:
                self.calls.pop()
            self.attach(link)

    def ask(self, operation: Operation, key: bytes = b"", value: bytes = b"") -> bytes:
        """Do what is not about one key; see `links.py`."""
        return self.run(lambda link: link.ask(operation, key, value))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Return a context in which no other thread or process makes changes."""
        depth = getattr(self._exclusive, "depth", 0)
        holding = ExitStack() if depth else self.run(_hold)
        try:
            self._holding.append(None)
            self._exclusive.depth = depth + 1
            yield
        finally:
            self._exclusive.depth = depth
            holding.close()
            self._holding.pop()

    def _refuse_shared(self) -> None:
        if getattr(self._exclusive, "depth", 0):
            raise StorageError(
                f"cache {self.path!r}: the process that had the directory open has ended"
                " within exclusive(): others may make changes since then"
            )

    # --- Links ---------------------------------------------------------------------

    def attach(self, lost: Owner | Guest | None) -> None:
        """
        Have a link, another one than was lost.

        Raises:
            ClientUsageError: The cache is closed.
            StorageError: The directory cannot be opened.
        """
        with self._linking:
            if self.is_closed:
                raise ClientUsageError(f"cache {self.path!r} is closed")
            if self.link is not lost:
                return
            self._unlink()
            if lost is not None:
                lost.close()
            until = time.monotonic() + _WAIT_SECONDS
            while self.link is None:
                try:
                    uninterrupted(self._link)
                except VolcacheError as error:
                    is_locked = isinstance(error, StoreLockedError)
                    if not is_locked or time.monotonic() > until:
                        raise translated(error) from error
                    time.sleep(_POLL_SECONDS)

    def _link(self) -> None:
        """Own the directory, or be a guest of the process that does."""
        link: Owner | Guest | None = None
        with suppress(LinkLostError, FileNotFoundError, NotADirectoryError):
            link = Guest(self._place)
        link = link or Owner(self._place, self._open_store, self._interval)
        self.link = link
        self.value = link.value or _is_unknown
        self.put_value = link.put_value

    def _unlink(self) -> None:
        self.link, self.value, self.put_value = None, _is_unknown, _is_not_put

    # --- The end -------------------------------------------------------------------

    def close(self, *, at_exit: bool = False) -> None:
        """
        Return when the store is closed; again, do nothing.

        Args:
            at_exit: The interpreter exits: a thread can perhaps not be started.

        Raises:
            ClientUsageError: This thread is within `exclusive`.
        """
        if getattr(self._exclusive, "depth", 0):
            raise ClientUsageError("close() within exclusive(): leave its block before")
        # A thread that the interpreter does not wait for may hold it for ever.
        if not self._linking.acquire(timeout=_EXIT_SECONDS if at_exit else -1):
            return
        try:
            if self.is_closed:
                return
            self.is_closed = True
            self.value, self.put_value = _is_unknown, _is_not_put
            if at_exit:
                self._close(time.monotonic() + _EXIT_SECONDS)
            else:
                uninterrupted(self._close)
        finally:
            self._linking.release()

    def _close(self, until: float = math.inf) -> None:
        while self.calls or self._holding:
            if time.monotonic() > until:
                return
            time.sleep(_POLL_SECONDS)
        if self.link is not None:
            self.link.close()

    def __del__(self) -> None:
        # No call can come. An object without a link is one whose `__init__` has failed.
        link = getattr(self, "link", None)
        if link is None or self.is_closed:
            return
        self.is_closed = True
        done = threading.Lock()
        done.acquire()
        # The garbage collector may run in any thread, also within a lock of the store.
        # Without a thread, the directory stays locked until the process ends.
        start_new_thread(_end, (link, done))
        _ending.add(done)

    def mark_forked(self) -> None:
        """Give up the link, in the child; the next call makes one of its own."""
        if self.link is not None and not self.is_closed:
            _forked.append(self.link)
            self.link.abandon()
        self._unlink()
        self.calls.clear()
        self._holding.clear()
        self._linking = threading.RLock()
        self._exclusive = threading.local()


# Links of the parent, in a child: their ends would wait for threads that are not there.
_forked: Final = list[object]()


def _is_unknown(_key: Key) -> bool:
    return False


def _is_not_put(_key: Key, _value: bytes, _content_type: bytes) -> None:
    return None


def _hold(link: Owner | Guest) -> ExitStack:
    holding = ExitStack()
    holding.enter_context(link.exclusive())
    return holding


def _end(link: Owner | Guest, done: threading.Lock) -> None:
    """Close a link to which there is no other reference."""
    try:
        link.close()
    finally:
        _ending.discard(done)
        done.release()


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
