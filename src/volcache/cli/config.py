"""`volcache config check`: find everything that is wrong in the settings."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final

from volcache.advice import warnings
from volcache.cli.command import (
    EXIT_OK,
    EXIT_USAGE,
    command,
    print_line,
)
from volcache.config import Sources
from volcache.errors import ConfigError
from volcache.ring import load_ring
from volcache.settings import SETTINGS, value_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from volcache.config import Reading


def _run(arguments: argparse.Namespace) -> int:
    sources = Sources(arguments.config, os.environ, arguments.set, arguments.instance)
    reading = sources.read()
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
    for warning in warnings(reading.config):
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


COMMANDS: Final = {"config check": command("config check", _run)}
