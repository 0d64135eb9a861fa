"""
What would change in a folder of rendered files when they are rendered again.

They are known by how they begin. Other files in the folder are never changed.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import FolderError
from volcache.fleet.render import (
    HEADER,
    INSTANCES,
    MACHINES,
    PROMETHEUS,
    TARGETS_BEGIN,
    render,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from volcache.fleet.inventory import Inventory

_TOPS: Final = (INSTANCES.partition("/")[0], PROMETHEUS.partition("/")[0], MACHINES)
_BEGIN_MAX: Final = (
    200  # Characters in which `HEADER` is; a script has a line before it.
)


class FileChange(NamedTuple):
    """A file that is not as it would be rendered."""

    path: str  # Below the folder.
    old: str | None  # None: it does not exist.
    new: str | None  # None: it is removed.

    @property
    def verb(self) -> str:
        """What happens to it: "added", "changed" or "removed"."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"

    def diff(self) -> Iterator[str]:
        """Yield the lines of a unified diff, without the ends of lines."""
        yield from difflib.unified_diff(
            (self.old or "").splitlines(),
            (self.new or "").splitlines(),
            "/dev/null" if self.old is None else f"a/{self.path}",
            "/dev/null" if self.new is None else f"b/{self.path}",
            lineterm="",
        )


class Plan(NamedTuple):
    """What a render would do."""

    changes: list[FileChange]
    paths: list[str]  # Of all files, changed or not.


def plan(folder: Path, inventory: Inventory) -> Plan:
    """
    Compare a folder with what an inventory stands for; change nothing.

    Args:
        folder: It need not exist.
        inventory: The machines and instances.

    Raises:
        FolderError: The folder cannot be read, or a file would be replaced that was not
            rendered.
    """
    present = dict(_present(folder))
    rendered = {path: text for path, text in present.items() if _is_rendered(text)}
    files = render(inventory, rendered)
    changes: list[FileChange] = []
    for path, text in files.items():
        if path in present and path not in rendered:
            raise FolderError(
                f"{folder / path}: exists, and was not written by render; move it away,"
                " or render into another folder"
            )
        if rendered.get(path) != text:
            changes.append(FileChange(path, rendered.get(path), text))
    changes += (FileChange(p, t, None) for p, t in rendered.items() if p not in files)
    return Plan(sorted(changes), list(files))


def _present(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file."""
    for path in (found for top in _TOPS for found in (folder / top).rglob("*")):
        try:
            if path.is_file():
                text = path.read_bytes().decode(errors="replace")
                yield path.relative_to(folder).as_posix(), text
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            raise FolderError(f"{path}: {reason}") from error


def _is_rendered(text: str) -> bool:
    return HEADER in text[:_BEGIN_MAX] or text.startswith(TARGETS_BEGIN)
