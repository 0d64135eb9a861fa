"""`volcache get`: fetches the value of a key from an instance or a cluster."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from volcache.cli.client import (
    KEYS,
    READ_TOKEN,
    Remote,
    add_remote,
    path_of,
    remote_of,
    require_success,
)
from volcache.cli.command import FILES, Command, FileError, OutputError, completing
from volcache.cli.signals import exit_on_sigterm
from volcache.fleet.remote import Exchange

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

_STANDARD: Final = "-"
_MODE: Final = 0o666  # Less what the umask forbids.


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
        try:
            # The pieces raise no `OSError`.
            _write(file, exchange.pieces())
        except BrokenPipeError:
            raise
        except OSError as error:
            if file == _STANDARD:
                raise OutputError(error) from error
            raise FileError(file, "written", error) from error


def _write(file: str, pieces: Iterable[bytes]) -> None:
    if file == _STANDARD:
        _copy(pieces, sys.stdout.buffer)
        return
    # Not a link is replaced, but what it names.
    path = Path(os.path.realpath(file))
    mode = _mode(path)
    if mode is None:
        with path.open("wb", buffering=0) as special:
            _copy(pieces, special)
    else:
        _replace(path, mode, pieces)


def _mode(path: Path) -> int | None:
    """Return the mode that a file gets; None: it is a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return _MODE & ~umask
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) else None


def _replace(path: Path, mode: int, pieces: Iterable[bytes]) -> None:
    """Write a new file, and give it its name when it is complete."""
    number, name = tempfile.mkstemp(prefix=".volcache-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(number, mode)
            _copy(pieces, file)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _copy(pieces: Iterable[bytes], file: IO[bytes]) -> None:
    for piece in pieces:
        left = memoryview(piece)
        while left:  # A device may take less.
            left = left[file.write(left) :]
    file.flush()


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key of the value")
    add_remote(parser, READ_TOKEN)
    action = parser.add_argument(
        *("-o", "--output"),
        default=_STANDARD,
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
