"""docs/EMBEDDED.md: its examples print what it says, and it names every method."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest

import volcache
from volcache.embedded import opening

DOCUMENT = Path(__file__).parents[3] / "docs" / "EMBEDDED.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PRINTED = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)


def test_examples_print_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes on where the one before has ended."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall(DOCUMENT.read_text())
    assert len(blocks) > 2
    for block in blocks:
        assert "print(" in block
        printed = io.StringIO()
        # With the capacity of the example, the first volumes take 320 MiB.
        with contextlib.redirect_stdout(printed):
            exec(block.replace("10GiB", "64MiB"), names)  # noqa: S102
        assert printed.getvalue().splitlines() == PRINTED.findall(block)


def test_first_example_is_on_the_first_screen() -> None:
    """Within 25 lines."""
    text = DOCUMENT.read_text()
    assert len(text[: BLOCK.search(text).end()].splitlines()) < 25  # type: ignore[union-attr]


def test_every_method_and_option_is_named() -> None:
    """Those of a dict, and special ones, may be named in an example."""
    text = DOCUMENT.read_text()
    methods = [
        name
        for name, _ in inspect.getmembers(volcache.EmbeddedCache)
        if not name.startswith("_") and name not in {"closed", "read_items"}
    ]
    assert len(methods) > 25
    for name in methods:
        assert re.search(rf"\b{name}\b", text), name
    options = list(inspect.signature(opening.open_cache).parameters)[1:]
    assert (
        re.findall(r"^\| `(\w+)` \|", text.split("## Methods")[0], re.MULTILINE)
        == options
    )
