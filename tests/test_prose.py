"""`tools/prose.py` finds the sentences of a page."""

from __future__ import annotations

import prose
from support.tables import rows


@rows(
    ("", []),
    (
        "One. Two\nlines. `Three` is\nlast",
        ["One.", "Two lines.", "`Three` is last"],
    ),
    ("One 1.5 a.b; two: three", ["One 1.5 a.b; two: three"]),
    ("Is it? (Yes.) No!", ["Is it?", "(Yes.)", "No!"]),
    ("# Title. Two\n\nText.\n## B\nMore.", ["Text.", "More."]),
    (
        "- one\n- two\n  lines\n1. three\n\nfour",
        ["one", "two lines", "three", "four"],
    ),
    ("**Label.** Text.\n\n- **Item.** It", ["Text.", "It"]),
    ("A [long link](to/a.md#b. C) here.", ["A long link here."]),
    ("| a. B | c |\n|---|---|\n| d. E | f |\nText", ["Text"]),
    ("Do:\n\n```sh\nls. Then\n```\nSee <!-- not. This -->it.", ["Do:", "See it."]),
    ("Run `ls -l. Then` now.", ["Run `ls\0-l.\0Then` now."]),
)
def test_sentences_of_a_page(page: str, sentences: list[str]) -> None:
    """Without code blocks, tables, headings and links; code is one word."""
    assert [sentence for _, sentence in prose.sentences(page)] == sentences
