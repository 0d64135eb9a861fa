"""
The command line: arguments in, exit code out; nothing else in the package prints.

A command is one entry in `COMMANDS`. Exit codes: 0 done, 1 the store or the address
cannot be used or damage was found, 2 a wrong argument or setting, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from volcache import __version__
from volcache.config import ENVIRONMENT_PREFIX, load_config
from volcache.errors import (
    ClientError,
    ConfigError,
    InstanceError,
    ListenError,
    StoreError,
    VolcacheError,
)
from volcache.logs import setup_logging
from volcache.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

_log: Final = logging.getLogger("volcache")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell says it.

# The nearest class of an error's own line of descent decides.
EXIT_CODES: Final[dict[type[VolcacheError], int]] = {
    ConfigError: EXIT_USAGE,
    ClientError: EXIT_USAGE,
    StoreError: EXIT_FAILED,
    ListenError: EXIT_FAILED,
    InstanceError: EXIT_FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One word after `volcache`: what it says of itself, takes and does."""

    name: str
    text: str
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]  # None: done.


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
        sys.stdout.flush()  # Here, where a reader that is gone is no error.
    except VolcacheError as error:
        _complain(str(error))
        return exit_code(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our lines has seen enough, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    return code


def exit_code(error: VolcacheError) -> int:
    """Look the error up in `EXIT_CODES`, its own class before its ancestors."""
    return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)


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


# --- serve -----------------------------------------------------------------------


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Take one settings file, or none."""
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG",
        help="a TOML file of settings (default: none, every setting at its default)",
    )


def _serve(arguments: argparse.Namespace) -> None:
    """
    Serve until a signal ends it.

    Raises:
        VolcacheError: The start failed; nothing is left listening or locked.
    """
    config = load_config(arguments.config, os.environ)
    setup_logging(config.log_level, config.log_file, config.log_format)
    # Here, so that --help and the offline tools do without a web server's parts.
    from volcache import wiring  # noqa: PLC0415

    try:
        wiring.run(config)
    except VolcacheError as error:
        # Who reads the file does not see standard error, where `main` says it.
        if config.log_file:
            _log.error("serving.failed error=%r", str(error))
        raise


def _serve_epilog() -> str:
    """List the settings, so that none has to be looked up elsewhere."""
    lines = [
        f"settings (in CONFIG, or as {ENVIRONMENT_PREFIX}<SETTING> in the environment):"
    ]
    for setting in SETTINGS:
        default = f'"{setting.default}"' if setting.default == "" else setting.default
        lines.append(f"  {setting.name:<15} {default!s:<11} {setting.text}")
    lines += [
        "",
        "examples:",
        "  volcache serve conf/volcache.toml",
        f"  {ENVIRONMENT_PREFIX}PORT=8000 volcache serve",
    ]
    return "\n".join(lines)


# --- stats -----------------------------------------------------------------------


def _add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the address of an instance, and in what form to tell."""
    parser.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:1234",
        metavar="URL",
        help="where the instance is (default: %(default)s)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="one report, then the end")
    form.add_argument("--json", action="store_true", help="all numbers once, as JSON")


def _stats(arguments: argparse.Namespace) -> None:
    """
    Tell the numbers of an instance, once or until interrupted.

    Raises:
        VolcacheError: The URL is none, or nobody answers there as volcache does.
    """
    # Here, as above: a server has no use for it.
    from volcache import live  # noqa: PLC0415

    if arguments.json:
        print(json.dumps(live.fetch(arguments.url), indent=2))
    elif arguments.once or not sys.stdout.isatty():
        print("\n".join(live.report(live.fetch(arguments.url))))
    else:
        live.refresh(
            arguments.url,
            lambda text: print(text, end="", flush=True),
            pause=time.sleep,
        )


_STATS_EPILOG: Final = """\
Rates are those since the report before; of a single report, those since the start.
Without a terminal, as in a pipe, there is a single report.

examples:
  volcache stats
  volcache stats http://10.0.0.7:1234 --json
"""


# --- Offline tools ----------------------------------------------------------------


def _add_directory(parser: argparse.ArgumentParser) -> None:
    """Take a mount point."""
    parser.add_argument(
        "directory", metavar="DIR", help="a mount point that nobody serves"
    )


def _say(line: str) -> None:
    """Print one line, as soon as it is known."""
    print(line)


def _say_if_heard(line: str) -> None:
    """Print one line of a work that goes on when nobody reads any more."""
    with suppress(BrokenPipeError):
        _say(line)


def _quiet() -> None:
    """Keep log lines to ourselves: a tool says in its own lines what it finds."""
    logging.getLogger("volcache").addHandler(logging.NullHandler())


def _check(arguments: argparse.Namespace) -> int:
    """Compare a mount point with its format; 1 if there is damage."""
    from volcache.tools.checking import check  # noqa: PLC0415

    _quiet()
    return EXIT_OK if check(arguments.directory, _say) else EXIT_FAILED


def _repair(arguments: argparse.Namespace) -> int:
    """Make index files and META.txt anew; 1 if one cannot be written."""
    from volcache.store.files import OsFileSystem  # noqa: PLC0415
    from volcache.tools.repairing import repair  # noqa: PLC0415

    _quiet()
    done = repair(arguments.directory, OsFileSystem(), _say)
    return EXIT_OK if done else EXIT_FAILED


def _add_dump_arguments(parser: argparse.ArgumentParser) -> None:
    """Take a mount point and the form of the lines."""
    _add_directory(parser)
    parser.add_argument("--keys", action="store_true", help="only keys that are live")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")


def _dump(arguments: argparse.Namespace) -> None:
    """Print a line for each record."""
    from volcache.tools.dumping import dump  # noqa: PLC0415

    _quiet()
    for row in dump(arguments.directory, time.time_ns() // 1_000_000):
        if arguments.keys:
            if row.state == "live":
                _say(json.dumps({"key": row.key}) if arguments.json else row.key)
        else:
            _say(row.json() if arguments.json else row.text())


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Take a mount point and a folder."""
    _add_directory(parser)
    parser.add_argument("target", metavar="TARGET", help="a new or an empty folder")


def _export(arguments: argparse.Namespace) -> int:
    """Write live values to files; 1 if some have none."""
    from volcache.tools.exporting import export  # noqa: PLC0415

    _quiet()
    now_ms = time.time_ns() // 1_000_000
    done = export(arguments.directory, arguments.target, now_ms, _say)
    return EXIT_OK if done else EXIT_FAILED


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Take a mount point, a folder and the settings of the server."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="a mount point that nobody serves; made where there is none",
    )
    parser.add_argument("source", metavar="SOURCE", help="a folder of files")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="CONFIG",
        help="the TOML file of settings the server has (default: none)",
    )


def _import(arguments: argparse.Namespace) -> int:
    """Store the files of a folder; 1 if not all of them are there at the end."""
    from volcache.tools.importing import Limits, import_folder  # noqa: PLC0415
    from volcache.tools.present import present_volumes  # noqa: PLC0415
    from volcache.web.lifetimes import Lifetimes  # noqa: PLC0415

    _quiet()
    present = present_volumes(arguments.directory)
    config = load_config(arguments.config, os.environ, present)
    lifetimes = Lifetimes(default_ttl=config.default_ttl, max_ttl=config.max_ttl)
    outcome = import_folder(
        arguments.directory,
        arguments.source,
        limits=Limits(
            volume_size=config.volume_size,
            volume_num=config.volume_num,
            max_value_size=config.max_value_size,
            max_key_size=config.max_key_size,
        ),
        expires_ms=lifetimes.expires_ms({}, time.time_ns() // 1_000_000),
        say=_say_if_heard,
    )
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if outcome.left_out or outcome.overflows else EXIT_OK


_IMPORT_EPILOG: Final = f"""\
A file is stored under its path below SOURCE, as by a PUT; a key that is there already
gets the new value. The limits are those of the server: give it the same settings, in
CONFIG or the environment. A mount point that is there keeps its volumes as they are
unless volume_size or volume_num is given. Ctrl-C ends it between two files.

exit code: 0 all of them, 1 some were left out or overwritten, 130 interrupted
examples:
  volcache import /srv/volcache/1234 /tmp/values
  {ENVIRONMENT_PREFIX}VOLUME_NUM=40 volcache import --config my.toml data /tmp/values
"""


COMMANDS: Final[tuple[Command, ...]] = (
    Command(
        name="serve",
        text="Serve one mount point over HTTP until SIGTERM or SIGINT.",
        epilog=_serve_epilog(),
        add_arguments=_add_serve_arguments,
        run=_serve,
    ),
    Command(
        name="stats",
        text="Show the numbers of a running instance, each second until Ctrl-C.",
        epilog=_STATS_EPILOG,
        add_arguments=_add_stats_arguments,
        run=_stats,
    ),
    Command(
        name="check",
        text="Look for damage in a mount point that nobody serves; change nothing.",
        epilog="exit code: 0 no damage, 1 damage\n"
        "example: volcache check /srv/volcache/1234",
        add_arguments=_add_directory,
        run=_check,
    ),
    Command(
        name="repair",
        text="Make index files and META.txt anew from the volumes, which stay as they are.",
        epilog="exit code: 0 done, 1 a file cannot be written and is listed\n"
        "example: volcache repair /srv/volcache/1234",
        add_arguments=_add_directory,
        run=_repair,
    ),
    Command(
        name="dump",
        text="List the records of a mount point that nobody serves, oldest volume first.",
        epilog="columns: volume, generation, offset, size, stored, expires (milliseconds"
        " since 1970), type,\n  state (live, superseded, expired, damaged, tombstone), key"
        " (percent-encoded)\n"
        "example: volcache dump /srv/volcache/1234 | head",
        add_arguments=_add_dump_arguments,
        run=_dump,
    ),
    Command(
        name="export",
        text="Write the live values of a mount point that nobody serves to files.",
        epilog="exit code: 0 all of them, 1 some were left out and are listed\n"
        "example: volcache export /srv/volcache/1234 /tmp/values",
        add_arguments=_add_export_arguments,
        run=_export,
    ),
    Command(
        name="import",
        text="Store the files of a folder in a mount point that nobody serves.",
        epilog=_IMPORT_EPILOG,
        add_arguments=_add_import_arguments,
        run=_import,
    ),
)
