"""`volcache gate`: builds bjoern with the gate, after an installation by pip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from volcache.cli.command import EXIT_FAILED, EXIT_OK, command, print_line
from volcache.errors import BuildError
from volcache.server.gate_build import build, has_gate, installed_bjoern

if TYPE_CHECKING:
    import argparse


def _run(arguments: argparse.Namespace) -> int:
    version = installed_bjoern()
    if arguments.check:
        is_there = has_gate()
        has = "has the gate" if is_there else "has no gate"
        print_line(f"bjoern {version} {has}" if version else "bjoern is not installed")
        return EXIT_OK if is_there else EXIT_FAILED
    version = arguments.bjoern or version
    if version is None:
        raise BuildError(
            "bjoern is not installed here; run: pip install 'volcache[server]'"
        )
    build(version, is_isolated=not arguments.no_build_isolation)
    print_line(f"bjoern {version} was built with the gate; restart the instances")
    return EXIT_OK


COMMAND: Final = command("gate", _run)
