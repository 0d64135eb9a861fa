"""README.md as a package index shows it."""

from __future__ import annotations

import re
from pathlib import Path

from long_description import render
from support.tables import rows

README = (Path(__file__).parents[1] / "README.md").read_text()


@rows(None, "https://host/tree/")
def test_readme_has_no_relative_link(base: str | None) -> None:
    """And has the same lines."""
    text = render(README, base)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    assert all(target.startswith("https://") for target in found)
    assert bool(found) == (base is not None)
    assert len(text.splitlines()) == len(README.splitlines())
