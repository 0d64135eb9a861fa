"""`volcache cluster check-config`, `render` and `run`: how a cluster is set up."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from volcache.cli.command import EXIT_FAILED, EXIT_OK, output, print_line
from volcache.errors import ConfigError
from volcache.fleet.checks import check, see
from volcache.fleet.folder import plan, write
from volcache.fleet.inventory import load_inventory
from volcache.fleet.local import run_all
from volcache.fleet.render import machine_of, ring_list
from volcache.fleet.targets import read_targets
from volcache.text import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from volcache.fleet.folder import Plan

_NAMES_MAX: Final = 5  # Machines that a line names.


def check_config(arguments: argparse.Namespace) -> int:
    """Print what differs between instances; return 1 if anything does."""
    targets = read_targets(arguments.instances)
    findings = check(see(targets, timeout=arguments.timeout))
    if arguments.json:
        found = {
            "instances": len(targets),
            "findings": [finding._asdict() for finding in findings],
        }
        print_line(json.dumps(found, indent=2))
    else:
        for finding in findings:
            print_line(f"{finding.check:<9} {finding.text}")
        asked = counted(len(targets), "instance")
        print_line(f"{asked}: {counted(len(findings), 'finding')}")
    return EXIT_FAILED if findings else EXIT_OK


def render(arguments: argparse.Namespace) -> int:
    """Write the files of an inventory, or print what would change."""
    folder = Path(arguments.folder)
    found = plan(folder, load_inventory(Path(arguments.inventory)))
    if arguments.diff:
        for change in found.changes:
            for line in change.diff():
                print_line(line)
        return EXIT_FAILED if found.changes else EXIT_OK
    write(folder, found)
    for line in _rendered(found):
        print_line(line)
    return EXIT_OK


def _rendered(found: Plan) -> Iterator[str]:
    """Yield what was done, with a line for each machine, and what is to be done next."""
    machines: dict[str, Counter[str]] = {}
    verbs = Counter(change.verb for change in found.changes)
    for change in found.changes:
        if (name := machine_of(change.path)) is None:
            yield f"{change.path}: {change.verb}"
        else:
            machines.setdefault(name, Counter())[change.verb] += 1
    for name, counts in machines.items():
        yield f"machines/{name}: {_counts(counts)}"
    same = len(found.paths) - verbs["added"] - verbs["changed"]
    yield f"{counted(len(found.paths), 'file')}: {_counts(verbs, same)}"
    stay = {machine_of(path) for path in found.paths}
    if changed := [name for name in machines if name in stay]:
        yield f"next: run apply.sh as root on {_listed(changed)}"
    if gone := [name for name in machines if name not in stay]:
        yield f"next: stop the instances on {_listed(gone)}"


def _counts(counts: Counter[str], same: int = 0) -> str:
    parts = [f"{count} {verb}" for verb, count in sorted(counts.items()) if count]
    return ", ".join([*parts, f"{same} unchanged"] if same or not parts else parts)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    shown = ", ".join(names[:_NAMES_MAX])
    return f"{shown} and {counted(more, 'more machine')}" if more > 0 else shown


def run(arguments: argparse.Namespace) -> int:
    """Run the instances of an inventory on this machine."""
    inventory = load_inventory(Path(arguments.inventory))
    names = [machine.name for machine in inventory.machines]
    wanted = arguments.machine or names
    for name in wanted:
        if name not in names:
            raise ConfigError(
                f"{arguments.inventory}: no machine {name!r}; there are {_listed(names)}"
            )
    instances = [i for i in inventory.instances if i.machine.name in wanted]

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(EXIT_OK)

    signal.signal(signal.SIGTERM, stop)
    with output() as report:
        is_good = run_all(
            instances,
            Path(arguments.folder),
            arguments.config,
            "" if inventory.is_failover else ring_list(inventory),
            lambda line: (report(line), sys.stdout.flush())[0],
        )
    return EXIT_OK if is_good else EXIT_FAILED
