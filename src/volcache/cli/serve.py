"""`volcache serve`: read the settings and run an instance until a signal stops it."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from volcache.cli.command import command
from volcache.config import Sources
from volcache.errors import ConfigError, VolcacheError
from volcache.logs import setup_logging
from volcache.server.signals import block_hangups
from volcache.settings import SETTINGS

if TYPE_CHECKING:
    import argparse


_logger: Final = logging.getLogger("volcache")
_PACKAGES: Final = {"bjoern": "bjoern", "prometheus_client": "prometheus-client"}


def _run(arguments: argparse.Namespace) -> None:
    """
    Serve until SIGTERM or SIGINT ends it; SIGHUP never does.

    Raises:
        VolcacheError: The start failed; nothing is left listening or locked.
    """
    block_hangups()
    sources = Sources(
        arguments.config, dict(os.environ), arguments.set, arguments.instance
    )
    config = sources.load()
    setup_logging(config.log_level, config.log_file, config.log_format)
    _require_packages()
    # Imported late: --help and a wrong setting need none of the server's packages.
    from volcache import wiring  # noqa: PLC0415

    try:
        wiring.run(config, sources.load_again)
    except VolcacheError as error:
        # `main` prints it on standard error, which a reader of the file does not see.
        if config.log_file:
            _logger.error("serving.failed error=%r", str(error))
        raise


def _require_packages() -> None:
    """
    Raise an error if a package of the server is missing, before anything is opened.

    Raises:
        ConfigError: It is not installed in this environment.
    """
    for module, package in _PACKAGES.items():
        if find_spec(module) is None:
            raise ConfigError(
                f"not installed: {package}, which a server needs; run: pip install"
                " 'volcache[server]'"
            )


def _settings() -> str:
    """Return all settings with their defaults."""
    rows = [(s.name, s.default_toml, s.text) for s in SETTINGS]
    names, defaults = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = [f"  {row[0]:<{names}} {row[1]:<{defaults}} {row[2]}" for row in rows]
    return "\n".join(lines)


COMMAND: Final = command("serve", _run, settings=_settings())
