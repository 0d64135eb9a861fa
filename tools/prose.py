"""
Count the words of the documents, and name the sentences that are too long.

Words are those of the whole page, as `wc -w` counts them. Sentences are those outside of
code blocks, tables and headings; code within a sentence is one word.
"""

from __future__ import annotations

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
SENTENCE_WORDS: Final = 40
TOTAL_WORDS: Final = 42_000
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


def main() -> str:
    """Print the words; return what is too long, a line for each; empty if nothing is."""
    total, found = 0, []
    for path in DOCUMENTS:
        page = path.read_text("utf-8")
        total += 0 if path.name == GENERATED else len(page.split())
        for line, sentence in sentences(page):
            if (words := len(sentence.split())) > SENTENCE_WORDS:
                shown = sentence.replace("\0", " ")
                found.append(f"{path}:{line}: {words} words in a sentence: {shown}")
    sys.stdout.write(f"{total} of {TOTAL_WORDS} words without {GENERATED}\n")
    if total > TOTAL_WORDS:
        found.append(f"too many words; the limit is {TOTAL_WORDS}")
    return "\n".join(found)


if __name__ == "__main__":
    sys.exit(main() or 0)
