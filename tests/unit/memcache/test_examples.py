"""The examples of docs/MEMCACHE.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from support.memcache_talk import Talk

PAGE = Path(__file__).resolve().parents[3] / "docs" / "MEMCACHE.md"
_COMMAND = re.compile(r"m[gsdaen] ")


def _exchanges(block: str) -> Iterator[tuple[bytes, bytes]]:
    """Return what is sent and what is answered: "ms" is followed by its value."""
    sent, answered = "", ""
    lines = iter(block.strip().splitlines())
    for line in lines:
        if not _COMMAND.match(line):
            answered += line.replace("<empty>", "") + "\r\n"
            continue
        if sent:
            yield sent.encode(), answered.encode()
        sent, answered = line + "\r\n", ""
        if line.startswith("ms "):
            sent += next(lines) + "\r\n"
    yield sent.encode(), answered.encode()


def test_meta_commands_of_the_page_are_answered_as_it_says(tmp_path: Path) -> None:
    """In their order, after the example of the text protocol."""
    blocks = PAGE.read_text().split("```\n")
    (block,) = [block for block in blocks if block.startswith("mg ")]
    with Talk(tmp_path) as talk:
        assert talk.ask(b"set a/b 5 0 5\r\nhello\r\n") == b"STORED\r\n"
        for sent, answered in _exchanges(block):
            assert talk.ask(sent) == answered
