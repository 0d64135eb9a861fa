"""What the scripts of this folder share: options, a folder for files, errors."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.load import LoadError
from bench.machine import ROOT, describe, warnings
from bench.report import bullets
from support.program import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator


class ScriptError(RuntimeError):
    """A measurement failed; the text says why."""


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--directory`, described by the first line of a docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").strip().split("\n")[0])
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / "build",
        help="where files are kept, on the disk that is measured (build)",
    )
    return parser


@contextmanager
def measuring(directory: Path) -> Iterator[tuple[ExitStack, Path]]:
    """
    Print the machine, and provide a temporary folder and a stack for servers.

    Args:
        directory: The temporary folder is made in it.

    Raises:
        SystemExit: The measurement failed; the text says why.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="bench-", dir=directory)
            work = Path(stack.enter_context(folder))
            print(bullets(describe(work), warnings(work)), flush=True)
            yield stack, work
    except (LoadError, ProgramError, ScriptError) as error:
        raise SystemExit(f"no figures: {error}") from None
