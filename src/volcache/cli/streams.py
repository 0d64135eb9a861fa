"""
Files and standard streams whose contents a command reads or writes: FILE, or `-`.

Also the signals that end a command, so that it can complete or put back what it began.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, TypeVar

from volcache.cli.command import FileError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

STANDARD: Final = "-"
_MODE: Final = 0o666  # Less what the umask forbids.
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def reading(name: str) -> Iterator[BinaryIO]:
    """
    Yield a file, or standard input, for reading.

    Raises:
        FileError: It cannot be opened. What is raised while it is read is not changed.
    """
    try:
        source = 0 if name == STANDARD else name
        file = open(source, "rb", closefd=name != STANDARD)  # noqa: SIM115 - Below.
    except OSError as error:
        raise FileError(source_name(name), "read", error) from error
    with file:
        yield file


def source_name(name: str) -> str:
    """Return how an error calls what is read."""
    return "standard input" if name == STANDARD else name


@contextmanager
def writing(name: str, *, is_program: bool = False) -> Iterator[IO[bytes]]:
    """
    Yield a file, or standard output, for writing.

    A regular file gets its name when it is complete: after an error it is as it was.

    Raises:
        FileError, OutputError: An `OSError` was raised meanwhile.
        BrokenPipeError: The reader of the output went away.
    """
    try:
        if name == STANDARD:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        # Not a link is replaced, but what it names.
        path = Path(os.path.realpath(name))
        mode = _mode(path)
        if mode is None:
            with path.open("wb") as special:
                yield special
            return
        if is_program:  # Whoever may read it may execute it.
            mode |= (mode & 0o444) >> 2
        with _replacing(path, mode) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        if name == STANDARD:
            raise OutputError(error) from error
        raise FileError(name, "written", error) from error


def _mode(path: Path) -> int | None:
    """Return the mode that a file gets; None: it is a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return _MODE & ~umask
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None


@contextmanager
def _replacing(path: Path, mode: int) -> Iterator[IO[bytes]]:
    """Yield a new file, and give it its name when it is complete."""
    number, name = tempfile.mkstemp(prefix=".volcache-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(number, mode)
            yield file
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_file(path: Path, data: bytes, *, is_program: bool = False) -> None:
    """
    Write a file as a whole or not at all, in a folder that may be missing.

    Raises:
        FileError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(str(path), "written", error) from error
    with writing(str(path), is_program=is_program) as file:
        file.write(data)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """
    Let SIGTERM and SIGHUP raise `SystemExit` with 128 + their number. Main thread only.

    A signal that is ignored, as after `nohup`, stays ignored.
    """

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupt:
    """
    SIGINT, for a command that ends between two steps. Main thread only.

    A second SIGINT ends the process at once, in case a disk or an instance hangs.

    Attributes:
        is_set: Whether there was one.
    """

    def __init__(self) -> None:
        """Handle nothing yet."""
        self.is_set = self._is_waiting = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signal, unless it is ignored, as in a background job of a script."""
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _receive(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.is_set = True
        if self._is_waiting:
            self._is_waiting = False
            raise KeyboardInterrupt

    def wait_for(self, call: Callable[[], T]) -> T | None:
        """Return what a call returns that may wait without end; None after the signal."""
        try:
            try:
                self._is_waiting = True
                return None if self.is_set else call()
            finally:
                self._is_waiting = False
        except KeyboardInterrupt:
            return None
