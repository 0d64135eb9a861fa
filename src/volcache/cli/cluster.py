"""`volcache cluster`: what an operator asks and tells all instances of a cluster."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    command,
    output,
    print_line,
)
from volcache.cli.keyboard import has_keyboard, show
from volcache.cli.token import read_token
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.checks import check
from volcache.fleet.collector import FleetCollector
from volcache.fleet.folder import plan, write
from volcache.fleet.inventory import load_inventory
from volcache.fleet.local import is_local, restart
from volcache.fleet.remote import act, each
from volcache.fleet.render import machine_of
from volcache.fleet.report import as_json, table, totals, worst_first
from volcache.fleet.targets import read_targets
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from volcache.fleet.collector import Watched
    from volcache.fleet.folder import Change, Plan
    from volcache.fleet.targets import Target

_NAMES_MAX: Final = 5  # Machines that a line names.
_VERBS: Final = ("added", "changed", "removed", "unchanged")


# --- Reports -----------------------------------------------------------------------


def _collector(arguments: argparse.Namespace) -> FleetCollector:
    return FleetCollector(arguments.targets, timeout=arguments.timeout)


def _status(arguments: argparse.Namespace) -> int:
    """Print one report; return 1 if an instance is not healthy."""
    rows = worst_first(_collector(arguments).poll())
    if arguments.json:
        print_line(json.dumps(as_json(rows), indent=2))
    else:
        shown = [row for row in rows if row.health.severity or not arguments.problems]
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = table(shown, columns=columns, is_coloured=_is_coloured())
        for line in [*lines, "", *totals(rows)]:
            print_line(line)
    return EXIT_FAILED if any(row.health.severity for row in rows) else EXIT_OK


def _top(arguments: argparse.Namespace) -> int:
    """Show reports until the user quits; one if the output is no terminal."""
    if not sys.stdout.isatty():
        arguments.json = arguments.problems = False
        return _status(arguments)
    collector = _collector(arguments)
    show(lambda: _screen(worst_first(collector.poll())), arguments.interval)
    return EXIT_OK


def _screen(rows: Sequence[Watched]) -> list[str]:
    """Return a report that fits the terminal."""
    room = shutil.get_terminal_size()
    lines = table(rows, columns=room.columns, is_coloured=_is_coloured())
    above = [line for text in totals(rows) for line in wrap(text, room.columns)]
    # Below: an empty line, what is left out, the cursor.
    space, left = room.lines - len(above) - 3, 0
    while left < len(rows) - 1 and sum(t.count("\n") + 1 for t in lines) > space:
        lines.pop()
        left += 1
    more = [f"and {counted(left, 'more instance')}"] if left else []
    return "\n".join([*above, "", *lines, *more]).split("\n")


def _is_coloured() -> bool:
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _check_config(arguments: argparse.Namespace) -> int:
    """Print what differs between instances; return 1 if anything does."""
    instances = _collector(arguments).poll()
    findings = check(instances)
    if arguments.json:
        rows = [finding._asdict() for finding in findings]
        found = {"instances": len(instances), "findings": rows}
        print_line(json.dumps(found, indent=2))
    else:
        for finding in findings:
            print_line(f"{finding.check:<9} {finding.text}")
        asked = counted(len(instances), "instance")
        print_line(f"{asked}: {counted(len(findings), 'finding')}")
    return EXIT_FAILED if findings else EXIT_OK


# --- Actions -----------------------------------------------------------------------


def _flush(arguments: argparse.Namespace) -> int:
    """Flush all instances, also if some fail; return 1 then."""
    targets = read_targets(arguments.targets)
    token = read_token(arguments.token_file)
    if arguments.dry_run:
        return _would_flush(_collector(arguments).poll())
    _confirm(f"flush everything on {counted(len(targets), 'instance')}", arguments)
    failed: list[str] = []
    with output() as report:
        answers = each(
            [target.url for target in targets],
            lambda url: act(url, "/-/flush", token, timeout=arguments.timeout),
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
        report(f"flushed {done} of {counted(len(targets), 'instance')}{again}")
    return EXIT_FAILED if failed else EXIT_OK


def _would_flush(instances: Sequence[Watched]) -> int:
    """Print what a flush would remove; change nothing."""
    done = 0
    with output() as report:
        for row in instances:
            if row.figures is None:
                report(f"failed: {row.target.name}: {row.health.problem}")
            else:
                done += 1
                keys = counted(row.figures.keys, "key", ",")
                report(f"{row.target.name}: would flush {keys}")
        report(f"would flush {done} of {counted(len(instances), 'instance')}")
    return EXIT_OK if done == len(instances) else EXIT_FAILED


def _restart(arguments: argparse.Namespace) -> int:
    """Restart the instances of this machine, until one of them fails; return 1 then."""
    targets = [one for one in read_targets(arguments.targets) if not one.is_down]
    own = [target for target in targets if is_local(target)]
    if arguments.print:
        for line in _elsewhere([one for one in targets if one not in own]):
            print_line(line)
        return EXIT_OK
    if not own:
        raise ConfigError(
            "no instance of the list is on this machine; --print shows the commands for"
            " the other machines"
        )
    with output() as report:
        for done, target in enumerate(own):
            try:
                took = restart(target, arguments.timeout)
            except InstanceError as error:
                report(f"failed: {error}")
                left = counted(len(own) - done - 1, "instance")
                report(f"restarted {done} of {len(own)}; {left} left as before")
                return EXIT_FAILED
            report(f"{target.name}: ready after {took:.1f} s")
            sys.stdout.flush()
        report(f"restarted {counted(len(own), 'instance')}")
    return EXIT_OK


def _elsewhere(targets: Sequence[Target]) -> Iterator[str]:
    """Yield a command for each machine."""
    machines: dict[str, list[str]] = {}
    for target in targets:
        where = urlsplit(target.url)
        machines.setdefault(where.hostname or "", []).append(where.netloc)
    for host, names in machines.items():
        yield shlex.join(
            ["ssh", host, "sudo", "volcache", "cluster", "restart", *names]
        )


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


# --- Inventories -------------------------------------------------------------------


def _render(arguments: argparse.Namespace) -> int:
    """Write the files of an inventory, or print what would change."""
    folder = Path(arguments.folder)
    found = plan(folder, load_inventory(Path(arguments.inventory)))
    if arguments.diff:
        for line in _diff(found.changes):
            print_line(line)
        return EXIT_FAILED if found.changes else EXIT_OK
    write(folder, found)
    for line in _rendered(found):
        print_line(line)
    return EXIT_OK


def _diff(changes: Sequence[Change]) -> Iterator[str]:
    """Yield the lines of all changes; the same of several machines once."""
    alike: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        name = change.path.rpartition("/")[2]
        alike.setdefault((name, change.old, change.new), []).append(change)
    for first, *others in alike.values():
        yield from first.diff()
        if others:
            names = [machine_of(one.path) or one.path for one in others]
            yield f"# and the same on {_listed(names)}"


def _rendered(found: Plan) -> Iterator[str]:
    """Yield what was done, and what is to be done next."""
    verbs = Counter(change.verb for change in found.changes)
    for change in found.changes:
        if machine_of(change.path) is None:
            yield f"{change.path}: {change.verb}"
    verbs["unchanged"] = len(found.paths) - verbs["added"] - verbs["changed"]
    parts = [f"{verbs[verb]} {verb}" for verb in _VERBS if verbs[verb]]
    yield f"{counted(len(found.paths), 'file')}: {', '.join(parts)}"
    machines = dict.fromkeys(machine_of(change.path) for change in found.changes)
    names = [name for name in machines if name]
    stay = {machine_of(path) for path in found.paths}
    if changed := [name for name in names if name in stay]:
        yield f"next: run apply.sh as root on {_listed(changed)}"
    if gone := [name for name in names if name not in stay]:
        yield f"next: stop the instances on {_listed(gone)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    shown = ", ".join(names[:_NAMES_MAX])
    return f"{shown} and {counted(more, 'more machine')}" if more > 0 else shown


# --- The command -------------------------------------------------------------------

_SUBCOMMANDS: Final = tuple(
    command(f"cluster {name}", run)
    for name, run in {
        "status": _status,
        "top": _top,
        "flush": _flush,
        "restart": _restart,
        "check-config": _check_config,
        "render": _render,
    }.items()
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    subs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for one in _SUBCOMMANDS:
        sub = subs.add_parser(
            one.name.split()[1],
            help=one.text,
            description=one.text,
            epilog=one.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run_cluster=one.run)
        one.add_arguments(sub)


def _run_subcommand(arguments: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int] = arguments.run_cluster
    return run(arguments)


COMMAND: Final = command("cluster", _run_subcommand, _add_arguments)
