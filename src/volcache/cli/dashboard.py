"""`volcache dashboard`: serves one page for all instances of a cluster."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from volcache.cli.cluster import add_targets
from volcache.cli.command import EXIT_OK, Command, output, seconds
from volcache.text import counted

if TYPE_CHECKING:
    import argparse

_INTERVAL_MIN: Final = 1.0
_INTERVAL_MAX: Final = 3600.0
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the instances and where to listen."""
    add_targets(parser)
    parser.add_argument(
        "--listen",
        default="127.0.0.1:8090",
        metavar="ADDRESS:PORT",
        help="where the page is; port 0 picks a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which the page is opened, besides localhost and addresses;"
        " may be repeated",
    )
    parser.add_argument(
        "--interval",
        type=seconds(_INTERVAL_MAX, least=_INTERVAL_MIN),
        default=5.0,
        metavar="SECONDS",
        help="time between two polls of an instance (default: %(default)g)",
    )


def _dashboard(arguments: argparse.Namespace) -> int:
    """
    Serve until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: The list of instances or an argument is wrong.
        ListenError: The address cannot be listened on.
    """
    # Imported here, so that `volcache --help` does not load it.
    from volcache.fleet.dashboard import (  # noqa: PLC0415
        Dashboard,
        DashboardServer,
        parse_listen,
        run,
    )
    from volcache.fleet.poller import Poller  # noqa: PLC0415

    host, port = parse_listen(arguments.listen)
    poller = Poller(arguments.targets, interval=arguments.interval)
    names = [*arguments.host, host]
    server = DashboardServer(Dashboard(poller, hosts=names), host, port)
    # Blocked in all threads, and waited for: a handler that sets an event may run while
    # this thread holds the lock of the event.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    count = len(poller.overview()["instances"])
    with output() as report:
        report(f"dashboard of {counted(count, 'instance', ',')} at {server.url}")
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    run(poller, server, lambda: signal.sigwait(_STOPS))
    return EXIT_OK


_EPILOG: Final = """\
The page shows all instances, the worst first, and the page of each. The browser needs no
access to the instances. Everyone who reaches the address can read the figures; nothing
can be changed. A file with instances is read again when it changes. SIGTERM and Ctrl-C end
it.

examples:
  volcache dashboard
  volcache dashboard inventory.toml --interval 10
  volcache dashboard 10.0.0.7:1234 10.0.0.8:1234 --listen 127.0.0.1:9000
"""

COMMAND: Final = Command(
    name="dashboard",
    text="Serve a page that shows all instances of a cluster.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_dashboard,
)
