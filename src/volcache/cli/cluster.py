"""`volcache cluster`: what an operator asks and tells all instances of a cluster."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import quote

from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    Command,
    output,
    print_line,
    seconds,
)
from volcache.cli.keyboard import QUIT, has_keyboard, keyboard
from volcache.cli.token import add_token_file, read_token
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.checks import check
from volcache.fleet.collector import ASKED_MAX, FleetCollector
from volcache.fleet.folder import plan, write
from volcache.fleet.inventory import load_inventory
from volcache.fleet.local import run_all
from volcache.fleet.remote import ACTION_TIMEOUT_SECONDS, TIMEOUT_SECONDS, act, each
from volcache.fleet.render import machine_of, ring_list
from volcache.fleet.report import as_json, table, totals, worst_first
from volcache.fleet.targets import INSTANCES_DEFAULT, TARGETS, read_targets
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from volcache.fleet.collector import Watched
    from volcache.fleet.folder import Plan
    from volcache.fleet.targets import Target

    Run = Callable[[argparse.Namespace], int]

_TOP_SECONDS: Final = 2.0
_SECONDS_MAX: Final = 3600.0
_NAMES_MAX: Final = 5  # Machines that a line names.
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_SCREEN: Final = "\x1b[J"


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
        return _status(arguments)
    collector = _collector(arguments)
    with keyboard() as wait:
        while True:
            print(_screen(worst_first(collector.poll())), end="", flush=True)
            if wait(arguments.interval) in QUIT:
                return EXIT_OK


def _screen(rows: Sequence[Watched]) -> str:
    """Return a report that a terminal shows over the last one."""
    room = shutil.get_terminal_size()
    lines = table(rows, columns=room.columns, is_coloured=_is_coloured())
    # Below: two lines of totals, an empty one, what is left out, the cursor.
    left = len(lines) - max(2, room.lines - 5)
    if left > 0:
        lines = [*lines[:-left], f"and {counted(left, 'more instance')}"]
    lines = [*(line[: room.columns] for line in totals(rows)), "", *lines]
    ended = [f"{line}{_TO_END_OF_LINE}\n" for line in lines]
    return "".join([_HOME, *ended, _TO_END_OF_SCREEN])


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
    """Flush all instances; return 1 if one has not done it."""
    targets = read_targets(arguments.targets)
    token = read_token(arguments.token_file)
    if arguments.dry_run:
        return _would_flush(_collector(arguments).poll())
    _confirm(f"flush everything on {counted(len(targets), 'instance')}", arguments)
    return _act(targets, "/-/flush", token, "flushed", arguments.timeout)


def _would_flush(instances: Sequence[Watched]) -> int:
    """Print what a flush would remove; change nothing."""
    done = 0
    with output() as report:
        for row in instances:
            if row.figures is None:
                report(f"failed: {row.target.name}: {row.health.problem}")
            else:
                done += 1
                keys = counted(int(row.figures.keys), "key", ",")
                report(f"{row.target.name}: would flush {keys}")
        report(f"would flush {done} of {counted(len(instances), 'instance')}")
    return EXIT_OK if done == len(instances) else EXIT_FAILED


def _purge(arguments: argparse.Namespace) -> int:
    """Purge a prefix on all instances; return 1 if one has not done it."""
    targets = read_targets(arguments.targets)
    token = read_token(arguments.token_file)
    prefix = quote(os.fsencode(arguments.prefix), safe="/")
    verb, query = "purged", f"prefix={prefix}"
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
            at_once=ASKED_MAX,
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


# --- Inventories -------------------------------------------------------------------


def _render(arguments: argparse.Namespace) -> int:
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


def _run(arguments: argparse.Namespace) -> int:
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


# --- Arguments ---------------------------------------------------------------------


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for `read_targets`, behind all other positional ones."""
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="nginx's list of instances, a file with an address in each line, an"
        " inventory (.toml), or addresses: HOST:PORT or URL (default: the variable"
        f" {TARGETS}, else {INSTANCES_DEFAULT})",
    )


def _add_timeout(
    parser: argparse.ArgumentParser, timeout: float = TIMEOUT_SECONDS
) -> None:
    parser.add_argument(
        "--timeout",
        type=seconds(_SECONDS_MAX),
        default=timeout,
        metavar="SECONDS",
        help="for each instance; all are asked at the same time (default: %(default)g)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_status(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    _add_timeout(parser)
    parser.add_argument(
        "--problems", action="store_true", help="list only those that are not healthy"
    )
    _add_json(parser)


def _add_top(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    _add_timeout(parser, _TOP_SECONDS)
    parser.add_argument(
        "--interval",
        type=seconds(_SECONDS_MAX),
        default=_TOP_SECONDS,
        metavar="SECONDS",
        help="between two reports (default: %(default)g)",
    )
    parser.set_defaults(json=False, problems=False)  # For one report.


def _add_action(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    _add_timeout(parser, ACTION_TIMEOUT_SECONDS)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="change nothing")
    add_token_file(parser)


def _add_purge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="what the keys begin with")
    _add_action(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    _add_timeout(parser)
    _add_json(parser)


def _add_inventory(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument("folder", metavar="DIR", help=folder)
    parser.add_argument(
        "-i",
        "--inventory",
        required=True,
        metavar="FILE",
        help="the machines, disks, ports and weights (TOML)",
    )


def _add_render(parser: argparse.ArgumentParser) -> None:
    _add_inventory(parser, "the folder to write; other files in it are not touched")
    parser.add_argument(
        "--diff",
        action="store_true",
        help="change nothing; print what would change, and exit with 1 if anything would",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_inventory(parser, "a folder for the mount points and logs; created if needed")
    parser.add_argument(
        "--machine",
        action="append",
        metavar="NAME",
        help="only that one (default: all)",
    )
    parser.add_argument(
        "--config", metavar="CONFIG", help="settings file of all instances"
    )


_STATUS: Final = """\
Rates, hit ratio and p99 (of GETs) are those since the start of an instance; "top" shows
those since its previous report. Lines are cut off at the width of the terminal, and are
complete in a pipe.

exit code: 0 all instances are healthy; 1 at least one is not; 2 a wrong argument or list
"""
_ACTION: Final = """\
Asks for confirmation. If some instances fail, the others continue.

exit code: 0 all instances have done it; 1 at least one has not; 2 a wrong argument or list,
no token, or not confirmed: no instance was changed
"""
_CHECK: Final = """\
Finds instances that do not answer, that are in the list twice, whose version or settings
differ from those of the others, whose weight does not fit their capacity, and whose clock
is more than 3 seconds off.

exit code: 0 nothing was found; 1 something was; 2 a wrong argument or list
"""
_RENDER: Final = """\
Writes nginx's list of instances, targets for Prometheus, and for each machine files for
systemd and a script that installs them and enables the instances. Files that are right
are not written again; those of a machine that has left the inventory are removed.

exit code: 0 done; 1 a file cannot be written, or with --diff something would change;
2 a wrong argument or inventory
example:
  volcache cluster render rendered --inventory inventory.toml --diff
"""
_RUN: Final = """\
All instances listen on the addresses of the inventory, which this machine needs to have.
Their files are in DIR/MACHINE/PORT, and their logs in DIR/MACHINE/PORT.log.
"""
_EPILOG: Final = """\
examples:
  volcache cluster status
  volcache cluster top inventory.toml
  volcache cluster purge tiles/12/ http://10.0.0.7:1234 http://10.0.0.8:1234
"""
_SUBCOMMANDS: Final[
    tuple[tuple[str, Run, Callable[[argparse.ArgumentParser], None], str, str], ...]
] = (
    ("status", _status, _add_status, "Show all instances, the worst first.", _STATUS),
    ("top", _top, _add_top, "Show them again and again, until q or Ctrl-C.", ""),
    ("flush", _flush, _add_action, "Remove everything from all instances.", _ACTION),
    (
        *("purge", _purge, _add_purge),
        "Invalidate all keys with a prefix, on all instances.",
        _ACTION,
    ),
    (
        *("check-config", _check_config, _add_check),
        "Compare the instances with each other.",
        _CHECK,
    ),
    (
        *("render", _render, _add_render),
        "Write the files that an inventory stands for.",
        _RENDER,
    ),
    ("run", _run, _add_run, "Run an inventory on this machine, for a trial.", _RUN),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    subs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, run, add_arguments, text, epilog in _SUBCOMMANDS:
        sub = subs.add_parser(
            name,
            help=text,
            description=text,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run_cluster=run)
        add_arguments(sub)


def _run_subcommand(arguments: argparse.Namespace) -> int:
    run: Run = arguments.run_cluster
    return run(arguments)


COMMAND: Final = Command(
    name="cluster",
    text="Show, compare, change or set up all instances of a cluster.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run_subcommand,
)
