"""`volcache completion`: prints the script that lets a shell complete the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.cli.command import command, print_line

if TYPE_CHECKING:
    import argparse

SHELLS: Final = ("bash", "zsh", "tcsh")


def script(shell: str) -> str:
    """Return the script for one of `SHELLS`."""
    # Imported here: only this command needs them, and the second imports this module.
    import shtab  # noqa: PLC0415

    from volcache.cli.main import build_parser  # noqa: PLC0415

    return str(shtab.complete(build_parser(), shell=shell))


def _run(arguments: argparse.Namespace) -> None:
    print_line(script(arguments.shell))


COMMAND: Final = command("completion", _run)
