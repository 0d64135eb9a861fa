"""`volcache stats`: fetches the numbers of a running instance and prints them."""

from __future__ import annotations

import json
import sys
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from volcache.cli.command import Command
from volcache.errors import ConfigError, InstanceError
from volcache.text import span

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from http.client import HTTPConnection

TIMEOUT_SECONDS: Final = 5.0
RESPONSE_BYTES_MAX: Final = 64 << 20
REFRESH_SECONDS: Final = 1.0
_LINE_BYTES_MAX: Final = 400
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_SCREEN: Final = "\x1b[J"

Stats = dict[str, Any]


def _add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the address of the instance and the output format."""
    parser.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:1234",
        metavar="URL",
        help="address of the instance (default: %(default)s)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print one report and exit")
    form.add_argument(
        "--json", action="store_true", help="print all numbers once, as JSON"
    )


def _stats(arguments: argparse.Namespace) -> None:
    """
    Print the numbers of an instance, once or until interrupted.

    Raises:
        VolcacheError: The URL is invalid, or there is no volcache instance.
    """
    # Imported here, so that other commands do not load it.
    from volcache.monitoring.terminal import report  # noqa: PLC0415

    if arguments.json:
        print(json.dumps(fetch(arguments.url), indent=2))
    elif arguments.once or not sys.stdout.isatty():
        print("\n".join(report(fetch(arguments.url))))
    else:
        refresh(
            arguments.url,
            report,
            lambda text: print(text, end="", flush=True),
            pause=time.sleep,
        )


def fetch(url: str) -> Stats:
    """
    Return the JSON of `/-/stats` of an instance, decoded.

    Args:
        url: Its address, such as `http://127.0.0.1:1234`.

    Raises:
        ConfigError: The URL is not one of http or https.
        InstanceError: There is no response, or not one of a volcache instance.
    """
    # Imported here, so that a server does not load an HTTP client.
    from http.client import HTTPException  # noqa: PLC0415

    connection, path = connect(url, TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{path}/-/stats")
        response = connection.getresponse()
        body = response.read(RESPONSE_BYTES_MAX)
        if response.status != HTTPStatus.OK:
            reason = f"/-/stats is answered with {response.status}"
            if response.status == HTTPStatus.MISDIRECTED_REQUEST:
                reason += f": {_printable(body)}"
            raise InstanceError(url, reason)
        stats = json.loads(body)
        _ = stats["store"]["keys"], stats["requests"]["total"]
    except OSError as error:
        raise InstanceError(url, error.strerror or str(error)) from error
    except (HTTPException, ValueError, LookupError, TypeError) as error:
        raise InstanceError(url, "the response is not from volcache") from error
    else:
        return dict(stats)
    finally:
        connection.close()


def _printable(line: bytes) -> str:
    """Return what an instance says about a name it does not know, on one line."""
    text = line[:_LINE_BYTES_MAX].decode(errors="replace").strip()
    return "".join(character for character in text if character.isprintable())


def connect(url: str, timeout: float) -> tuple[HTTPConnection, str]:
    """
    Return a connection, not opened yet, and what paths begin with.

    Args:
        url: Of the instance.
        timeout: Of each wait, seconds.

    Raises:
        ConfigError: The URL is not one of http or https.
    """
    from http.client import HTTPConnection, HTTPSConnection  # noqa: PLC0415

    kinds = {"http": HTTPConnection, "https": HTTPSConnection}
    where = urlsplit(url)
    try:
        host, port = where.hostname, where.port
    except ValueError:
        host = port = None
    if where.scheme not in kinds or not host:
        raise ConfigError(f"{url}: not a URL such as http://127.0.0.1:1234")
    return kinds[where.scheme](host, port, timeout=timeout), where.path.rstrip("/")


def refresh(
    url: str,
    report: Callable[[Stats, Stats | None], list[str]],
    write: Callable[[str], object],
    *,
    pause: Callable[[float], None],
) -> None:
    """
    Write the report of an instance over the last one, until interrupted.

    An instance that stops responding later is reported, and requested again.

    Args:
        url: As for `fetch`.
        report: Makes lines of the numbers and those before.
        write: Takes text with escape sequences of a terminal.
        pause: Waits for a number of seconds.

    Raises:
        ConfigError, InstanceError: As `fetch`, at the first request.
    """
    before: Stats | None = None
    stats = fetch(url)
    lines = report(stats, None)
    while True:
        ended = [f"{line}{_TO_END_OF_LINE}\n" for line in lines]
        write("".join([_HOME, *ended, _TO_END_OF_SCREEN]))
        pause(REFRESH_SECONDS)
        try:
            before, stats = stats, fetch(url)
            lines = report(stats, before)
        except InstanceError as error:
            lines = [str(error), f"trying again every {span(REFRESH_SECONDS)}"]


_STATS_EPILOG: Final = """\
Rates are those since the previous report; in a single report, those since the start.
If standard output is not a terminal, a single report is printed.

examples:
  volcache stats
  volcache stats http://10.0.0.7:1234 --json
"""

COMMAND: Final = Command(
    name="stats",
    text="Show the numbers of a running instance, every second until Ctrl-C.",
    epilog=_STATS_EPILOG,
    add_arguments=_add_stats_arguments,
    run=_stats,
)
