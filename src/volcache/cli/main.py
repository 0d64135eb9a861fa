"""
The command line: arguments in, exit code out.

A command is one entry in `COMMANDS`; its module in `commands/` prints, and so does this
one, and nothing else in the package. Exit codes are those of `command.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final, NoReturn

from volcache import __version__
from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    Command,
)
from volcache.cli.offline import CHECK, DUMP, EXPORT, IMPORT, REPAIR
from volcache.cli.serve import SERVE
from volcache.cli.stats import STATS
from volcache.errors import (
    ClientError,
    ConfigError,
    InstanceError,
    ListenError,
    StoreError,
    VolcacheError,
)

# The nearest class of an error's own line of descent decides.
EXIT_CODES: Final[dict[type[VolcacheError], int]] = {
    ConfigError: EXIT_USAGE,
    ClientError: EXIT_USAGE,
    StoreError: EXIT_FAILED,
    ListenError: EXIT_FAILED,
    InstanceError: EXIT_FAILED,
}


def main(argv: list[str] | None = None) -> int:
    """
    Run one command.

    Args:
        argv: Arguments without the program's name; None takes those of the process.

    Returns:
        The exit code. Errors of the package were said in one line on standard error.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as end:
        # argparse ends --help, --version and wrong usage so; it has printed already.
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    command: Command = arguments.command
    try:
        code = command.run(arguments) or EXIT_OK
    except VolcacheError as error:
        _complain(str(error))
        code = exit_code(error)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_OK  # Whoever read our lines has seen enough, as `head` does.
    _flush()
    return code


def exit_code(error: VolcacheError) -> int:
    """Look the error up in `EXIT_CODES`, its own class before its ancestors."""
    return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)


def _flush() -> None:
    """Write what was printed; a reader that is gone changes no exit code."""
    try:
        print(end="", flush=True)
    except BrokenPipeError:
        # Or the end of the process would try again, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str) -> None:
    """Say one line on standard error."""
    print(f"volcache: {text}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, not two."""

    def error(self, message: str) -> NoReturn:
        """Point to the help of the command that was misused."""
        _complain(f'{message}; see "{self.prog} --help"')
        self.exit(EXIT_USAGE)


def _parser() -> _Parser:
    """Build the parser from `COMMANDS`."""
    parser = _Parser(
        prog="volcache",
        description="Keeps very many small files on plain disks, served over HTTP.",
        epilog="example: volcache serve conf/volcache.toml",
    )
    version = f"volcache {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.text,
            description=command.text,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        # Also here, so that `python src/ --version` works.
        sub.add_argument("--version", action="version", version=version)
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return parser


COMMANDS: Final[tuple[Command, ...]] = (
    SERVE,
    STATS,
    CHECK,
    REPAIR,
    DUMP,
    EXPORT,
    IMPORT,
)
