"""`volcache cluster flush` and `purge`: what is done on all instances."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from volcache.cli.command import EXIT_FAILED, EXIT_OK, output
from volcache.cli.keyboard import has_keyboard
from volcache.cli.token import read_token
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.remote import act, each
from volcache.fleet.summary import POLLED_AT_ONCE_MAX, poll
from volcache.fleet.targets import read_targets
from volcache.text import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from volcache.fleet.targets import Target


def flush(arguments: argparse.Namespace) -> int:
    """Flush all instances; return 1 if one has not done it."""
    targets = read_targets(arguments.instances)
    token = read_token(arguments.token_file)
    if arguments.dry_run:
        return _would_flush(targets)
    _confirm(f"flush everything on {counted(len(targets), 'instance')}", arguments)
    return _act(targets, "/-/flush", token, "flushed", arguments.timeout)


def _would_flush(targets: Sequence[Target]) -> int:
    """Print what a flush would remove; ask the instances, and change nothing."""
    done = 0
    with output() as report:
        for row in poll(targets):
            if row.figures is None:
                report(f"failed: {row.target.name}: {row.health.problem}")
            else:
                done += 1
                keys = counted(row.figures.keys, "key", ",")
                report(f"{row.target.name}: would flush {keys}")
        report(f"would flush {done} of {counted(len(targets), 'instance')}")
    return EXIT_OK if done == len(targets) else EXIT_FAILED


def purge(arguments: argparse.Namespace) -> int:
    """Purge a prefix on all instances; return 1 if one has not done it."""
    targets = read_targets(arguments.instances)
    token = read_token(arguments.token_file)
    prefix = quote(os.fsencode(arguments.prefix), safe="/")
    verb = "purged"
    query = f"prefix={prefix}"
    if arguments.dry_run:
        verb, query = "would purge", f"{query}&dry-run"
    else:
        what = f"purge everything under {prefix} on"
        _confirm(f"{what} {counted(len(targets), 'instance')}", arguments)
    return _act(targets, f"/-/purge?{query}", token, verb, arguments.timeout)


def _act(
    targets: Sequence[Target], path: str, token: str, verb: str, timeout: float
) -> int:
    """Let all instances do something, also if some fail; return the exit code."""
    failed: list[str] = []
    with output() as report:
        answers = each(
            [target.url for target in targets],
            lambda url: act(url, path, token, timeout=timeout),
            at_once=POLLED_AT_ONCE_MAX,
        )
        for target, (_, answer) in zip(targets, answers, strict=True):
            if isinstance(answer, InstanceError):
                failed.append(f"failed: {target.name}: {answer.reason}")
            else:
                report(f"{target.name}: {answer}")
        for line in failed:
            report(line)
        done = len(targets) - len(failed)
        again = "; run it again for the others" if failed else ""
        report(f"{verb} {done} of {counted(len(targets), 'instance')}{again}")
    return EXIT_FAILED if failed else EXIT_OK


def _confirm(what: str, arguments: argparse.Namespace) -> None:
    """
    Ask the user, unless --yes was given.

    Raises:
        ConfigError: The user declines, or there is no terminal to ask on.
    """
    if arguments.yes:
        return
    if not has_keyboard():
        raise ConfigError(f"to {what}, give --yes; there is no terminal to ask on")
    print(f"{what}? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise ConfigError("nothing was changed; only yes is a confirmation")
