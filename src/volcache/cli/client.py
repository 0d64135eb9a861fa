"""
What the commands for one key share: the address, the key, the token and the answer.

They work with an instance and with nginx in front of a cluster, which knows the instance
of each key.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from volcache.cli.command import seconds
from volcache.cli.token import add_token_file, token_of
from volcache.errors import BadKeyError, ConfigError, InstanceError
from volcache.fleet.remote import InstanceAnswer, url_of
from volcache.keys import parse_key

if TYPE_CHECKING:
    import argparse

    from volcache.fleet.remote import Exchange

DEFAULT_TARGET: Final = "127.0.0.1:1234"
READ_TOKEN: Final = "VOLCACHE_READ_TOKEN"  # noqa: S105 - A name.
WRITE_TOKEN: Final = "VOLCACHE_WRITE_TOKEN"  # noqa: S105 - A name.
TARGET_HELP: Final = "an instance, or nginx: HOST:PORT or a URL"
SECONDS_MAX: Final = 1e6
_KEY_BYTES_MAX: Final = 65535  # Of a record; the limit of an instance may be lower.

# For the epilogs.
KEYS: Final = """\
KEY is written as it is: the command percent-encodes it. It has no slash at its beginning,
unlike the path of a URL. With --encoded it is percent-encoded already, as "volcache dump"
prints it. TARGET may be nginx: it asks the instance of the key."""


class Remote(NamedTuple):
    """Where requests are sent."""

    url: str
    token: str
    timeout: float


def add_remote(
    parser: argparse.ArgumentParser, variable: str, *, is_positional: bool = True
) -> None:
    """
    Add the arguments for `remote_of`, behind those for the key.

    Args:
        parser: Of the command.
        variable: The environment variable that has the token.
        is_positional: Whether TARGET may also be the last argument.
    """
    text = f"{TARGET_HELP} (default: {DEFAULT_TARGET})"
    if is_positional:
        parser.add_argument("target", nargs="?", metavar="TARGET", help=text)
        text = "the same"
    parser.add_argument(
        *("-t", "--target"), dest="target_option", metavar="TARGET", help=text
    )
    parser.add_argument(
        "--encoded", action="store_true", help="the key is percent-encoded already"
    )
    add_token_file(parser, variable)
    parser.add_argument(
        "--timeout",
        type=seconds(SECONDS_MAX),
        default=10.0,
        metavar="S",
        help="seconds to wait for the connection and for each answer (default: 10)",
    )


def remote_of(arguments: argparse.Namespace, variable: str) -> Remote:
    """
    Return where requests are sent, and with which token.

    Raises:
        ConfigError: There are two addresses, or what is given cannot be used.
    """
    first, second = getattr(arguments, "target", None), arguments.target_option
    if first and second:
        raise ConfigError(f"two targets, {first} and {second}; allowed is one")
    url = url_of(first or second or DEFAULT_TARGET)
    return Remote(url, token_of(arguments.token_file, variable), arguments.timeout)


def path_of(text: str, *, is_encoded: bool) -> str:
    """
    Return the path of a key in a request.

    Args:
        text: The key, as an argument of the command.
        is_encoded: Whether it is percent-encoded.

    Raises:
        BadKeyError, KeyTooLongError: It is not a key.
    """
    key = os.fsencode(text)
    if is_encoded:
        key = unquote_to_bytes(key)
    if key.startswith(b"/"):
        raise BadKeyError(
            f"bad key {shown(text)}: it begins with a slash; the key of this path is"
            f" {shown(text.lstrip('/'))}"
        )
    parse_key(f"/{key.decode('latin-1')}", _KEY_BYTES_MAX)
    return f"/{quote(key, safe='/')}"


def require_success(exchange: Exchange, url: str, text: str) -> None:
    """
    Raise an error for an answer that is no success.

    Args:
        exchange: The answer.
        url: Of the instance.
        text: The key, as an argument of the command.

    Raises:
        InstanceError: With what the instance has answered.
    """
    status = exchange.status
    if status in {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT}:
        return
    if status == HTTPStatus.NOT_FOUND:
        raise InstanceError(shown(text), "not found")
    line = InstanceAnswer(status, next(exchange.pieces(), b"")).line
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        line += "; give the token by --token-file or in the environment"
    raise InstanceError(url, f"{shown(text)}: {status} {line}")


def shown(text: str) -> str:
    """Return a key for a line of an error: without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)
