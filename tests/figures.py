"""
Run a command of the tests, and keep what it has counted in docs/bench/tests.json.

    tests/figures.py crash COMMAND...

The output is passed on. The figures are written into docs/RELIABILITY.md, too; a test
compares the two. If the command runs `PART=1/8` of the tests, they are kept in .cache until
all parts were run on the same commit, in any order, and are then added up.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not __package__:  # Run as a script.
    sys.path[:0] = [str(path) for path in Path(__file__).resolve().parents[:2]]

from bench.machine import ROOT, describe
from support.parts import FIGURES, given_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PATH: Final = FIGURES
PARTS: Final = ROOT / ".cache" / "figures"

# What the programs print, with the figures in groups, and the names of the figures.
PATTERNS: Final = {
    r"counted (\w+): (\d+)": (),  # By the tests in Python, which name the figures.
    r"(\d+) runs, (\d+) heads: ": ("", "heads"),
    r"(\d+) connections; \d+ closed for room": ("connections",),
    r"(\d+) requests: \d+ values, ": ("requests_with_threads",),
    r"(\w+): (?:1 unchanged, )?(\d+) noticed": (),
    r"python: .*?(\d+) with a reason": ("python_reasons",),
    r"c: .*?(\d+) with a reason": ("c_reasons",),
}

# How long a case of a test took, as pytest prints it.
TOOK: Final = re.compile(r"([0-9]+)\.[0-9]+s call +(tests/[^\[\s]+)")

DOCUMENT: Final = ROOT / "docs" / "RELIABILITY.md"
# No longer right when `make crash` has been run.
SAMPLED: Final = " Those of `make crash` are from the sample in `make test`."
# Text of the document, in which # is a figure, and the names of the figures.
SHOWN: Final = {
    "| # crashes, and # more inside recoveries": (
        *("crashes_by_kills", "recoveries_ended_by_kills"),
    ),
    "| # power losses, and # more inside recoveries": (
        *("crashes_by_power_losses", "recoveries_ended_by_power_losses"),
    ),
    "| # faults": ("failed_calls",),
    "| # runs, # crashes": ("ring_runs", "ring_crashes"),
    "| # flips |": ("flips_after_a_stop",),
    "| # flips after a kill": ("flips_after_a_kill",),
    "| # starts were served, # refused": ("starts_served", "starts_refused"),
    "| # random streams": ("http_streams",),
    "| # heads": ("heads",),
    "| # connections, # requests by threads": ("connections", "requests_with_threads"),
    "| # of Python and # of C are noticed": ("python", "c"),
    "| # and # are not, for a written reason": ("python_reasons", "c_reasons"),
}


def filled(text: str) -> str:
    """
    Return a text with the figures of `PATH`.

    Raises:
        KeyError: A command that counts one of them has never been run.
        ValueError: A text of `SHOWN` is not in it once.
    """
    commands = json.loads(PATH.read_text())
    counted = {
        name: figure
        for kept in commands.values()
        for name, figure in kept["figures"].items()
    }
    if "parts" in commands["crash"]:
        text = text.replace(SAMPLED, "")
    for pattern, names in SHOWN.items():
        text, times = re.subn(
            re.escape(pattern).replace(r"\#", r"[\d,]+"),
            "".join(
                f"{part}{counted[name]:,}" if name else part
                for part, name in zip_longest(pattern.split("#"), names)
            ),
            text,
        )
        if times != 1:
            raise ValueError(f"{pattern!r} is {times} times in the text")
    return text


def figures_in(line: str) -> Counter[str]:
    """Return the figures of a line of output by their names."""
    found: Counter[str] = Counter()
    for pattern, names in PATTERNS.items():
        for match in re.finditer(rf"\b{pattern}", line):
            groups = match.groups()
            pairs = zip(names, groups, strict=True) if names else [groups]
            found.update({name: int(figure) for name, figure in pairs if name})
    return found


def parts_on(commit: str, name: str, parts: int) -> Iterator[tuple[str, Any]]:
    """Yield each part of a command and what was kept of it; None: it was not run."""
    for number in range(1, parts + 1):
        path = PARTS / f"{name}-{number}-of-{parts}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        is_right = kept.get("commit") == commit
        yield f"PART={number}/{parts}", kept if is_right else None


def keep(name: str, found: Counter[str], seconds: dict[str, list[int]]) -> None:
    """
    Keep the figures of a command, or of a part of it until all parts were run.

    Args:
        name: Of the command.
        found: The figures.
        seconds: How long the cases of each test took.
    """
    machine, (number, parts) = describe(ROOT), given_part()
    facts = {fact: machine[fact] for fact in ("date", "commit", "processor")}
    PARTS.mkdir(parents=True, exist_ok=True)
    path = PARTS / f"{name}-{number}-of-{parts}.json"
    path.write_text(json.dumps({**facts, "figures": found, "seconds": seconds}))
    all_parts = dict(parts_on(facts["commit"], name, parts))
    if left := [part for part, one in all_parts.items() if one is None]:
        sys.stdout.write(f"make {name}: left on this commit: {' '.join(left)}\n")
        return
    figures, took = Counter[str](), defaultdict[str, list[int]](list)
    for one in all_parts.values():
        figures.update(one["figures"])
        for test, some in one["seconds"].items():
            took[test] += some
    kept = json.loads(PATH.read_text()) if PATH.exists() else {}
    kept[name] = {**facts, "figures": figures, "parts": parts}
    if took:
        kept[name]["seconds"] = {test: sum(t) // len(t) for test, t in took.items()}
    PATH.write_text(f"{json.dumps(kept, indent=1, sort_keys=True)}\n")
    DOCUMENT.write_text(filled(DOCUMENT.read_text()))


def main(name: str, command: Sequence[str]) -> int:
    """Run a command; keep its figures if it ends with 0."""
    found, seconds = Counter[str](), defaultdict[str, list[int]](list)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            found += figures_in(line)
            if took := TOOK.match(line):
                seconds[took[2]].append(int(took[1]))
    if process.returncode == 0:
        keep(name, found, seconds)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
