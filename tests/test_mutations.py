"""The mutations of `make mutations` apply to the code as it is."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from mutations import MUTATIONS, ROOT, Mutation
from support.code_changes import (
    Change,
    NotFoundError,
    changed,
    move,
    remove,
    replace,
    replace_call,
)

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """\
class Log:

    def rotate(self):
        sync(1)
        if full(self) or self.closed:
            self.end = 0
            seal(self)
        start(self)
"""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.fault)
def test_each_mutation_applies_exactly_once(tmp_path: Path, mutation: Mutation) -> None:
    """Whoever moves or rewrites a mutated function updates the list."""
    package = tmp_path / "volcache"
    shutil.copytree(ROOT / "src" / "volcache", package)
    mutation.apply(package)
    for path in package.rglob("*.py"):
        compile(path.read_text(), path, "exec")


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (replace("self.closed", "False"), "self.closed", "False"),
        (replace_call("full", "True"), "full(self)", "True"),
        (remove("seal"), "seal(self)", "pass"),
        (remove("self.end"), "self.end = 0", "pass"),
        (
            move("start", before="sync"),
            SOURCE.partition("rotate(self):\n")[2],
            "        start(self)\n"
            + SOURCE.partition("rotate(self):\n")[2].replace(
                "        start(self)\n", ""
            ),
        ),
    ],
    ids=lambda value: value.text if isinstance(value, Change) else "",
)
def test_a_change_is_made_in_its_place_only(change: Change, old: str, new: str) -> None:
    """All other code stays."""
    assert changed(SOURCE, "Log.rotate", change) == SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("function", "change"),
    [
        ("Log.rotated", remove("seal")),
        ("rotate", remove("seal")),
        ("Log", remove("seal")),
        ("Log.rotate", remove("sealed")),
        ("Log.rotate", replace("self", "None")),
        ("Log.rotate", move("sync", before="start")),
        ("Log.rotate", move("seal", before="sync")),
    ],
)
def test_a_change_that_does_not_apply_once_is_an_error(
    function: str, change: Change
) -> None:
    """No such function, no such place, several places, or a move that moves nothing."""
    with pytest.raises(NotFoundError):
        changed(SOURCE, function, change)
