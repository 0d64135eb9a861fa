"""
What all commands share: their description, exit codes, arguments and output.

Exit codes: 0 done; 1 the store, the address or the output cannot be used, or the command
found damage or left something out; 2 a wrong argument or setting; 130 interrupted.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from volcache.errors import VolcacheError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as in a shell.

# For the epilogs of commands that use `output`.
COMPLETES: Final = """\
If the reader of the output goes away, as after "| head", the command still completes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand of `volcache`: its help, its arguments and what it does."""

    name: str
    text: str
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]  # The exit code; None: EXIT_OK.


class OutputError(VolcacheError):
    """Standard output cannot be written, and not because its reader went away."""

    def __init__(self, error: OSError) -> None:
        """Build the message from what the system reported."""
        reason = error.strerror or error
        super().__init__(f"standard output cannot be written: {reason}")


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the argument DIR, an existing mount point."""
    parser.add_argument(
        "directory", metavar="DIR", help="a mount point that no server is using"
    )


def silence_log() -> None:
    """Discard log lines of the store: an offline tool reports the same in its output."""
    logging.getLogger("volcache").addHandler(logging.NullHandler())


def print_line(line: str) -> None:
    """
    Print one line.

    Raises:
        BrokenPipeError: The reader of the output went away.
        OutputError: The output cannot be written for another reason.
    """
    try:
        print(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error) from error


@contextmanager
def output() -> Iterator[Callable[[str], None]]:
    """
    Yield a function that prints one line, for a tool that must not stop halfway.

    The function never raises. A reader that went away is ignored.

    Raises:
        OutputError: At the end, if a line could not be written for another reason.
    """
    errors: list[OutputError] = []

    def report(line: str) -> None:
        try:
            print_line(line)
        except BrokenPipeError:
            pass
        except OutputError as error:
            errors.append(error)

    yield report
    if errors:
        raise errors[0]
