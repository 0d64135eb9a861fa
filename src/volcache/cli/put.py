"""`volcache put`: stores a file or standard input under a key."""

from __future__ import annotations

from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Final

from volcache.cli.client import (
    KEYS,
    WRITE_TOKEN,
    Remote,
    add_remote,
    path_of,
    remote_of,
    require_success,
)
from volcache.cli.command import FILES, Command, FileError, completing
from volcache.cli.streams import STANDARD, reading, source_name
from volcache.errors import ConfigError
from volcache.fleet.remote import Exchange

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

_PIECE_BYTES: Final = 1 << 16
_AT_ONCE_BYTES: Final = 1 << 20  # What is longer is sent while it is read.


def put(
    remote: Remote, text: str, path: str, file: str, headers: Mapping[str, str]
) -> None:
    """
    Store what a file has, or standard input.

    Args:
        remote: Where.
        text: The key, for errors.
        path: That of the key.
        file: Its name; `-`: standard input.
        headers: Of the request.

    Raises:
        FileError: It cannot be read; the value is as it was before.
        InstanceError: It is not stored, or that is not known: there was no answer.
    """
    name = source_name(file)
    with ExitStack() as stack:
        opened = stack.enter_context(reading(file))
        pieces = _pieces(opened, name)
        body = _beginning(pieces)
        with Exchange(
            remote.url,
            path,
            method="PUT",
            token=remote.token,
            headers=headers,
            body=body if isinstance(body, bytes) else _joined(body, pieces),
            timeout=remote.timeout,
        ) as exchange:
            require_success(exchange, remote.url, text)


def _pieces(file: IO[bytes], name: str) -> Iterator[bytes]:
    while True:
        try:
            piece = file.read(_PIECE_BYTES)
        except OSError as error:
            raise FileError(name, "read", error) from error
        if not piece:
            return
        yield piece


def _beginning(pieces: Iterator[bytes]) -> bytes | list[bytes]:
    """Return all bytes; or, if they are many, the first pieces."""
    found: list[bytes] = []
    length = 0
    for piece in pieces:
        found.append(piece)
        length += len(piece)
        if length > _AT_ONCE_BYTES:
            return found
    return b"".join(found)


def _joined(first: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from first
    yield from rest


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key of the value")
    file = parser.add_argument(
        "file",
        nargs="?",
        default=STANDARD,
        metavar="FILE",
        help="what is stored (default: -, standard input)",
    )
    completing(file, FILES)
    add_remote(parser, WRITE_TOKEN)
    parser.add_argument(
        "--content-type", metavar="TYPE", help="stored with the value, as image/png"
    )
    parser.add_argument(
        "--content-encoding", metavar="CODING", help="stored with the value, as gzip"
    )
    parser.add_argument(
        "--max-age",
        type=_whole_seconds,
        metavar="S",
        help="the time to live in seconds (default: the setting default_ttl)",
    )
    parser.add_argument(
        "--cache-control", metavar="TEXT", help="further directives, as immutable"
    )
    parser.add_argument(
        "--if-absent",
        action="store_true",
        help="fail (exit code 1) if there is a value, and keep it",
    )


def _whole_seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError
    return int(text)


_whole_seconds.__name__ = "number of seconds"  # In an error of argparse.


def _headers(arguments: argparse.Namespace) -> dict[str, str]:
    """
    Return the headers of the request.

    Raises:
        ConfigError: One cannot be sent.
    """
    age = arguments.max_age
    directives = [f"max-age={age}"] if age else []
    if arguments.cache_control:
        directives.append(arguments.cache_control)
    found = {
        "Content-Type": arguments.content_type,
        "Content-Encoding": arguments.content_encoding,
        "Cache-Control": ", ".join(directives),
        "If-None-Match": "*" if arguments.if_absent else "",
    }
    for name, value in found.items():
        if value and not (value.isascii() and value.isprintable()):
            raise ConfigError(f"{name}: {value!r}; allowed is printable ASCII text")
    return {name: value for name, value in found.items() if value}


def _run(arguments: argparse.Namespace) -> None:
    path = path_of(arguments.key, is_encoded=arguments.encoded)
    remote, headers = remote_of(arguments, WRITE_TOKEN), _headers(arguments)
    put(remote, arguments.key, path, arguments.file, headers)


_EPILOG: Final = f"""\
{KEYS}
Without --content-type, the type is guessed from the end of the key at each GET. Nothing is
printed. If there is no answer, the value may be stored or not.

exit code: 0 stored; 1 refused, no answer, or FILE cannot be read; 2 a wrong argument, or
  an invalid KEY
examples:
  echo hello | volcache put greeting
  volcache put tiles/12/2200/1343.png tile.png --content-type image/png --max-age 3600
"""

COMMAND: Final = Command(
    name="put",
    text="Store a file or standard input under a key.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
