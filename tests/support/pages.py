"""The blocks of code in the documents, and the commands in them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK: Final = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^>]+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
# A command, with the lines that a backslash at the end continues, and what it prints.
_COMMAND: Final = re.compile(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of a page; `reason` is why it is not run, and empty if it is."""

    language: str
    text: str
    reason: str

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands of a transcript, each with what it prints."""
        return [(command, shown) for command, shown in _COMMAND.findall(self.text)]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that name their language."""
    return [
        Block(
            language=found["language"],
            text=textwrap.dedent(found["text"]),
            reason=found["reason"] or "",
        )
        for found in _BLOCK.finditer(page.read_text("utf-8"))
    ]
