"""`volcache cluster status` and `top`: reports of all instances."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

from volcache.cli.command import EXIT_FAILED, EXIT_OK, print_line
from volcache.cli.keyboard import QUIT, keyboard
from volcache.fleet.summary import as_json, poll, worst_first
from volcache.fleet.table import table, totals
from volcache.fleet.targets import read_targets
from volcache.text import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from volcache.fleet.summary import Row

_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_SCREEN: Final = "\x1b[J"


def status(arguments: argparse.Namespace) -> int:
    """Print one report; return 1 if an instance is not healthy."""
    rows = poll(read_targets(arguments.instances), timeout=arguments.timeout)
    return _report(rows, is_json=arguments.json, only_problems=arguments.problems)


def _report(
    rows: Sequence[Row], *, is_json: bool = False, only_problems: bool = False
) -> int:
    """Print one report; return the exit code."""
    rows = worst_first(rows)
    if is_json:
        print_line(json.dumps(as_json(rows), indent=2))
    else:
        shown = [row for row in rows if row.health.severity or not only_problems]
        lines = table(shown, columns=_columns(), is_coloured=_is_coloured())
        for line in [*lines, "", *totals(rows)]:
            print_line(line)
    return EXIT_FAILED if any(row.health.severity for row in rows) else EXIT_OK


def top(arguments: argparse.Namespace) -> int:
    """Show reports until the user quits; one if the output is no terminal."""
    targets = read_targets(arguments.instances)
    if not sys.stdout.isatty():
        return _report(poll(targets, timeout=arguments.timeout))
    with keyboard() as wait:
        watch(
            lambda before: poll(targets, before, timeout=arguments.timeout),
            lambda text: print(text, end="", flush=True),
            lambda: wait(arguments.interval) in QUIT,
        )
    return EXIT_OK


def watch(
    ask: Callable[[Sequence[Row]], Sequence[Row]],
    write: Callable[[str], object],
    is_quit: Callable[[], bool],
) -> None:
    """
    Write a report over the last one until the user quits.

    Args:
        ask: Returns the rows of all instances; takes those before.
        write: Takes text with escape sequences of a terminal.
        is_quit: Waits until the next report is due; returns whether to end instead.
    """
    rows: Sequence[Row] = ()
    while True:
        rows = ask(rows)
        room = shutil.get_terminal_size()
        lines = table(
            worst_first(rows), columns=room.columns, is_coloured=_is_coloured()
        )
        # Below: two lines of totals, an empty one, what is left out, the cursor.
        left = len(lines) - max(2, room.lines - 5)
        if left > 0:
            lines = [*lines[:-left], f"and {counted(left, 'more instance')}"]
        lines = [*(line[: room.columns] for line in totals(rows)), "", *lines]
        ended = [f"{line}{_TO_END_OF_LINE}\n" for line in lines]
        write("".join([_HOME, *ended, _TO_END_OF_SCREEN]))
        if is_quit():
            return


def _columns() -> int | None:
    """Return the width of the terminal; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _is_coloured() -> bool:
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )
