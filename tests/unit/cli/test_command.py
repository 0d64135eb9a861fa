"""Output of the commands: what a failing standard output does to a tool."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from volcache.cli.command import OutputError, output, print_line
from volcache.errors import StoreError

FULL = OSError(errno.ENOSPC, "No space left on device")
CLOSED = BrokenPipeError(errno.EPIPE, "Broken pipe")


class FailingOutput(io.StringIO):
    """Fails once, then accepts everything."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error: OSError | None = error

    def write(self, text: str) -> int:
        """Raise the error the first time."""
        if self.error:
            error, self.error = self.error, None
            raise error
        return super().write(text)


def work(*lines: str, error: StoreError | None = None) -> None:
    """Print lines as a tool does; end with an error, if there is one."""
    with output() as report:
        for line in lines:
            report(line)
        if error:
            raise error


def test_tool_prints_the_lines_after_a_failed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is raised at the end, also if the disk has space again."""
    stdout = FailingOutput(FULL)
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(OutputError, match="No space left"):
        work("one", "two", "three")
    assert stdout.getvalue() == "two\nthree\n"


def test_reader_that_went_away_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `| head`."""
    stdout = FailingOutput(CLOSED)
    monkeypatch.setattr(sys, "stdout", stdout)
    work("one", "two")
    assert stdout.getvalue() == "two\n"


def test_error_of_the_work_is_raised_instead_of_that_of_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the more important one."""
    monkeypatch.setattr(sys, "stdout", FailingOutput(FULL))
    with pytest.raises(StoreError, match="bad"):
        work("one", error=StoreError("bad"))


def test_single_line_that_cannot_be_printed_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once; a closed pipe as itself, so that the command ends quietly."""
    monkeypatch.setattr(sys, "stdout", FailingOutput(FULL))
    with pytest.raises(OutputError):
        print_line("one")
    monkeypatch.setattr(sys, "stdout", FailingOutput(CLOSED))
    with pytest.raises(BrokenPipeError):
        print_line("one")
