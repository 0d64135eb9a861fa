"""`volcache stats`: fetches the numbers of running instances and prints them."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    command,
    complain,
    print_line,
)
from volcache.cli.screen import show
from volcache.cli.values import targets_of
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.remote import Stats, each, fetch_stats
from volcache.monitoring.stats_json import with_quantiles
from volcache.monitoring.terminal import report

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

REFRESH_SECONDS: Final = 1.0

Found = list[tuple[str, Stats | InstanceError]]


def _stats(arguments: argparse.Namespace) -> int:
    """
    Print the numbers of instances, once or until interrupted.

    Raises:
        VolcacheError: A URL is invalid, or there is no volcache instance.
    """
    if arguments.once and arguments.interval:
        raise ConfigError("--once and --interval exclude each other; give one of them")
    urls = [target.operator_url for target in targets_of(arguments)]
    interval = arguments.interval
    if not (arguments.json or arguments.once) and sys.stdout.isatty():
        rounds, seconds = _rounds(urls), interval or REFRESH_SECONDS
        show(lambda: _screen(*next(rounds), seconds), seconds)
    code = EXIT_OK
    for found, before in _rounds(urls):
        if arguments.json:
            _print_json(found, is_whole=not interval)
        else:
            for line in _lines(found, before):
                print_line(line)
        errors = [stats for _, stats in found if isinstance(stats, InstanceError)]
        for error in errors:
            complain(str(error))
        code = EXIT_FAILED if errors else EXIT_OK
        sys.stdout.flush()
        if not interval:
            break
        time.sleep(interval)
    return code


def _rounds(urls: Sequence[str]) -> Iterator[tuple[Found, Mapping[str, Stats]]]:
    """
    Yield the numbers of each instance, or its error, and those before, without end.

    Raises:
        InstanceError: There is only one, and it does not answer the first request.
    """
    before: dict[str, Stats] = {}
    found = list(each(urls, fetch_stats))
    if len(found) == 1 and isinstance(found[0][1], InstanceError):
        raise found[0][1]
    while True:
        yield found, before
        before |= {url: s for url, s in found if not isinstance(s, InstanceError)}
        found = list(each(urls, fetch_stats))


def _print_json(found: Found, *, is_whole: bool) -> None:
    """Print the numbers of one instance, or a list; in one line unless it is all."""
    rows: list[Any] = []
    for url, stats in found:
        if isinstance(stats, InstanceError):
            rows.append({"target": url, "error": stats.reason})
            continue
        try:
            rows.append({"target": url, "stats": with_quantiles(stats)})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InstanceError(url, "numbers are missing") from error
    shown = rows if len(rows) > 1 else rows[0].get("stats", rows[0])
    print_line(json.dumps(shown, indent=2 if is_whole else None))


def _lines(found: Found, before: Mapping[str, Stats]) -> list[str]:
    """Return the reports of the instances; of several, each with its URL above it."""
    lines: list[str] = []
    for url, stats in found:
        if len(found) > 1:
            lines += ([""] if lines else []) + [url]
        if isinstance(stats, InstanceError):
            lines.append(str(stats))
        else:
            lines += report(stats, before.get(url))
    return lines


def _screen(found: Found, before: Mapping[str, Stats], seconds: float) -> list[str]:
    """Return the reports, and when it tries again."""
    lines = _lines(found, before)
    if any(isinstance(stats, InstanceError) for _, stats in found):
        lines.append(f"trying again every {seconds:g} s")
    return lines


COMMAND: Final = command("stats", _stats)
