"""README.md as a package index shows it."""

from __future__ import annotations

import re
from pathlib import Path

from long_description import render
from support.tables import each_row

README = (Path(__file__).parents[1] / "README.md").read_text()


@each_row(
    ("text", "without", "with_base"),
    [
        ("[a](docs/A.md#b)", "a", "[a](https://host/x/docs/A.md#b)"),
        ("[here](#b)", "here", "[here](https://host/x/#b)"),
        ("![seen](p.png) [`f`](f.py)", "*seen* `f`", None),
        ("[out](https://a/b)", "[out](https://a/b)", "[out](https://a/b)"),
        ("`[a](b)` c", "`[a](b)` c", "`[a](b)` c"),
        ("```\n[a](b)\n```\n", "```\n[a](b)\n```\n", "```\n[a](b)\n```\n"),
    ],
)
def test_relative_links_become_absolute_or_text(
    text: str, without: str, with_base: str | None
) -> None:
    """Code and other links stay as they are."""
    assert render(text, None) == without
    if with_base is not None:
        assert render(text, "https://host/x/") == with_base


@each_row("base", [None, "https://host/tree/"])
def test_readme_has_no_relative_link(base: str | None) -> None:
    """And has the same lines."""
    text = render(README, base)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    assert all(target.startswith("https://") for target in found)
    assert bool(found) == (base is not None)
    assert len(text.splitlines()) == len(README.splitlines())
