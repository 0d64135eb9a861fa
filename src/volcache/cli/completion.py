"""`volcache completion`: prints the script that lets a shell complete the arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.cli.command import Command, print_line

if TYPE_CHECKING:
    import argparse

SHELLS: Final = ("bash", "zsh", "tcsh")


def script(shell: str) -> str:
    """Return the script for one of `SHELLS`."""
    # Imported here: only this command needs them, and the second imports this module.
    import shtab  # noqa: PLC0415

    from volcache.cli.main import build_parser  # noqa: PLC0415

    return str(shtab.complete(build_parser(), shell=shell))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}"
    )


def _run(arguments: argparse.Namespace) -> None:
    print_line(script(arguments.shell))


_EPILOG: Final = """\
The script completes commands, options, files and folders. It is made from the commands of
this version: make it again after an update.

exit code: 0 done; 2 a wrong argument
examples:
  eval "$(volcache completion bash)"
  volcache completion bash > /etc/bash_completion.d/volcache
  volcache completion zsh > /usr/local/share/zsh/site-functions/_volcache
"""

COMMAND: Final = Command(
    name="completion",
    text="Print the script that completes arguments in a shell.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
