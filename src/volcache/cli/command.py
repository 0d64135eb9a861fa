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
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from volcache.errors import VolcacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as in a shell.

# What an argument names, for the generated completion.
_COMPLETES: Final = {
    "files": {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"},
    "folders": {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"},
}
_SECONDS_MAX: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand of `volcache`: its help and what it does."""

    name: str
    text: str
    epilog: str
    run: Callable[[argparse.Namespace], int | None]  # The exit code; None: EXIT_OK.


def command(
    name: str, run: Callable[[argparse.Namespace], int | None], **more: str
) -> Command:
    """
    Return a command that commands.toml describes.

    Args:
        name: Of the command.
        run: Executes it.
        more: Replaces {names} in the text that follows its arguments.
    """
    found = _described()[name]
    epilog = found["epilog"]
    for key, text in more.items():
        epilog = epilog.replace(f"{{{key}}}", text)
    return Command(name=name, text=found["text"], epilog=epilog, run=run)


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments that commands.toml lists for a command."""
    found = _described()
    for one in found[name]["arguments"]:
        options = {"names": one, **found["argument"][one]}
        names, completes = options.pop("names").split(), options.pop("complete", None)
        if "metavar" not in options:
            options["action"] = "store_true"
        if "type" in options:
            options["type"] = _TYPES[options["type"]]
        action = parser.add_argument(*names, **options)
        if completes:
            # Read by shtab.
            action.complete = _COMPLETES[completes]  # type: ignore[attr-defined]


def summary_of(name: str) -> str:
    """Return what a command does, in a line; its module is not imported."""
    return str(_described()[name]["text"])


@cache
def _described() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8"))


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if 0 < found <= _SECONDS_MAX:
        return found
    raise argparse.ArgumentTypeError(
        f"{text!r} is not allowed; allowed is a number of seconds above 0, up to"
        f" {_SECONDS_MAX:g}"
    )


def _lifetime(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError
    return int(text)


_lifetime.__name__ = "number of seconds"  # In an error of argparse.
_TYPES: Final = {"path": Path, "seconds": _seconds, "lifetime": _lifetime}


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


def offline_command(
    name: str,
    work: Callable[[argparse.Namespace, Callable[[str], None]], bool],
    writes_output: Callable[[argparse.Namespace], bool] = lambda _: False,
) -> Command:
    """
    Return a command that reads or repairs a mount point, with DIR and `--json`.

    Args:
        name: Of the command.
        work: Is given the arguments, and what prints a line; returns whether all is well.
        writes_output: Whether it writes to standard output itself; then lines are printed
            on standard error.
    """

    def run(arguments: argparse.Namespace) -> int:
        silence_log()
        file = sys.stderr if writes_output(arguments) else None
        with output(as_json=arguments.json, file=file) as report:
            return EXIT_OK if work(arguments, report) else EXIT_FAILED

    return command(name, run)


def silence_log() -> None:
    """Discard log lines of the store: an offline tool reports the same in its output."""
    import logging  # noqa: PLC0415 - Only the tools of a mount point need it.

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
