"""
A folder of rendered files, which are replaced and removed when they are rendered again.

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
    SCRIPT,
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


def write(folder: Path, found: Plan) -> None:
    """
    Do what `plan` found. It may be repeated after it was interrupted.

    Raises:
        FolderError: A file cannot be written or removed.
    """
    for change in found.changes:
        if change.new is None:
            _remove(folder, change.path)
        else:
            _replace(folder, change.path, change.new)


def _present(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file."""
    for path in (found for top in _TOPS for found in (folder / top).rglob("*")):
        try:
            if path.is_file():
                text = path.read_bytes().decode(errors="replace")
                yield path.relative_to(folder).as_posix(), text
        except OSError as error:
            raise _failed(path, "read", error) from error


def _is_rendered(text: str) -> bool:
    return HEADER in text[:_BEGIN_MAX] or text.startswith(TARGETS_BEGIN)


def _replace(folder: Path, path: str, text: str) -> None:
    """Write a file so that there is never a part of it."""
    target = folder / path
    new = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(text.encode())
        if target.name == SCRIPT:
            new.chmod(new.stat().st_mode | 0o111)
        new.replace(target)
    except OSError as error:
        raise _failed(target, "written", error) from error


def _remove(folder: Path, path: str) -> None:
    """Remove a file, and the folders that are then empty."""
    target = folder / path
    try:
        target.unlink(missing_ok=True)
    except OSError as error:
        raise _failed(target, "removed", error) from error
    for parent in target.parents:
        if parent == folder:
            break
        try:
            parent.rmdir()
        except OSError:
            break


def _failed(path: Path, verb: str, error: OSError) -> FolderError:
    return FolderError(f"{path}: cannot be {verb}: {error.strerror}")
