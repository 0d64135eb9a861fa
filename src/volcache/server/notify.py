"""
What systemd is told: readiness, a line of status, and that the process makes progress.

sd_notify(3) defines the protocol: datagrams with lines `NAME=VALUE`, to the socket that
NOTIFY_SOCKET names. Without the variable nothing is sent, and nothing runs. No call waits:
a message that the socket has no room for is dropped, or sent with the next one if the
service manager waits for it.

The watchdog is fed by the thread that answers requests (`Heartbeat.beat`, called by
bjoern's loop). So a loop that waits for a disk that hangs does not feed it. Reads and syncs
by other threads hang without the loop: they are asked how long they have been waiting.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

_logger: Final = logging.getLogger(__name__)
_USEC: Final = 1_000_000
# Between two messages; at most half of the time of the watchdog.
_SLOW_SECONDS_MAX: Final = 600.0
BEAT_SECONDS: Final = 10.0
EXTEND_SECONDS: Final = 60
_CHECK_SECONDS: Final = 10.0
# CPU time between two checks that is more than that of the check.
_BUSY_SECONDS: Final = 0.01
_READY: Final = "READY=1"


class Notifier:
    """Sends messages to the service manager, if there is one."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """
        Take over the variables that systemd has set.

        Args:
            environ: The environment. The variables are removed from it, so that no child
                process sends messages in the name of this one.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._unsent: tuple[str, ...] = ()
        self._has_failed = False
        is_ours = pid in {"", str(os.getpid())} and usec.isascii() and usec.isdigit()
        # 0 = there is no watchdog.
        self.watchdog_seconds = int(usec) / _USEC if is_ours and address else 0.0
        if address:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
            self._socket = socket.socket(socket.AF_UNIX, kind)

    @property
    def is_on(self) -> bool:
        """Whether there is a service manager."""
        return self._socket is not None

    def send(self, *lines: str, is_kept: bool = False) -> None:
        """
        Send lines `NAME=VALUE` in one message; from any thread, without waiting.

        Args:
            lines: What the manager is told. Line feeds in them become spaces.
            is_kept: If there is no room now, send them before the next message.
        """
        if self._socket is None:
            return
        kept, self._unsent = self._unsent, ()
        unsent = () if not kept or self._try(kept) else kept
        if unsent or not self._try(lines):
            self._unsent = unsent + (lines if is_kept else ())

    def _try(self, lines: tuple[str, ...]) -> bool:
        """Send a message; return false if it should be sent again."""
        text = "\n".join(" ".join(line.splitlines()) for line in lines)
        data = text.encode("utf-8", "backslashreplace")
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            if self._socket is not None:
                self._socket.sendto(data, flags, self._address)
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, ValueError) as error:
            # ValueError: a path with a null character.
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("notify.failed error=%r", str(error))
        return True

    def ready(self) -> None:
        """Tell that requests are answered, after the start or a reload."""
        self.send(_READY, is_kept=True)

    def reloading(self) -> None:
        """Tell that a reload begins; `ready` tells that it has ended."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.send("RELOADING=1", f"MONOTONIC_USEC={usec}", is_kept=True)

    def stopping(self) -> None:
        """Tell that the process ends."""
        self.send("STOPPING=1", "STATUS=stopping", is_kept=True)

    @contextmanager
    def extending(
        self,
        status: str,
        *,
        check_seconds: float = _CHECK_SECONDS,
        work_done: Callable[[], tuple[float, int]] | None = None,
    ) -> Iterator[None]:
        """
        Let the manager wait while the code inside reads, writes or computes.

        A disk that hangs ends that: the time that the unit allows is not extended again.

        Args:
            status: What the process is doing.
            check_seconds: Between two checks; much less than `EXTEND_SECONDS`.
            work_done: Returns CPU seconds, and bytes read and written; those of the
                process by default.
        """
        if not self.is_on:
            yield
            return
        self.send(f"STATUS={status}")
        ended = threading.Event()
        measure = work_done or _work_done

        before: tuple[float, int] | None = None

        def extend() -> None:
            nonlocal before
            before = before or measure()
            if not ended.wait(check_seconds):
                now = measure()
                if now[0] - before[0] > _BUSY_SECONDS or now[1] != before[1]:
                    self.send(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * _USEC}")
                before = now

        thread = Background("extend", extend, ended.is_set)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def close(self) -> None:
        """Release the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _work_done() -> tuple[float, int]:
    """Return CPU seconds, and bytes read from and written to disks, of this process."""
    count = 0
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
            name, _, number = line.partition(": ")
            if name in {"read_bytes", "write_bytes"}:
                count += int(number)
    return time.process_time(), count


class Heartbeat:
    """Messages at an interval, from the thread that answers requests."""

    def __init__(
        self,
        notifier: Notifier,
        *,
        stalled: Callable[[], float],
        completed: Callable[[], int | None],
        status: Callable[[], str],
    ) -> None:
        """
        Begin; `READY=1` is sent by the first beat.

        Args:
            notifier: Is on.
            stalled: Returns for how many seconds the reads or syncs of other threads have
                made no progress; 0 if none waits.
            completed: Returns a number that changes while the disk answers; None: unknown.
            status: Returns a line for the operator.
        """
        self._notifier = notifier
        self._stalled = stalled
        self._completed = completed
        self._status = status
        self._is_ready = False
        self._last_completed: int | None = None
        self._is_withheld = False
        half = notifier.watchdog_seconds / 2 or BEAT_SECONDS
        self.interval = min(half, BEAT_SECONDS)  # seconds between two beats

    def beat(self) -> None:
        """Send a message: the process serves, and its disk answers."""
        if not self._is_ready:
            self._is_ready = True
            self._notifier.ready()
        lines = [f"STATUS={self._status()}"]
        if self._notifier.watchdog_seconds and self._is_well():
            lines.append("WATCHDOG=1")
        self._notifier.send(*lines)

    def _is_well(self) -> bool:
        """Return whether no other thread hangs at a disk that does not answer."""
        seconds = self._stalled()
        if seconds < self.interval:
            self._last_completed, self._is_withheld = None, False
            return True
        # A disk may be slow, and a sync may write for minutes. It is only a hung disk that
        # completes nothing at all; what takes longer than that waits for no disk.
        before, self._last_completed = self._last_completed, self._completed()
        is_slow = self._last_completed not in {None, before}
        if is_slow and seconds < _SLOW_SECONDS_MAX:
            return True
        if not self._is_withheld:
            _logger.error("watchdog.withheld seconds=%.1f", seconds)
        self._is_withheld = True
        return False


def completed_requests(directory: str) -> Callable[[], int | None]:
    """
    Return a function that returns how many requests the disk of a directory completed.

    None for file systems that are on no block device, or on several.
    """
    device = Path(directory).stat().st_dev
    place = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"

    def completed() -> int | None:
        try:
            words = Path(place).read_bytes().split()
            return int(words[0]) + int(words[4])  # Reads and writes.
        except (OSError, ValueError, IndexError):
            return None

    return completed
