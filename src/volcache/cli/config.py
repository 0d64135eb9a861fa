"""`volcache config check`: find everything that is wrong in the settings."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import pwd
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.cli.command import EXIT_OK, EXIT_USAGE, Command, add_settings, print_line
from volcache.config import read_settings
from volcache.errors import ConfigError
from volcache.kinds import MIB
from volcache.ring import load_ring
from volcache.settings import SETTINGS, value_of
from volcache.store.eviction import VOLUMES_ADVISED, cost_of_few
from volcache.text import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.config import Reading
    from volcache.settings import Config

_EPILOG: Final = """\
Reads the settings as "volcache serve" does: defaults, CONFIG, the environment, --set.
All wrong settings are listed, each with what is allowed. Warnings are about settings that
are allowed, but may not be what you want; they do not change the exit code.

exit code: 0 the settings are allowed; 2 they are not
examples:
  volcache config check /etc/volcache/volcache.toml
  volcache config check /etc/volcache/volcache.toml --instance 1234 --show"""
_MEMCACHED_ITEM_MAX: Final = MIB
_FAILOVER: Final = re.compile(r"^\s*include\s+\S*failover\.conf", re.MULTILINE)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="List all wrong settings.",
        description="List all wrong settings.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings(check)
    check.add_argument(
        "--show", action="store_true", help="print the settings with their sources"
    )


def _run(arguments: argparse.Namespace) -> int:
    reading = read_settings(
        arguments.config,
        os.environ,
        options=arguments.set,
        instance=arguments.instance,
    )
    problems = [problem.located for problem in reading.problems]
    if not problems:
        try:
            load_ring(reading.config.ring, reading.config.ring_self)
        except ConfigError as error:
            problems.append(str(error))
    for problem in problems:
        print(f"volcache: {problem}", file=sys.stderr)
    if problems:
        return EXIT_USAGE
    for warning in _warnings(reading.config):
        print(f"volcache: warning: {warning}", file=sys.stderr)
    if arguments.show:
        for line in _shown(reading):
            print_line(line)
    else:
        print_line("ok")
    return EXIT_OK


def _shown(reading: Reading) -> Iterator[str]:
    """Yield the settings as a TOML file has them, with their sources."""
    rows = []
    for setting in SETTINGS:
        value = value_of(reading.config, setting)
        text = json.dumps(value, ensure_ascii=False)
        if setting.is_secret and value:
            text = '"(set, not shown)"'
        rows.append((f"{setting.name} = {text}", reading.sources[setting.name]))
    width = min(max(len(row) for row, _ in rows), 50)
    for row, source in rows:
        yield f"{row:<{width}}  # {source}"


def _warnings(config: Config) -> Iterator[str]:
    """Yield what is allowed and may not be what the operator wants."""
    yield from _warnings_of_access(config)
    yield from _warnings_of_place(Path(config.mount_point))
    yield from _warnings_of_ring(config)
    if config.eviction == "frequency" and 0 < config.volume_num < VOLUMES_ADVISED:
        yield f"volume_num = {config.volume_num} is low: {cost_of_few(config.volume_num)}"
    if config.default_ttl and 0 < config.max_ttl < config.default_ttl:
        yield (
            f"default_ttl = {config.default_ttl} has no effect: max_ttl ="
            f" {config.max_ttl} is lower"
        )
    if not config.memc_on and config.memc_servers:
        yield "memc_servers has no effect: memc_on is false"
    if config.memc_on and config.memc_max_value_size > _MEMCACHED_ITEM_MAX:
        yield (
            f"memc_max_value_size = {size(config.memc_max_value_size)} needs a memcached"
            " whose option -I allows larger items; its default is 1 MiB"
        )


def _warnings_of_access(config: Config) -> Iterator[str]:
    is_local = ipaddress.ip_address(config.ip).is_loopback
    if not is_local and not config.write_token:
        missing, what = (
            ("write_token", "write")
            if config.read_token
            else (
                "tokens",
                "read and write",
            )
        )
        yield (
            f'ip = "{config.ip}" without {missing}: everyone who can reach the port can'
            f" {what}"
        )
    elif config.read_token and not config.write_token:
        yield "read_token without write_token: everyone who can reach the port can write"


def _warnings_of_place(place: Path) -> Iterator[str]:
    """Yield what can be known of a mount point without opening it."""
    user = _user()
    named = f'mount_point = "{place}"'
    if place.is_dir():
        if not os.access(place, os.W_OK | os.X_OK):
            yield f"{named} is not writable by the user {user}"
    elif os.path.lexists(place):
        yield f"{named} is not a directory"
    else:
        yield f"{named} does not exist; the start creates it: is the disk mounted?"
        parent = place.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not os.access(parent, os.W_OK | os.X_OK):
            yield f'{named} cannot be created in "{parent}" by the user {user}'


def _warnings_of_ring(config: Config) -> Iterator[str]:
    """Yield what nginx is told to do with keys that this instance refuses."""
    for file in config.ring:
        nginx = Path(file).absolute().parent.parent
        for main in (nginx / "volcache.conf", nginx / "conf.d/volcache.conf"):
            if main.is_file() and _FAILOVER.search(main.read_text("utf-8", "replace")):
                yield (
                    f'ring must be empty with failover.conf, which is in "{main}": the'
                    " keys of an instance that fails would be misses, and not stored"
                )


def _user() -> str:
    """Return the name of the user of this process, or its number without one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


COMMAND: Final = Command(
    name="config",
    text="Check the settings of an instance.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
