"""
Count the words and sentences of the documents, and name the sentences that are too long.

    tools/prose.py [--longest WORDS] [--total WORDS] [FILE...]

Words are those of the whole page, as `wc -w` counts them. Sentences are those outside of
code blocks, tables and headings; code within a sentence is one word.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTS: Final = [
    *map(Path, ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted(Path("docs").glob("*.md")),
]
# Made from texts of the code; not part of the total.
GENERATED: Final = "REFERENCE.md"
_LEFT_OUT: Final = re.compile(
    r"^ *```.*?^ *```$|<!--.*?-->|^ *\|[^\n]*$|^#[^\n]*$", re.DOTALL | re.MULTILINE
)
_CODE: Final = re.compile(r"(`+)(?!`).+?\1", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# An empty line ends a text, and so does the next item of a list.
_TEXT: Final = re.compile(r"\S.*?(?=\n\s*\n|\n *(?:[-*>]|\d+\.) |\s*\Z)", re.DOTALL)
# The mark of an item, and words in bold that serve as a heading.
_ITEM: Final = re.compile(r"\A(?:(?:[-*>]|\d+\.) +)?(?:\*\*[^*]+[.:?]\*\*\s*)?")
_END: Final = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')]))\s+(?=[\"'(]*[A-Z0-9`])")


def sentences(page: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page in Markdown, each with the line of its text."""
    page = _LEFT_OUT.sub(lambda found: "\n" * found[0].count("\n"), page)
    page = _CODE.sub(lambda found: found[0].replace(" ", "\0"), page)
    for text in _TEXT.finditer(_LINK.sub(r"\1", page)):
        plain = _ITEM.sub("", text[0]).replace("**", "")
        for sentence in filter(None, _END.split(plain)):
            yield page.count("\n", 0, text.start()) + 1, " ".join(sentence.split())


def lengths(page: str) -> list[int]:
    """Return the words of each sentence, in ascending order."""
    return sorted(len(sentence.split()) for _, sentence in sentences(page))


def row(name: str, words: int, counts: list[int]) -> str:
    """Return a line of the report: words, sentences, their median and 90th percentile."""
    middle, high = (counts[len(counts) * n // 10] if counts else 0 for n in (5, 9))
    return f"{name:<18}{words:>8}{len(counts):>10}{middle:>8}{high:>8}\n"


def too_long(path: Path, limit: int) -> Iterator[str]:
    """Yield the sentences of a page with more words than the limit."""
    for line, sentence in sentences(path.read_text("utf-8")):
        if (words := len(sentence.split())) > limit:
            shown = sentence.replace("\0", " ")
            yield f"{path}:{line}: {words} words in a sentence: {shown}"


def main() -> str:
    """Print the report; return what is too long, a line for each; empty if nothing is."""
    parser = argparse.ArgumentParser(description="Count words and sentences.")
    parser.add_argument("--longest", type=int, default=40, help="words of a sentence")
    parser.add_argument("--total", type=int, default=42_000, help="words of all pages")
    parser.add_argument("files", nargs="*", type=Path, default=DOCUMENTS)
    arguments = parser.parse_args()
    total, counts = 0, []
    sys.stdout.write("page                 words sentences  median    90 %\n")
    for path in arguments.files:
        page = path.read_text("utf-8")
        sys.stdout.write(row(path.name, len(page.split()), lengths(page)))
        if path.name != GENERATED:
            total += len(page.split())
            counts += lengths(page)
    sys.stdout.write(row("without REFERENCE", total, sorted(counts)))
    found = [
        one for path in arguments.files for one in too_long(path, arguments.longest)
    ]
    if total > arguments.total:
        found.append(
            f"{total} words without {GENERATED}, the limit is {arguments.total}"
        )
    return "\n".join(found)


if __name__ == "__main__":
    sys.exit(main() or 0)
