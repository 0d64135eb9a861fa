"""What a store holds."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from support.stores import open_store, value_of
from volcache.cli.dump import dump


def values(directory: Path | str, **options: Any) -> dict[bytes, bytes]:
    """
    Return every value a closed store can read; options as for `Store.open`.

    The keys are those of all records, as `dump` lists them.
    """
    keys = {unquote_to_bytes(row.key) for row in dump(str(directory), 0)}
    store = open_store(directory, **options)
    found = {key: value_of(store.get(key)) for key in keys}
    store.close()
    return {key: value for key, value in found.items() if value is not None}


def files_of(directory: Path) -> dict[str, bytes]:
    """Return all files of a store, by their names in it."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def archived(archive: Path) -> dict[str, bytes]:
    """Return all files of a tar archive, by their names in it."""
    with tarfile.open(archive) as tar:
        files = [(member.name, tar.extractfile(member)) for member in tar]
        return {name: file.read() for name, file in files if file is not None}
