"""`volcache rm`: deletes keys of an instance or a cluster."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from volcache.cli.client import (
    KEYS,
    WRITE_TOKEN,
    Remote,
    add_remote,
    path_of,
    remote_of,
    require_success,
)
from volcache.cli.command import EXIT_FAILED, EXIT_OK, Command, complain
from volcache.errors import InstanceError
from volcache.fleet.remote import Exchange

if TYPE_CHECKING:
    import argparse


def rm(remote: Remote, text: str, path: str, *, is_forced: bool) -> None:
    """
    Delete a key.

    Args:
        remote: Where.
        text: The key, for errors.
        path: That of the key.
        is_forced: It need not be there.

    Raises:
        InstanceError: It was not there, or is not deleted, or that is not known.
    """
    with Exchange(
        remote.url, path, method="DELETE", token=remote.token, timeout=remote.timeout
    ) as exchange:
        if is_forced and exchange.status == HTTPStatus.NOT_FOUND:
            return
        require_success(exchange, remote.url, text)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a key to delete")
    add_remote(parser, WRITE_TOKEN, is_positional=False)
    parser.add_argument(
        *("-f", "--force"),
        action="store_true",
        help="a key without a value is no error",
    )


def _run(arguments: argparse.Namespace) -> int:
    paths = [
        (text, path_of(text, is_encoded=arguments.encoded)) for text in arguments.keys
    ]
    remote = remote_of(arguments, WRITE_TOKEN)
    code = EXIT_OK
    for text, path in paths:
        try:
            rm(remote, text, path, is_forced=arguments.force)
        except InstanceError as error:
            complain(str(error))
            code = EXIT_FAILED
    return code


_EPILOG: Final = f"""\
{KEYS}
A key that cannot be deleted does not keep the others from it. Nothing is printed. All keys
with a prefix: "volcache purge".

exit code: 0 all deleted; 1 a key was not there, was refused, or there was no answer; 2 a
  wrong argument, or an invalid KEY: nothing was deleted
examples:
  volcache rm greeting
  volcache rm --force --target http://cache.example:8080 a/1 a/2
"""

COMMAND: Final = Command(
    name="rm",
    text="Delete keys of an instance or a cluster.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
