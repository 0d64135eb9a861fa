"""`volcache dashboard`: serves one page for all instances of a cluster."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from volcache.cli.cluster import add_targets
from volcache.cli.command import EXIT_OK, Command, output, seconds
from volcache.errors import ConfigError
from volcache.fleet.collector import FleetCollector
from volcache.text import counted

if TYPE_CHECKING:
    import argparse

_INTERVAL_MIN: Final = 1.0
_INTERVAL_MAX: Final = 3600.0
_TIMEOUT_SECONDS: Final = 3.0
_WINDOW_SECONDS: Final = 60.0  # What rates, ratios and p99 are about.
_DRAIN_SECONDS: Final = 1.0


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
        ConfigError: The list of instances or an argument is wrong, or bjoern is missing.
        ListenError: The address cannot be listened on.
    """
    # Imported here: other commands do without the packages of the server.
    try:
        from volcache.fleet.dashboard import (  # noqa: PLC0415
            Dashboard,
            gated,
            parse_listen,
        )
        from volcache.server.bjoern import listen, serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"not installed: {error.name}, which the dashboard needs; run: pip install"
            " 'volcache[server]'"
        ) from error

    host, port = parse_listen(arguments.listen)
    collector = FleetCollector(
        arguments.targets,
        timeout=_TIMEOUT_SECONDS,
        interval=arguments.interval,
        window=_WINDOW_SECONDS,
    )
    app = Dashboard(collector, hosts=[*arguments.host, host])
    with listen(host, port) as listener, gated():
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        count = counted(len(collector.instances()), "instance", ",")
        with output() as report:
            report(f"dashboard of {count} at http://{shown}:{port}/")
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        collector.start()
        serve(listener, app, drain_seconds=_DRAIN_SECONDS)
        collector.stop()
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
