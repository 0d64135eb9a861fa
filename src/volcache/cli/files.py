"""`volcache files`: writes the files of nginx, systemd, Prometheus and Grafana."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.cli.command import command, output, print_line
from volcache.cli.streams import write_file
from volcache.errors import ConfigError, FolderError
from volcache.shipped import shipped_files, shipped_root
from volcache.text import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_NAMED_MAX: Final = 5  # Files that an error names.


def _run(arguments: argparse.Namespace) -> None:
    if arguments.list == bool(arguments.folder):
        raise ConfigError("give either DIR, where to write the files, or --list")
    root = shipped_root()
    if root is None:
        raise FolderError(
            "the files are not in this installation; install volcache again, with pip"
        )
    paths = list(shipped_files(root))
    if arguments.list:
        for path in paths:
            print_line(path)
        return
    folder = Path(arguments.folder)
    changed = [path for path in paths if _differs(root / path, folder / path)]
    if not arguments.force:
        _require_new(folder, changed)
    with output() as report:
        for path in changed:
            source = root / path
            is_program = os.access(source, os.X_OK)
            write_file(folder / path, source.read_bytes(), is_program=is_program)
            report(str(folder / path))
        same = len(paths) - len(changed)
        report(f"{counted(len(changed), 'file')} written, {same} unchanged")


def _differs(source: Path, target: Path) -> bool:
    """Whether a file is missing or has other bytes."""
    try:
        return target.read_bytes() != source.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        raise FolderError(f"{target}: cannot be read: {error.strerror}") from error


def _require_new(folder: Path, changed: Sequence[str]) -> None:
    """Raise an error if a file would be replaced."""
    present = [path for path in changed if os.path.lexists(folder / path)]
    if not present:
        return
    named = ", ".join(present[:_NAMED_MAX])
    more = len(present) - _NAMED_MAX
    if more > 0:
        named += f" and {more} more"
    raise FolderError(
        f"{folder}: nothing was written, as this would replace"
        f" {counted(len(present), 'file')} with other contents: {named}; write into another"
        " folder and compare, or replace with --force"
    )


COMMAND: Final = command("files", _run)
