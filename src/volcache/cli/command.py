"""
What all commands share: their description, exit codes, arguments and output.

Exit codes: 0 done; 1 the store, the address or the output cannot be used, or the command
found damage or left something out; 2 a wrong argument or setting; 130 interrupted; 143
ended by SIGTERM.

With `--json`, each line of a command is a JSON object, and the last one has the only key
`summary`. The names of the fields are part of the interface; more may be added.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.errors import VolcacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as in a shell.

# What an argument names, for the generated completion: see `completing`.
FILES: Final = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
FOLDERS: Final = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand of `volcache`: its help, its arguments and what it does."""

    name: str
    text: str
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]  # The exit code; None: EXIT_OK.


def command(
    name: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int | None],
) -> Command:
    """Return a command whose help is in commands.toml."""
    found = help_of(name)
    return Command(
        name=name,
        text=found["text"],
        epilog=found["epilog"],
        add_arguments=add_arguments,
        run=run,
    )


def help_of(name: str) -> dict[str, str]:
    """Return `text` and `epilog` of a command."""
    return _helps()[name]


@cache
def _helps() -> dict[str, dict[str, str]]:
    text = files("volcache.cli").joinpath("commands.toml").read_text("utf-8")
    return tomllib.loads(text)


def seconds(most: float, *, least: float = 0.0) -> Callable[[str], float]:
    """
    Return the `type` of an argument that is a number of seconds.

    Args:
        most: The largest that is allowed.
        least: The smallest; 0 itself is not allowed.
    """

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = 0.0
        if found and least <= found <= most:
            return found
        range_ = f"from {least:g} to" if least else "above 0, up to"
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; allowed is a number of seconds {range_} {most:g}"
        )

    return read


class OutputError(VolcacheError):
    """Standard output cannot be written, and not because its reader went away."""

    def __init__(self, error: OSError) -> None:
        """Build the message from what the system reported."""
        reason = error.strerror or error
        super().__init__(f"standard output cannot be written: {reason}")


class FileError(VolcacheError):
    """A file of the user cannot be read or written."""

    def __init__(self, name: str, what: str, error: OSError) -> None:
        """Build the message from what the system reported."""
        super().__init__(f"{name}: cannot be {what}: {error.strerror or error}")


class Line(str):
    """
    A line of output: text for people, and the same as fields for programs.

    Attributes:
        fields: For a JSON object.
    """

    __slots__ = ("fields",)

    def __new__(cls, text: str, **fields: object) -> Line:  # noqa: PYI034 - No subclass.
        """Make a line of its text and its fields."""
        line = super().__new__(cls, text)
        line.fields = fields
        return line

    fields: dict[str, object]


def completing(action: argparse.Action, kind: dict[str, str]) -> None:
    """Let the shell complete an argument with `FILES` or `FOLDERS`."""
    # Read by shtab.
    action.complete = kind  # type: ignore[attr-defined]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for lines of JSON."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per line; the last one is the summary",
    )


def offline_command(
    name: str,
    work: Callable[[argparse.Namespace, Callable[[str], None]], bool],
    add_more: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    writes_output: Callable[[argparse.Namespace], bool] = lambda _: False,
) -> Command:
    """
    Return a command that reads or repairs a mount point, with DIR and `--json`.

    Args:
        name: Of the command.
        work: Is given the arguments, and what prints a line; returns whether all is well.
        add_more: Adds the other arguments.
        writes_output: Whether it writes to standard output itself; then lines are printed
            on standard error.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        action = parser.add_argument(
            "directory", metavar="DIR", help="a mount point that no server is using"
        )
        completing(action, FOLDERS)
        add_more(parser)
        add_json(parser)

    def run(arguments: argparse.Namespace) -> int:
        silence_log()
        file = sys.stderr if writes_output(arguments) else None
        with output(as_json=arguments.json, file=file) as report:
            return EXIT_OK if work(arguments, report) else EXIT_FAILED

    return command(name, add_arguments, run)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add what the settings are read from: `config`, `set` and `instance`."""
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG",
        help="a TOML file of settings (default: none, every setting at its default)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one setting; overrides CONFIG and the environment; may be repeated",
    )
    parser.add_argument(
        "--instance",
        default="",
        metavar="NAME",
        help="what %%i stands for in settings (default: the variable VOLCACHE_INSTANCE)",
    )


def silence_log() -> None:
    """Discard log lines of the store: an offline tool reports the same in its output."""
    logging.getLogger("volcache").addHandler(logging.NullHandler())


def complain(text: str) -> None:
    """Print an error as one line on standard error."""
    print(f"volcache: {text}", file=sys.stderr)


def print_line(line: str, file: TextIO | None = None) -> None:
    """
    Print one line.

    Args:
        line: Without its end.
        file: None: standard output.

    Raises:
        BrokenPipeError: The reader of the output went away.
        OutputError: The output cannot be written for another reason.
    """
    with _output_errors():
        print(line, file=file)


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error) from error


@contextmanager
def output(
    *, as_json: bool = False, file: TextIO | None = None
) -> Iterator[Callable[[str], None]]:
    """
    Yield a function that prints one line, for a tool that must not stop halfway.

    The function never raises. A reader that went away is ignored.

    Args:
        as_json: Print the fields of each `Line`; text without fields becomes a `note`.
        file: None: standard output.

    Raises:
        OutputError: At the end, if a line could not be written for another reason.
    """
    errors: list[OutputError] = []

    def report(line: str) -> None:
        if as_json:
            fields = line.fields if isinstance(line, Line) else {"note": line}
            line = json.dumps(fields)
        try:
            print_line(line, file)
        except BrokenPipeError:
            pass
        except OutputError as error:
            errors.append(error)

    yield report
    if errors:
        raise errors[0]
