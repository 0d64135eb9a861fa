"""`volcache dashboard`: serves one page for all instances of a cluster."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from volcache.cli.command import EXIT_OK, command, output
from volcache.fleet.collector import FleetCollector
from volcache.fleet.dashboard import Dashboard, parse_listen, served
from volcache.server.signals import stop_signals_blocked, wait_for_stop
from volcache.server.sockets import listen, url_of
from volcache.text import counted

if TYPE_CHECKING:
    import argparse

_INTERVAL_MIN: Final = 1.0
_TIMEOUT_SECONDS: Final = 3.0
_WINDOW_SECONDS: Final = 60.0  # What rates, ratios and p99 are about.
_DRAIN_SECONDS: Final = 1.0


def _dashboard(arguments: argparse.Namespace) -> int:
    """
    Serve until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: The list of instances or an argument is wrong.
        ListenError: The address cannot be listened on.
    """
    host, port = parse_listen(arguments.listen)
    collector = FleetCollector(
        arguments.targets,
        timeout=_TIMEOUT_SECONDS,
        interval=max(_INTERVAL_MIN, arguments.interval),
        window=_WINDOW_SECONDS,
    )
    app = Dashboard(collector, hosts=[*arguments.host, host])
    with (
        stop_signals_blocked(),
        listen(host, port) as listener,
        served(listener) as front,
    ):
        count = counted(len(collector.instances()), "instance", ",")
        with output() as report:
            report(f"dashboard of {count} at {url_of(listener)}/")
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        collector.start()
        front.start(app)
        wait_for_stop(lambda: None)
        front.drain(_DRAIN_SECONDS)
        collector.stop()
    return EXIT_OK


COMMAND: Final = command("dashboard", _dashboard)
