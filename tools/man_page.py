"""
Write `docs/volcache.1`, the manual page, from the parsers of the commands.

What `--help` prints is all that it has; nothing is written by hand.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache import __version__
from volcache.cli.main import build_parser

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = Path(__file__).parents[1] / "docs" / "volcache.1"
_NAME: Final = "an HTTP cache for very many small files on plain disks"
# What roff would print as another character, so that it could not be copied.
_ESCAPES: Final = {
    "\\": r"\(rs",
    "-": r"\-",
    "~": r"\(ti",
    "^": r"\(ha",
    "`": r"\(ga",
    "'": r"\(aq",
    '"': r"\(dq",
}
_ROW: Final = re.compile(r"  (\S+) +(\S+) +(.*)")  # A name, its default, its text.


def render() -> str:
    """Return the page."""
    parser = build_parser()
    lines = [
        '.\\" Written by tools/man_page.py: run "make reference" after changes.',
        f'.TH VOLCACHE 1 "" "volcache {__version__}" "User Commands"',
        ".nh",
        ".ad l",
        ".SH NAME",
        rf"volcache \- {_escaped(_NAME)}",
        ".SH SYNOPSIS",
    ]
    commands = list(_commands(parser))
    for command, _ in commands:
        usage = " ".join(command.format_usage().removeprefix("usage: ").split())
        lines += [_bold(usage, command.prog), ".br"]
    lines += [".SH DESCRIPTION", *_text(parser.description or "")]
    lines += _text(parser.epilog or "")
    lines += [".SH COMMANDS"]
    for command, summary in commands:
        lines += [f".SS {_escaped(command.prog)}", _escaped(summary)]
        lines += _arguments(command)
        lines += _text(command.epilog or "")
    return "\n".join(lines) + "\n"


def _commands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield the parser of each command that has none below it, and what it does."""
    for action in parser._actions:  # noqa: SLF001 - There is no other way to them.
        if action.nargs == argparse.PARSER and isinstance(action.choices, dict):
            for choice in action.choices.values():
                yield from _commands(choice)
            return
    yield parser, parser.description or ""


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001 - There is no other way to them.
        if action.help is None or "-h" in action.option_strings:
            continue
        value = "" if action.nargs == 0 else f"\\fI{_escaped(_metavar(action))}\\fR"
        names = [f"\\fB{_escaped(name)}\\fR" for name in action.option_strings]
        yield ".TP"
        yield " ".join([*filter(None, [", ".join(names), value])])
        yield _escaped(action.help % {**vars(action), "prog": parser.prog})


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs, and what is indented below a line with a colon as it is."""
    paragraph: list[str] = []
    is_list = is_table = False
    for line in [*text.splitlines(), ""]:
        if is_list and line.startswith("  "):
            row = _ROW.fullmatch(line) if is_table else None
            if row is not None:
                yield from (".TP", f"\\fB{_escaped(row[1])}\\fR = {_escaped(row[2])}")
                yield _escaped(row[3])
            else:
                yield from (".nf", f"  {_escaped(line.strip())}", ".fi")
            continue
        is_ended = not line or (paragraph and re.match(r"\w+( \w+)?:", line))
        if paragraph and is_ended:
            yield from (".PP", _escaped(" ".join(paragraph)))
            paragraph = []
        is_list = line.endswith(":")
        is_table = line.startswith("settings ")
        if line:
            paragraph.append(line.strip())
        if is_list:
            yield from (".PP", _escaped(" ".join(paragraph)))
            paragraph = []


def _bold(usage: str, name: str) -> str:
    return f"\\fB{_escaped(name)}\\fR{_escaped(usage.removeprefix(name))}"


def _escaped(text: str) -> str:
    """Return text that roff prints as it is, on one line."""
    found = "".join(_ESCAPES.get(c, c if c.isascii() else _named(c)) for c in text)
    return f"\\&{found}" if found.startswith(".") else found


def _named(character: str) -> str:
    return f"\\[u{ord(character):04X}]"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="ascii")
