"""
The command line: arguments in, exit code out.

Each command is a module of this package with a constant `COMMAND`. Only modules of this
package print. The exit codes are those of `command.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import Final, NoReturn

from volcache import __version__
from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    Command,
    OutputError,
)
from volcache.errors import (
    ClientError,
    ConfigError,
    InstanceError,
    ListenError,
    StoreError,
    VolcacheError,
)

# One module per command. Only the module of the command that runs is imported: a server
# does not load the tools, and `serve` reports a wrong setting without any package.
MODULES: Final = (
    *("serve", "stats", "purge"),
    *("check", "repair", "dump", "export", "import_"),
)

# The closest class in the method resolution order of an error decides.
EXIT_CODES: Final[dict[type[VolcacheError], int]] = {
    ConfigError: EXIT_USAGE,
    ClientError: EXIT_USAGE,
    StoreError: EXIT_FAILED,
    ListenError: EXIT_FAILED,
    InstanceError: EXIT_FAILED,
    OutputError: EXIT_FAILED,
}


def main(argv: list[str] | None = None) -> int:
    """
    Run one command.

    Args:
        argv: Arguments without the program's name; None = those of the process.

    Returns:
        The exit code. An error of the package is one line on standard error.
    """
    code = _run(sys.argv[1:] if argv is None else argv)
    try:
        print(end="", flush=True)
    except OSError as error:
        _discard_output()
        # A reader that went away, as `head` does, changes no exit code.
        if not isinstance(error, BrokenPipeError):
            _complain(str(OutputError(error)))
            code = code or EXIT_FAILED
    return code


def _run(argv: list[str]) -> int:
    """Parse the arguments and run the command; return the exit code."""
    try:
        arguments = _parse(argv)
        command: Command = arguments.command
        return command.run(arguments) or EXIT_OK
    except SystemExit as end:
        # From argparse, after --help, --version and wrong arguments; it has printed.
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    except VolcacheError as error:
        _complain(str(error))
        if isinstance(error, OutputError):
            _discard_output()
        return exit_code(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_OK


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _parser(argv)
    try:
        return parser.parse_args(argv)
    except BrokenPipeError:
        raise
    except OSError as error:  # From printing --help or --version.
        raise OutputError(error) from error


def exit_code(error: VolcacheError) -> int:
    """Look the error up in `EXIT_CODES`, its own class before its base classes."""
    return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)


def _discard_output() -> None:
    """Drop what is still buffered, or Python reports the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(text: str) -> None:
    print(f"volcache: {text}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line instead of two."""

    def error(self, message: str) -> NoReturn:
        """Point to the help of the command."""
        _complain(f'{message}; see "{self.prog} --help"')
        self.exit(EXIT_USAGE)


def _parser(argv: list[str]) -> _Parser:
    """Build the parser for the command that `argv` names, or for all of them."""
    parser = _Parser(
        prog="volcache",
        description="Stores very many small files on plain disks and serves them over"
        " HTTP.",
        epilog="example: volcache serve conf/volcache.toml",
    )
    version = f"volcache {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    named = [module for module in MODULES if argv[:1] == [module.removesuffix("_")]]
    for module in named or MODULES:
        command: Command = import_module(f"volcache.cli.{module}").COMMAND
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
