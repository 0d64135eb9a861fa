"""`volcache purge`: asks instances to forget everything stored under a prefix."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from volcache.cli.command import (
    COMPLETES,
    EXIT_FAILED,
    EXIT_OK,
    Command,
    output,
)
from volcache.cli.token import add_token_file, read_token
from volcache.errors import InstanceError
from volcache.fleet.remote import act, each, url_of

if TYPE_CHECKING:
    import argparse

_DEFAULT_URL: Final = "http://127.0.0.1:1234"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="what the keys begin with")
    parser.add_argument(
        "urls",
        nargs="*",
        default=[_DEFAULT_URL],
        metavar="URL",
        help="address of an instance; of a cluster, give all"
        f" (default: {_DEFAULT_URL})",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing; tell how long the purge would stay in the list",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_token_file(parser)


def _run(arguments: argparse.Namespace) -> int:
    token = read_token(arguments.token_file)
    prefix = quote(os.fsencode(arguments.prefix), safe="/")
    path = f"/-/purge?prefix={prefix}{'&dry-run' if arguments.dry_run else ''}"
    addresses = [url_of(url) for url in arguments.urls]
    rows: list[dict[str, object]] = []
    with output() as report:
        for url, answer in each(addresses, lambda url: act(url, path, token)):
            is_done = not isinstance(answer, InstanceError)
            text = answer.reason if isinstance(answer, InstanceError) else answer
            rows.append({"url": url, "done": is_done, "answer": text})
            if not arguments.json:
                report(f"{'' if is_done else 'failed: '}{url}: {text}")
        if arguments.json:
            report(json.dumps({"prefix": arguments.prefix, "instances": rows}))
    return EXIT_OK if all(row["done"] for row in rows) else EXIT_FAILED


_EPILOG: Final = f"""\
Everything stored so far under PREFIX becomes a miss; what is stored later is not affected.
PREFIX is compared byte by byte: "tiles/1" covers "tiles/12/a" as well. A key belongs to one
instance of a cluster, and its prefix to all of them: give the addresses of all instances,
not that of nginx. Each line is the answer of one instance. If one fails, run the command
again: a purge that is repeated replaces the one before.
{COMPLETES}

exit code: 0 all instances have done it; 1 at least one has not; 2 a wrong argument, no
token, or an invalid URL: no instance was asked
examples:
  volcache purge tiles/12/ --dry-run
  volcache purge tiles/12/ --token-file token http://10.0.0.7:1234 http://10.0.0.8:1234
"""

COMMAND: Final = Command(
    name="purge",
    text="Invalidate all keys with a prefix, on one or more instances.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
