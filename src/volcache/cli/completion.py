"""`volcache completion`: prints the script that lets a shell complete the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.cli.command import command, print_line
from volcache.errors import ConfigError

if TYPE_CHECKING:
    import argparse

SHELLS: Final = ("bash", "zsh", "tcsh")


def script(shell: str) -> str:
    """
    Return the script for one of `SHELLS`.

    Raises:
        ConfigError: shtab is not installed.
    """
    # Imported here: only this command needs them, and the second imports this module.
    try:
        import shtab  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "not installed: shtab, which makes the script; run: pip install"
            " 'volcache[tools]'"
        ) from None

    from volcache.cli.main import build_parser  # noqa: PLC0415

    return str(shtab.complete(build_parser(), shell=shell))


def _run(arguments: argparse.Namespace) -> None:
    print_line(script(arguments.shell))


COMMAND: Final = command("completion", _run)
