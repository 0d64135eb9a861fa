"""`volcache stats`: the numbers of a running instance, printed."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Final

from volcache.cli.command import Command

if TYPE_CHECKING:
    import argparse


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
    # Here, so that --help and a server do without an HTTP client.
    from volcache.monitoring import terminal as live  # noqa: PLC0415

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

COMMAND: Final = Command(
    name="stats",
    text="Show the numbers of a running instance, each second until Ctrl-C.",
    epilog=_STATS_EPILOG,
    add_arguments=_add_stats_arguments,
    run=_stats,
)
