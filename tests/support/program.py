"""
A program in a process of its own: started, awaited until it answers, ended by its pid.

Subclasses define the command, and what it means that the program answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar, Self

from support.waiting import comes_true, wait_until

Ended = subprocess.CompletedProcess[str]


def ended(
    command: Sequence[str | Path],
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    seconds: float = 60,
) -> Ended:
    """Run a program to its end; without an environment, it has ours."""
    return subprocess.run(
        command,
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


class ProgramError(RuntimeError):
    """A program exited, or did not answer in time; the message has its output."""


class Program(ABC):
    """
    One process at a time, from the beginning of the context to its end.

    Invariants:
        - The process is ended by its pid when the context ends.
        - Its output stays readable until then, over any number of starts.
    """

    # How long to wait for the first answer, and for the exit after a signal.
    deadline_seconds: ClassVar[float] = 30.0
    # Whether it gets a SIGTERM when the context ends, before it is killed.
    is_asked_to_end: ClassVar[bool] = True

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        # Stdout and stderr: unnamed files, readable while the program writes.
        self._outputs: list[IO[bytes]] = []

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves."""

    def environment(self) -> Mapping[str, str]:
        """Return its environment: ours, without settings."""
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("VOLCACHE_")
        }

    def inherited(self) -> Sequence[int]:
        """Return the descriptors that it inherits."""
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
        """Whether it was started and has not exited."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def stdout(self) -> str:
        """Its output, over all starts."""
        return _text_of(self._outputs[0])

    @property
    def stderr(self) -> str:
        """Its error output, over all starts."""
        return _text_of(self._outputs[1])

    def launch(self) -> None:
        """Start it without waiting until it answers."""
        if self.is_running:
            raise RuntimeError(f"{type(self).__name__} runs already, pid {self.pid}")
        if not self._outputs:
            for _ in range(2):
                file = tempfile.TemporaryFile()  # noqa: SIM115 - Closed at the end.
                self._outputs.append(file)
        stdout, stderr = self._outputs
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
            ProgramError: It exited, or did not answer within the deadline; it was killed.
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
            ProgramError: It exited, or the deadline passed.
        """
        is_over = comes_true(
            lambda: not self.is_running or self.answers(), self.deadline_seconds
        )
        if is_over and self.is_running:
            return
        raise self.failure()

    def failure(self) -> ProgramError:
        """Return an error: it exited or does not answer, and its output."""
        what = "does not answer" if self.is_running else f"ended with {self.exit_code}"
        command = " ".join(str(word) for word in self.command())
        return ProgramError(f"{command} {what}:\n{self.stdout}{self.stderr}")

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def suspend(self) -> None:
        """Let it hang from now on, until it gets a SIGCONT."""
        self.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.pid}/stat")
        wait_until(lambda: ") T " in state.read_text(), "the stop of the program")

    def kill(self) -> None:
        """Kill it, as `kill -9` does; harmless if it has exited."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        """
        End it with SIGTERM.

        Returns:
            Its exit code.

        Raises:
            subprocess.TimeoutExpired: It did not exit in time; it was killed.
        """
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """
        Wait until it exits.

        Returns:
            Its exit code.

        Raises:
            subprocess.TimeoutExpired: It did not exit in time; it was killed.
        """
        try:
            return self.process.wait(self.deadline_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def restart(self) -> None:
        """Start it again; a running process is ended with SIGTERM first."""
        if self.is_running:
            self.terminate()
        self.start()

    def __enter__(self) -> Self:
        """Start it and wait until it answers."""
        try:
            self.start()
        except BaseException:
            self._close_outputs()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        try:
            if self.is_running and self.is_asked_to_end:
                self.terminate()
        finally:
            self.kill()
            self._close_outputs()

    def _close_outputs(self) -> None:
        while self._outputs:
            self._outputs.pop().close()


def _text_of(file: IO[bytes]) -> str:
    length = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), length, 0).decode(errors="replace")
