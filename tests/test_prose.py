"""`tools/prose.py` counts words and sentences, and names what is too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import prose
from support.tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@each_row(
    ("page", "sentences"),
    [
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
    ],
)
def test_sentences_of_a_page(page: str, sentences: list[str]) -> None:
    """Without code blocks, tables, headings and links; code is one word."""
    assert [sentence for _, sentence in prose.sentences(page)] == sentences


def test_report_names_what_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line and sentence; the generated page has no part in the total."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "A.md").write_text("# A\n\nShort. This one `is long` indeed.\n\nEnd.\n")
    (tmp_path / prose.GENERATED).write_text("Many words, of which none counts.\n")
    files = ["A.md", prose.GENERATED]
    monkeypatch.setattr("sys.argv", ["prose", "--longest=6", "--total=9", *files])
    assert prose.main() == ""
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["A.md", "9", "3", "1", "4"],
        [prose.GENERATED, "6", "1", "6", "6"],
        ["without", "REFERENCE", "9", "3", "1", "4"],
    ]
    monkeypatch.setattr("sys.argv", ["prose", "--longest=3", "--total=8", "A.md"])
    assert prose.main().splitlines() == [
        "A.md:3: 4 words in a sentence: This one `is long` indeed.",
        "9 words without REFERENCE.md, the limit is 8",
    ]
