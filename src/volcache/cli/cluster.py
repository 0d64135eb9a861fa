"""`volcache cluster`: what an operator asks and tells all instances of a cluster."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections import Counter
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    FileError,
    command,
    output,
    print_line,
)
from volcache.cli.screen import show
from volcache.cli.streams import write_file
from volcache.cli.values import tell_all
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.checks import check, listed
from volcache.fleet.collector import FleetCollector
from volcache.fleet.folder import plan
from volcache.fleet.inventory import load_inventory, with_drained
from volcache.fleet.local import SYSTEMD, is_local, restart
from volcache.fleet.render import SCRIPT, machine_of
from volcache.fleet.report import as_json, table, totals, worst_first
from volcache.fleet.targets import read_targets
from volcache.text import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from volcache.fleet.collector import Watched
    from volcache.fleet.folder import FileChange, Plan
    from volcache.fleet.targets import Target

_COLOUR_CHARACTERS: Final = 12  # Of a line, which take no place on a screen.
_VERBS: Final = ("added", "changed", "removed", "unchanged")


# --- Reports -----------------------------------------------------------------------


def _collector(arguments: argparse.Namespace) -> FleetCollector:
    return FleetCollector(arguments.targets, arguments.timeout)


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
    """Show reports until Ctrl-C; one if the output is no terminal."""
    if sys.stdout.isatty():
        collector = _collector(arguments)
        show(lambda: _screen(worst_first(collector.poll())), arguments.interval)
    arguments.json = arguments.problems = False
    return _status(arguments)


def _screen(rows: Sequence[Watched]) -> list[str]:
    is_coloured = _is_coloured()
    columns = shutil.get_terminal_size().columns - 1 - _COLOUR_CHARACTERS * is_coloured
    lines = table(rows, columns=columns, is_coloured=is_coloured)
    return [*totals(rows), "", *"\n".join(lines).split("\n")]


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
    targets = read_targets(arguments.targets)
    _confirm(f"flush everything on {counted(len(targets), 'instance')}", arguments)
    return tell_all(targets, "/-/flush", "flushed everything", arguments)


def _restart(arguments: argparse.Namespace) -> int:
    """Restart the instances of this machine, until one of them fails; return 1 then."""
    targets = [one for one in read_targets(arguments.targets) if not one.is_down]
    own = [target for target in targets if is_local(target)]
    if arguments.print:
        given = arguments.command_line
        words = [] if given == SYSTEMD else ["--command", given]
        for line in _elsewhere([one for one in targets if one not in own], words):
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
                took = restart(target, arguments.timeout, arguments.command_line)
            except InstanceError as error:
                report(f"failed: {error}")
                left = counted(len(own) - done - 1, "instance")
                report(f"restarted {done} of {len(own)}; {left} left as before")
                return EXIT_FAILED
            report(f"{target.name}: ready after {took:.1f} s")
            sys.stdout.flush()
        report(f"restarted {counted(len(own), 'instance')}")
    return EXIT_OK


def _elsewhere(targets: Sequence[Target], words: Sequence[str]) -> Iterator[str]:
    """Yield a command for each machine."""
    machines: dict[str, list[str]] = {}
    for target in targets:
        where = urlsplit(target.url)
        machines.setdefault(where.hostname or "", []).append(where.netloc)
    for host, names in machines.items():
        yield shlex.join(
            ["ssh", host, "sudo", "volcache", "cluster", "restart", *words, *names]
        )


def _confirm(what: str, arguments: argparse.Namespace) -> None:
    """
    Ask the user, unless --yes was given.

    Raises:
        ConfigError: The user declines, or there is no terminal to ask on.
    """
    if arguments.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
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
    for change in found.changes:
        apply_change(folder, change)
    for line in _rendered(found):
        print_line(line)
    return EXIT_OK


def apply_change(folder: Path, change: FileChange) -> None:
    """
    Write a file, or remove it with the folders that are then empty.

    Raises:
        FileError: It cannot be written or removed.
    """
    target = folder / change.path
    if change.new is not None:
        is_program = target.name == SCRIPT
        write_file(target, change.new.encode(), is_program=is_program)
        return
    try:
        target.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(str(target), "removed", error) from error
    with suppress(OSError):
        for parent in takewhile(lambda parent: parent != folder, target.parents):
            parent.rmdir()


def _drain(arguments: argparse.Namespace) -> int:
    """Take an instance out of nginx's list, or back; render the files."""
    path, name = Path(arguments.inventory), arguments.instance_name
    found = load_inventory(path)
    known = {one.address: one.name for one in found.instances}
    name = known.get(name, name)
    if name not in known.values():
        raise ConfigError(f"{path}: has no instance {name}; give MACHINE:PORT")
    drained = found.drained - {name} if arguments.back else found.drained | {name}
    text = with_drained(path, drained)
    write_file(path, text.encode())
    arguments.diff = False
    return _render(arguments)


def _diff(changes: Sequence[FileChange]) -> Iterator[str]:
    """Yield the lines of all changes; the same lines of several files once."""
    alike: dict[tuple[str, ...], list[FileChange]] = {}
    texts: dict[tuple[str, str], tuple[str, ...]] = {}  # New ones, by name.
    # First what is changed: a file of a new machine has the text of the others.
    for change in sorted(changes, key=lambda one: one.old is None):
        text = change.path.rpartition("/")[2], change.new or ""
        changed = (line for line in [*change.diff()][2:] if line[:1] in "+-")
        lines = tuple(sorted(line for line in changed if line[1:2] not in {"", "#"}))
        lines = texts.setdefault(text, lines) if change.new else lines
        alike.setdefault(lines, []).append(change)
    for first, *others in alike.values():
        yield from first.diff()
        names = dict.fromkeys(machine_of(one.path) or one.path for one in others)
        names.pop(machine_of(first.path) or "", None)
        if names:
            yield f"# and the same on {listed([*names])}"


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
        yield f"next: run apply.sh as root on {listed(changed)}"
    if gone := [name for name in names if name not in stay]:
        yield f"next: stop the instances on {listed(gone)}"


COMMANDS: Final = {
    name: command(name, run)
    for name, run in {
        "cluster status": _status,
        "cluster top": _top,
        "cluster flush": _flush,
        "cluster restart": _restart,
        "cluster drain": _drain,
        "cluster check-config": _check_config,
        "cluster render": _render,
    }.items()
}
