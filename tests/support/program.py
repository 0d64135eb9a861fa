"""
A program in a process of its own: started, waited for until it answers, ended by its pid.

Knows nothing of what the program does; its subclasses say what is started and how it is
told that it answers.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from abc import ABC, abstractmethod
from typing import IO, TYPE_CHECKING, ClassVar, Self

from support.waiting import comes_true

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class ProgramError(RuntimeError):
    """A program ended, or did not answer in time; the text holds what it wrote."""


class Program(ABC):
    """
    One process at a time, from the beginning of the context to its end.

    Invariants:
        - What is started here is ended by its pid when the context ends.
        - What it wrote stays readable until then, over any number of starts.
    """

    # How long to wait for the first answer, and for the end after a signal.
    deadline_seconds: ClassVar[float] = 30.0
    # Whether it is asked with SIGTERM when the context ends, before it is killed.
    is_asked_to_end: ClassVar[bool] = True

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        # Unnamed files: read while the program writes, gone with the context.
        self._written: list[IO[bytes]] = []

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return what is started."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does what it is for."""

    def environment(self) -> Mapping[str, str]:
        """Make its environment: ours, without settings that are not ours."""
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("VOLCACHE_")
        }

    def inherited(self) -> Sequence[int]:
        """Return the descriptors that are passed on to it."""
        return ()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process started last."""
        if self._process is None:
            raise RuntimeError(f"{type(self).__name__} was never started")
        return self._process

    @property
    def pid(self) -> int:
        """The process id of the process started last."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def stdout(self) -> str:
        """What it and those started before it wrote to stdout."""
        return _text_of(self._written[0])

    @property
    def stderr(self) -> str:
        """What it and those started before it wrote to stderr."""
        return _text_of(self._written[1])

    def launch(self) -> None:
        """Start it without waiting until it answers."""
        if self.is_running:
            raise RuntimeError(f"{type(self).__name__} runs already, pid {self.pid}")
        if not self._written:
            for _ in range(2):
                file = tempfile.TemporaryFile()  # noqa: SIM115 - Closed at the end.
                self._written.append(file)
        stdout, stderr = self._written
        self._process = subprocess.Popen(
            self.command(),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=self.inherited(),
        )

    def start(self) -> None:
        """
        Start it and wait until it answers.

        Raises:
            ProgramError: It ended, or did not answer within the deadline; it was killed.
        """
        self.launch()
        try:
            self.wait_answering()
        except BaseException:
            self.kill()
            raise

    def wait_answering(self) -> None:
        """
        Wait until it answers.

        Raises:
            ProgramError: It ended, or the deadline passed.
        """
        is_over = comes_true(
            lambda: not self.is_running or self.answers(), self.deadline_seconds
        )
        if is_over and self.is_running:
            return
        raise self.failure()

    def failure(self) -> ProgramError:
        """Say that it has ended, or else that it does not answer, and what it wrote."""
        what = "does not answer" if self.is_running else f"ended with {self.exit_code}"
        command = " ".join(str(word) for word in self.command())
        return ProgramError(f"{command} {what}:\n{self.stdout}{self.stderr}")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP: a server accepts then, and never answers."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as `kill -9` does; harmless when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        """
        Ask it to end, with SIGTERM.

        Returns:
            Its exit code.

        Raises:
            subprocess.TimeoutExpired: It did not end in time; it was killed.
        """
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """
        Wait for it to end by itself.

        Returns:
            Its exit code.

        Raises:
            subprocess.TimeoutExpired: It did not end in time; it was killed.
        """
        try:
            return self.process.wait(self.deadline_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def restart(self) -> None:
        """Start it again, after ending what still runs by SIGTERM."""
        if self.is_running:
            self.terminate()
        self.start()

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        try:
            self.start()
        except BaseException:
            self._forget_written()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        try:
            if self.is_running and self.is_asked_to_end:
                self.terminate()
        finally:
            self.kill()
            self._forget_written()

    def _forget_written(self) -> None:
        while self._written:
            self._written.pop().close()


def _text_of(file: IO[bytes]) -> str:
    length = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), length, 0).decode(errors="replace")
