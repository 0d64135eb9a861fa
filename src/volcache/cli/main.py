"""
The command line: arguments in, exit code out.

Each command is in a module of this package with a constant `COMMAND`, or one of several
`COMMANDS`. Only modules of this package print. The exit codes are those of `command.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    Command,
    OutputError,
    add_arguments,
    complain,
    summary_of,
)
from volcache.errors import ClientError, ConfigError, VolcacheError
from volcache.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

# The commands and their modules. Only the module of the command that runs is imported: a
# server does not load the tools, and `serve` reports a wrong setting without any package.
MODULES: Final = {
    **{name: name for name in ("serve", "config", "stats", "cluster")},
    **dict.fromkeys(("get", "put", "rm", "ls", "purge"), "values"),
    **{name: name for name in ("check", "repair", "dump", "export")},
    "load": "load",
    **{name: name for name in ("files", "completion")},
}

_EPILOG: Final = """\
"volcache COMMAND --help" describes a command. Without a command, this help is printed.

exit code: 0 done; 1 failed, something was left out, or damage was found; 2 a wrong
  argument or setting; 130 interrupted by Ctrl-C, 143 ended by SIGTERM
example: volcache serve conf/volcache.toml
"""


def main(argv: list[str] | None = None) -> int:
    """
    Run one command; without arguments, print the help.

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
            complain(str(OutputError(error)))
            code = code or EXIT_FAILED
    return code


def _run(argv: list[str]) -> int:
    """Parse the arguments and run the command; return the exit code."""
    if argv[:1] == ["help"]:  # As of git: of all, or of a command.
        argv = [*argv[1:], "--help"]
    try:
        arguments = _parse(argv)
        command: Command = arguments.command
        return command.run(arguments) or EXIT_OK
    except SystemExit as end:
        # From argparse, after --help, --version and wrong arguments; it has printed.
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    except VolcacheError as error:
        complain(str(error))
        if isinstance(error, OutputError):
            _discard_output()
        is_usage = isinstance(error, ConfigError | ClientError)
        return EXIT_USAGE if is_usage else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_OK


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = build_parser(argv)
    try:
        arguments, rest = parser.parse_known_args(argv)
    except BrokenPipeError:
        raise
    except OSError as error:  # From printing --help or --version.
        raise OutputError(error) from error
    if rest:
        arguments.parser.error(f"unexpected argument: {' '.join(rest)}")
    return arguments


def _discard_output() -> None:
    """Drop what is still buffered, or Python reports the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Point to the help of the command."""
        complain(f'{message}; see "{self.prog} --help"')
        self.exit(EXIT_USAGE)

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Take options at any place."""
        given = list(args or ())
        if self._subparsers is not None:
            # As git and docker; the exit code is then 0 as well.
            return super().parse_known_args(given or ["--help"], namespace)
        found, rest = super().parse_known_args(self._options_first(given), namespace)
        # Words behind -- are what they are, whatever they look like.
        found.is_literal = "--" in given
        return found, rest

    def _options_first(self, given: list[str]) -> list[str]:
        """
        Move the options in front of the other arguments.

        Between two arguments, the second of which is optional, an option would end the
        search for it.
        """
        options: list[str] = []
        others: list[str] = []
        words = iter(given)
        for word in words:
            if word == "--":
                others += words
            elif not word.startswith("-") or word == "-":
                others.append(word)
            else:
                options.append(word)
                action = self._option_string_actions.get(word)
                if action is not None and action.nargs is None:
                    options += islice(words, 1)
                elif action is not None and action.nargs != 0:
                    return given  # It takes more than one.
        return [*options, "--", *others] if others else options


def build_parser(argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """
    Build the parser of the command line.

    Args:
        argv: Only the module of the command that it names is imported: `--help` and
            `--version` import none. None: of all, for what describes all arguments.
    """
    parser = _Parser(
        prog="volcache",
        description="Stores very many small files on plain disks and serves them over"
        " HTTP.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    named = next((word for word in argv or () if not word.startswith("-")), None)
    for name in [named] if named in MODULES else MODULES:
        if argv is None or name == named:
            _add_command(commands, name)
        else:
            commands.add_parser(name, help=summary_of(name))
    return parser


def _add_command(commands: argparse._SubParsersAction[_Parser], name: str) -> None:
    """Add a command, or those that have its name before their own."""
    module = import_module(f"volcache.cli.{MODULES[name]}")
    found: dict[str, Command] = getattr(module, "COMMANDS", {}) or {
        name: module.COMMAND
    }
    if name in found:
        _add_parser(commands, found[name])
        return
    text = summary_of(name)
    group = commands.add_parser(name, help=text, description=text)
    inner = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for one in found.values():
        _add_parser(inner, one)


def _add_parser(
    commands: argparse._SubParsersAction[_Parser], command: Command
) -> None:
    parser = commands.add_parser(
        command.name.split()[-1],
        help=command.text,
        description=command.text,
        epilog=command.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # A script that abbreviates an option fails when there is a second one.
        allow_abbrev=False,
    )
    _add_version(parser)  # Also here, so that `python src/ --version` works.
    add_arguments(parser, command.name)
    parser.set_defaults(command=command, parser=parser)


def _add_version(parser: argparse.ArgumentParser) -> None:
    version = f"volcache {__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
