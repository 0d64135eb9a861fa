"""`volcache serve`: the settings in, a running instance until a signal ends it."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.cli.command import Command
from volcache.config import ENVIRONMENT_PREFIX, load_config
from volcache.errors import VolcacheError
from volcache.logs import setup_logging
from volcache.settings import SETTINGS

if TYPE_CHECKING:
    import argparse

_logger: Final = logging.getLogger("volcache")


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Take one settings file, or none."""
    parser.add_argument(
        "config",
        nargs="?",
        type=Path,
        metavar="CONFIG",
        help="a TOML file of settings (default: none, every setting at its default)",
    )


def _serve(arguments: argparse.Namespace) -> None:
    """
    Serve until a signal ends it.

    Raises:
        VolcacheError: The start failed; nothing is left listening or locked.
    """
    config = load_config(arguments.config, os.environ)
    setup_logging(config.log_level, config.log_file, config.log_format)
    # Here, so that --help and the offline tools do without a web server's parts.
    from volcache import wiring  # noqa: PLC0415

    try:
        wiring.run(config)
    except VolcacheError as error:
        # Who reads the file does not see standard error, where `main` says it.
        if config.log_file:
            _logger.error("serving.failed error=%r", str(error))
        raise


def _serve_epilog() -> str:
    """List the settings, so that none has to be looked up elsewhere."""
    lines = [
        f"settings (in CONFIG, or as {ENVIRONMENT_PREFIX}<SETTING> in the environment):"
    ]
    rows = [(s.name, _as_toml(s.default), s.text) for s in SETTINGS]
    names, defaults = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines += [f"  {row[0]:<{names}} {row[1]:<{defaults}} {row[2]}" for row in rows]
    lines += [
        "",
        "examples:",
        "  volcache serve conf/volcache.toml",
        f"  {ENVIRONMENT_PREFIX}PORT=8000 volcache serve",
    ]
    return "\n".join(lines)


def _as_toml(value: float | str | tuple[str, ...]) -> str:
    """Return a default as it would stand in CONFIG."""
    if isinstance(value, float):
        return f"{value:g}"
    # For what settings are, JSON is TOML.
    return json.dumps(value)


SERVE: Final = Command(
    name="serve",
    text="Serve one mount point over HTTP until SIGTERM or SIGINT.",
    epilog=_serve_epilog(),
    add_arguments=_add_serve_arguments,
    run=_serve,
)
