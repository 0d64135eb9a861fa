"""`volcache get`: fetches the value of a key from an instance or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.cli.client import (
    KEYS,
    READ_TOKEN,
    Remote,
    add_remote,
    path_of,
    remote_of,
    require_success,
)
from volcache.cli.command import FILES, Command, completing
from volcache.cli.signals import exit_on_sigterm
from volcache.cli.streams import STANDARD, writing
from volcache.fleet.remote import Exchange

if TYPE_CHECKING:
    import argparse


def get(remote: Remote, text: str, path: str, file: str) -> None:
    """
    Write a value to a file or to standard output.

    Args:
        remote: Where it is.
        text: The key, for errors.
        path: That of the key.
        file: Its name; `-`: standard output.

    Raises:
        InstanceError: There is no value, or not all of it arrived. A regular file is as
            it was before.
        FileError, OutputError: It cannot be written. A regular file is as before.
        BrokenPipeError: The reader of the output went away.
    """
    with Exchange(
        remote.url, path, token=remote.token, timeout=remote.timeout
    ) as exchange:
        require_success(exchange, remote.url, text)
        with writing(file) as target:
            # The pieces raise no `OSError`.
            for piece in exchange.pieces():
                target.write(piece)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key of the value")
    add_remote(parser, READ_TOKEN)
    action = parser.add_argument(
        *("-o", "--output"),
        default=STANDARD,
        metavar="FILE",
        help="write to this file (default: -, standard output)",
    )
    completing(action, FILES)


def _run(arguments: argparse.Namespace) -> None:
    path = path_of(arguments.key, is_encoded=arguments.encoded)
    remote = remote_of(arguments, READ_TOKEN)
    with exit_on_sigterm():
        get(remote, arguments.key, path, arguments.output)


_EPILOG: Final = f"""\
{KEYS}
The bytes are those that were stored, compressed ones as well. FILE gets its name when all
of it has arrived; after a miss or an error it is as it was before.

exit code: 0 done; 1 there is no value, no answer, or FILE cannot be written; 2 a wrong
  argument, or an invalid KEY
examples:
  volcache get greeting
  volcache get tiles/12/2200/1343.png -o tile.png http://cache.example:8080
"""

COMMAND: Final = Command(
    name="get",
    text="Fetch the value of a key from an instance or a cluster.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
