"""`volcache cluster`: what an operator asks and tells all instances of a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from volcache.cli.cluster_actions import flush, purge
from volcache.cli.cluster_report import status, top
from volcache.cli.cluster_setup import check_config, render, run
from volcache.cli.command import Command, seconds
from volcache.cli.token import add_token_file
from volcache.fleet.remote import ACTION_TIMEOUT_SECONDS, TIMEOUT_SECONDS
from volcache.fleet.targets import INSTANCES_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

TOP_TIMEOUT_SECONDS: Final = 2.0
INTERVAL_SECONDS: Final = 2.0
_SECONDS_MAX: Final = 3600.0


def _add_instances(parser: argparse.ArgumentParser, timeout: float) -> None:
    parser.add_argument(
        "-i",
        "--instances",
        nargs="+",
        default=[INSTANCES_DEFAULT],
        metavar="SOURCE",
        help="nginx's list of instances, a file with an address in each line, an"
        " inventory (.toml), or addresses: HOST:PORT or URL (default:"
        f" {INSTANCES_DEFAULT})",
    )
    parser.add_argument(
        "--timeout",
        type=seconds(_SECONDS_MAX),
        default=timeout,
        metavar="SECONDS",
        help="for each instance; all are asked at the same time (default: %(default)g)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_action(parser: argparse.ArgumentParser) -> None:
    _add_instances(parser, ACTION_TIMEOUT_SECONDS)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="change nothing")
    add_token_file(parser)


def _add_inventory(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument("folder", metavar="DIR", help=folder)
    parser.add_argument(
        "-i",
        "--inventory",
        required=True,
        metavar="FILE",
        help="the machines, disks, ports and weights (TOML)",
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    subs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def sub(
        name: str, run: Callable[[argparse.Namespace], int], text: str, epilog: str = ""
    ) -> argparse.ArgumentParser:
        found = subs.add_parser(
            name,
            help=text,
            description=text,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.set_defaults(run_cluster=run)
        return found

    one = sub("status", status, "Show all instances, the worst first.", _STATUS)
    _add_instances(one, TIMEOUT_SECONDS)
    one.add_argument(
        "--problems", action="store_true", help="list only those that are not healthy"
    )
    _add_json(one)

    one = sub("top", top, "Show all instances again and again, until q or Ctrl-C.")
    _add_instances(one, TOP_TIMEOUT_SECONDS)
    one.add_argument(
        "--interval",
        type=seconds(_SECONDS_MAX),
        default=INTERVAL_SECONDS,
        metavar="SECONDS",
        help="between two reports (default: %(default)g)",
    )

    _add_action(sub("flush", flush, "Remove everything from all instances.", _ACTION))

    one = sub(
        "purge",
        purge,
        "Invalidate all keys with a prefix, on all instances.",
        _ACTION,
    )
    one.add_argument("prefix", metavar="PREFIX", help="what the keys begin with")
    _add_action(one)

    text = "Compare the instances with each other."
    one = sub("check-config", check_config, text, _CHECK)
    _add_instances(one, TIMEOUT_SECONDS)
    _add_json(one)

    one = sub(
        "render", render, "Write the files that an inventory stands for.", _RENDER
    )
    _add_inventory(one, "the folder to write; other files in it are not touched")
    one.add_argument(
        "--diff",
        action="store_true",
        help="change nothing; print what would change, and exit with 1 if anything would",
    )

    one = sub("run", run, "Run an inventory on this machine, for a trial.", _RUN)
    _add_inventory(one, "a folder for the mount points and logs; created if needed")
    one.add_argument(
        "--machine",
        action="append",
        metavar="NAME",
        help="only that one (default: all)",
    )
    one.add_argument(
        "--config", metavar="CONFIG", help="settings file of all instances"
    )


_STATUS: Final = """\
Rates, hit ratio and p99 (of GETs) are those since the start of an instance; "top" shows
those since its previous report. Lines are cut off at the width of the terminal, and are
complete in a pipe.

exit code: 0 all instances are healthy; 1 at least one is not; 2 a wrong argument or list
"""
_ACTION: Final = """\
Asks for confirmation. If some instances fail, the others continue.

exit code: 0 all instances have done it; 1 at least one has not; 2 a wrong argument or list,
no token, or not confirmed: no instance was changed
"""
_CHECK: Final = """\
Finds instances that do not answer, that are in the list twice, whose version or settings
differ from those of the others, whose weight does not fit their capacity, and whose clock
is more than 3 seconds off.

exit code: 0 nothing was found; 1 something was; 2 a wrong argument or list
"""
_RENDER: Final = """\
Writes nginx's list of instances, targets for Prometheus, and for each machine files for
systemd and a script that installs them and enables the instances. Files that are right
are not written again; those of a machine that has left the inventory are removed.

exit code: 0 done; 1 a file cannot be written, or with --diff something would change;
2 a wrong argument or inventory
example:
  volcache cluster render rendered --inventory inventory.toml --diff
"""
_RUN: Final = """\
All instances listen on the addresses of the inventory, which this machine needs to have.
Their files are in DIR/MACHINE/PORT, and their logs in DIR/MACHINE/PORT.log.
"""
_EPILOG: Final = """\
examples:
  volcache cluster status
  volcache cluster top --instances inventory.toml
  volcache cluster purge tiles/12/ --instances http://10.0.0.7:1234 http://10.0.0.8:1234
"""


def _run(arguments: argparse.Namespace) -> int:
    chosen: Callable[[argparse.Namespace], int] = arguments.run_cluster
    return chosen(arguments)


COMMAND: Final = Command(
    name="cluster",
    text="Show, compare, change or set up all instances of a cluster.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
