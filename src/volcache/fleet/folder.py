"""
A folder of rendered files, which are replaced and removed when they are rendered again.

A manifest in the folder lists them. Other files in the folder are never changed.
"""

from __future__ import annotations

import difflib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import FolderError
from volcache.fleet.render import HEADER, SCRIPT, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from volcache.fleet.inventory import Inventory

MANIFEST: Final = "MANIFEST.txt"
_ABOUT: Final = (
    "# The files in this folder that the next render may replace or remove.\n"
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
    known: frozenset[str]  # What the manifest lists now.


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
    known = _read_manifest(folder)
    present = {
        path: text for path in known if (text := _read(folder, path)) is not None
    }
    files = render(inventory, present)
    changes: list[FileChange] = []
    for path, text in files.items():
        old = present.get(path) if path in known else _read(folder, path)
        if old == text:
            continue
        if old is not None and path not in known:
            raise FolderError(
                f"{folder / path}: exists, and was not written by render; move it away,"
                " or render into another folder"
            )
        changes.append(FileChange(path, old, text))
    changes += (FileChange(p, t, None) for p, t in present.items() if p not in files)
    return Plan(sorted(changes), list(files), known)


def write(folder: Path, found: Plan) -> None:
    """
    Do what `plan` found. It may be repeated after it was interrupted.

    Raises:
        FolderError: A file cannot be written or removed.
    """
    # Before and after: at each moment the manifest lists at least what is there.
    _write_manifest(folder, {*found.known, *found.paths})
    for change in found.changes:
        if change.new is None:
            _remove(folder, change.path)
        else:
            _replace(folder, change.path, change.new)
    _write_manifest(folder, found.paths)


def _read_manifest(folder: Path) -> frozenset[str]:
    text = _read(folder, MANIFEST)
    if text is None:
        return frozenset()
    if not text.startswith(HEADER):
        raise FolderError(
            f"{folder / MANIFEST}: not that of a rendered folder; render into another one"
        )
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for line in lines:
        path = PurePosixPath(line)
        if path.is_absolute() or ".." in path.parts or not line.isprintable():
            raise FolderError(
                f"{folder / MANIFEST}: {line[:80]!r} is not the path of a file in this"
                " folder; remove the line"
            )
    return frozenset(lines)


def _write_manifest(folder: Path, paths: Iterable[str]) -> None:
    text = f"{HEADER}{_ABOUT}" + "".join(f"{path}\n" for path in sorted(paths))
    if _read(folder, MANIFEST) != text:
        _replace(folder, MANIFEST, text)


def _read(folder: Path, path: str) -> str | None:
    """Return the text of a file; None if there is none."""
    try:
        return (folder / path).read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failed(folder / path, "read", error) from error


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
