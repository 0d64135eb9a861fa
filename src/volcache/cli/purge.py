"""`volcache purge`: asks instances to forget everything stored under a prefix."""

from __future__ import annotations

import os
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from volcache.cli.command import (
    COMPLETES,
    EXIT_FAILED,
    EXIT_OK,
    Command,
    output,
)
from volcache.cli.stats import connect
from volcache.errors import ConfigError, InstanceError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

# An instance answers when the purge is on its disk.
TIMEOUT_SECONDS: Final = 60.0
_ANSWER_BYTES_MAX: Final = 4096
_VARIABLE: Final = "VOLCACHE_ADMIN_TOKEN"


def purge(
    prefix: bytes,
    urls: list[str],
    token: str,
    report: Callable[[str], None],
    *,
    is_dry: bool,
) -> bool:
    """
    Purge a prefix on each instance, one after the other.

    Args:
        prefix: Of keys.
        urls: Addresses of the instances.
        token: Their `admin_token`.
        report: Called with one line for each instance.
        is_dry: Change nothing, and report how long the purge would stay in the list.

    Returns:
        Whether all instances have done it.

    Raises:
        ConfigError: A URL is not one of http or https; no instance was asked.
    """
    for url in urls:
        connect(url, TIMEOUT_SECONDS)
    query = f"prefix={quote(prefix, safe='/')}{'&dry-run' if is_dry else ''}"
    done = 0
    for url in urls:
        try:
            answer = _post(url, query, token)
        except InstanceError as error:
            report(f"failed: {error}")
        else:
            done += 1
            report(f"{url}: {answer}")
    return done == len(urls)


def _post(url: str, query: str, token: str) -> str:
    """
    Return the text that an instance answers.

    Raises:
        InstanceError: It does not answer, or refuses.
    """
    # Imported here, so that a server does not load an HTTP client.
    from http.client import HTTPException  # noqa: PLC0415

    connection, path = connect(url, TIMEOUT_SECONDS)
    try:
        connection.request(
            "POST",
            f"{path}/-/purge?{query}",
            body=b"",
            headers={"Authorization": f"Bearer {token}".encode()},
        )
        response = connection.getresponse()
        text = response.read(_ANSWER_BYTES_MAX).decode("utf-8", "replace")
    except OSError as error:
        raise InstanceError(url, error.strerror or str(error)) from error
    except (HTTPException, ValueError) as error:
        raise InstanceError(url, "the response is not from volcache") from error
    finally:
        connection.close()
    # Whatever it is that answers, it gets one line without control characters.
    line = "".join(c if c.isprintable() else " " for c in text.split("\n")[0])
    if response.status != HTTPStatus.OK:
        raise InstanceError(url, f"{response.status} {line}")
    return line


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="what the keys begin with")
    parser.add_argument(
        "urls",
        nargs="*",
        default=["http://127.0.0.1:1234"],
        metavar="URL",
        help="address of an instance; of a cluster, give all (default: %(default)s)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing; tell how long the purge would stay in the list",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"has the admin_token in its first line (default: ${_VARIABLE})",
    )


def _token(file: str | None) -> str:
    """
    Return the token.

    Raises:
        ConfigError: There is none, or it cannot be sent.
    """
    token, source = os.environ.get(_VARIABLE, ""), _VARIABLE
    if file is not None:
        source = file
        try:
            token = Path(file).read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise ConfigError(f"{file}: cannot be read: {reason}") from error
    if not token:
        raise ConfigError(
            f"no token: set {_VARIABLE} to the admin_token of the instances, or give"
            " --token-file"
        )
    if not token.isprintable():
        raise ConfigError(f"{source}: the token has control characters")
    return token


def _run(arguments: argparse.Namespace) -> int:
    token = _token(arguments.token_file)
    prefix = os.fsencode(arguments.prefix)
    with output() as report:
        is_complete = purge(
            prefix, arguments.urls, token, report, is_dry=arguments.dry_run
        )
        return EXIT_OK if is_complete else EXIT_FAILED


_EPILOG: Final = f"""\
Everything stored so far under PREFIX becomes a miss; what is stored later is not affected.
PREFIX is compared byte by byte: "tiles/1" covers "tiles/12/a" as well. A key belongs to one
instance of a cluster, and its prefix to all of them: give the addresses of all instances,
not that of nginx. Each line is the answer of one instance. If one fails, run the command
again: a purge that is repeated replaces the one before.
{COMPLETES}

exit code: 0 all instances have done it; 1 at least one has not; 2 a wrong argument, no
token, or a URL that is none: no instance was asked
examples:
  volcache purge tiles/12/ --dry-run
  volcache purge tiles/12/ --token-file token http://10.0.0.7:1234 http://10.0.0.8:1234
"""

COMMAND: Final = Command(
    name="purge",
    text="Let everything stored under a prefix be a miss, on one or more instances.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
