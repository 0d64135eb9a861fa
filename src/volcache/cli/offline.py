"""
The commands for a mount point that nobody serves: each prints what its tool says.

What a tool needs is imported when it runs, so that --help and the server do without.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.cli.command import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Command
from volcache.config import ENVIRONMENT_PREFIX, load_config

if TYPE_CHECKING:
    import argparse

_GOES_ON: Final = """\
When nobody reads its lines any more, as after `| head`, it goes on to its end all the
same, and the exit code is that of the whole work."""


def _add_directory(parser: argparse.ArgumentParser) -> None:
    """Take a mount point."""
    parser.add_argument(
        "directory", metavar="DIR", help="a mount point that nobody serves"
    )


def _say(line: str) -> None:
    """Print one line of a work that goes on when nobody reads any more."""
    with suppress(BrokenPipeError):
        print(line)


def _quiet() -> None:
    """Keep log lines to ourselves: a tool says in its own lines what it finds."""
    logging.getLogger("volcache").addHandler(logging.NullHandler())


def _check(arguments: argparse.Namespace) -> int:
    """Compare a mount point with its format; 1 if there is damage."""
    from volcache.cli.check import check  # noqa: PLC0415

    _quiet()
    return EXIT_OK if check(arguments.directory, _say) else EXIT_FAILED


def _repair(arguments: argparse.Namespace) -> int:
    """Make index files and META.txt anew; 1 if one cannot be written."""
    from volcache.cli.repair import repair  # noqa: PLC0415
    from volcache.store.files import OsFileSystem  # noqa: PLC0415

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
    from volcache.cli.dump import dump  # noqa: PLC0415

    _quiet()
    for row in dump(arguments.directory, time.time_ns() // 1_000_000):
        if arguments.keys:
            if row.state == "live":
                print(json.dumps({"key": row.key}) if arguments.json else row.key)
        else:
            print(row.json() if arguments.json else row.text())


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Take a mount point and a folder."""
    _add_directory(parser)
    parser.add_argument("target", metavar="TARGET", help="a new or an empty folder")


def _export(arguments: argparse.Namespace) -> int:
    """Write live values to files; 1 if some have none."""
    from volcache.cli.export import export  # noqa: PLC0415

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
    from volcache.cli.import_ import (  # noqa: PLC0415
        Limits,
        import_folder,
        present_volumes,
    )
    from volcache.http.ttl import TtlPolicy  # noqa: PLC0415

    _quiet()
    present = present_volumes(arguments.directory)
    config = load_config(arguments.config, os.environ, present)
    lifetimes = TtlPolicy(default_ttl=config.default_ttl, max_ttl=config.max_ttl)
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
        say=_say,
    )
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if outcome.left_out or outcome.overflows else EXIT_OK


_IMPORT_EPILOG: Final = f"""\
A file is stored under its path below SOURCE, as by a PUT; a key that is there already
gets the new value. The limits are those of the server: give it the same settings, in
CONFIG or the environment. A mount point that is there keeps its volumes as they are
unless volume_size or volume_num is given. Ctrl-C ends it between two files.
{_GOES_ON}

exit code: 0 all of them, 1 some were left out or overwritten, 130 interrupted
examples:
  volcache import /srv/volcache/1234 /tmp/values
  {ENVIRONMENT_PREFIX}VOLUME_NUM=40 volcache import --config my.toml data /tmp/values
"""

CHECK: Final = Command(
    name="check",
    text="Look for damage in a mount point that nobody serves; change nothing.",
    epilog=f"{_GOES_ON}\n\n"
    "exit code: 0 no damage, 1 damage\n"
    "example: volcache check /srv/volcache/1234",
    add_arguments=_add_directory,
    run=_check,
)

REPAIR: Final = Command(
    name="repair",
    text="Make index files and META.txt anew from the volumes, which stay as they are.",
    epilog=f"{_GOES_ON}\n\n"
    "exit code: 0 done, 1 a file cannot be written and is listed\n"
    "example: volcache repair /srv/volcache/1234",
    add_arguments=_add_directory,
    run=_repair,
)

DUMP: Final = Command(
    name="dump",
    text="List the records of a mount point that nobody serves, oldest volume first.",
    epilog="columns: volume, generation, offset, size, stored, expires (milliseconds"
    " since 1970), type,\n  state (live, superseded, expired, damaged, tombstone), key"
    " (percent-encoded)\n\n"
    "exit code: 0, also when nobody reads all of the lines\n"
    "example: volcache dump /srv/volcache/1234 | head",
    add_arguments=_add_dump_arguments,
    run=_dump,
)

EXPORT: Final = Command(
    name="export",
    text="Write the live values of a mount point that nobody serves to files.",
    epilog=f"{_GOES_ON}\n\n"
    "exit code: 0 all of them, 1 some were left out and are listed\n"
    "example: volcache export /srv/volcache/1234 /tmp/values",
    add_arguments=_add_export_arguments,
    run=_export,
)

IMPORT: Final = Command(
    name="import",
    text="Store the files of a folder in a mount point that nobody serves.",
    epilog=_IMPORT_EPILOG,
    add_arguments=_add_import_arguments,
    run=_import,
)
