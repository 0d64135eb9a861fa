"""
Run a command of the tests, and keep what it has counted in docs/bench/tests.json.

    tests/figures.py crash COMMAND...

The output is passed on. The figures are written into docs/RELIABILITY.md, too; a test
compares the two.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not __package__:  # Run as a script.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.machine import ROOT, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH: Final = ROOT / "docs" / "bench" / "tests.json"

# What the programs print, with the figures in groups, and the names of the figures.
PATTERNS: Final = {
    r"counted (\w+): (\d+)": (),  # By the tests in Python, which name the figures.
    r"(\d+) streams, \d+ in a second; (\d+) requests, ": ("streams", "requests"),
    r"(\d+) runs, (\d+) heads: ": ("", "heads"),
    r"(\d+) connections; \d+ closed for room": ("connections",),
    r"(\d+) requests: \d+ values, ": ("requests_with_threads",),
    r"(\w+): (?:1 unchanged, )?(\d+) noticed": (),
    r"python: .*?(\d+) with a reason": ("python_reasons",),
    r"c: .*?(\d+) with a reason": ("c_reasons",),
}

DOCUMENT: Final = ROOT / "docs" / "RELIABILITY.md"
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
    "| # random streams": ("gate_streams",),
    "| # streams, # requests |": ("streams", "requests"),
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
    counted = {
        name: figure
        for kept in json.loads(PATH.read_text()).values()
        for name, figure in kept["figures"].items()
    }
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


def main(name: str, command: Sequence[str]) -> int:
    """Run a command; keep its figures if it ends with 0."""
    found: Counter[str] = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            found += figures_in(line)
    if process.returncode == 0:
        machine = describe(ROOT)
        kept = json.loads(PATH.read_text()) if PATH.exists() else {}
        kept[name] = {
            **{fact: machine[fact] for fact in ("date", "commit", "processor")},
            "figures": dict(sorted(found.items())),
        }
        PATH.write_text(f"{json.dumps(kept, indent=1, sort_keys=True)}\n")
        DOCUMENT.write_text(filled(DOCUMENT.read_text()))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
