"""
What a command of the command line is, and the exit codes it can end with.

Exit codes: 0 done, 1 the store or the address cannot be used or damage was found, 2 a
wrong argument or setting, 130 interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell says it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One word after `volcache`: what it says of itself, takes and does."""

    name: str
    text: str
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]  # None: done.
