#!/usr/bin/env python3
"""
Set the number of instances of the composition.

    tools/scale.py 5

Rewrites its files in place, so that a container sees a file that is mounted into it.
Lines that begin with `#each ` are the model of those that follow until `#end`, which are
made again, once for each instance. A line that begins with `#once ` is the model of one.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1]
FILES: Final = ("conf/compose/compose.yaml", "conf/compose/nginx/instances.conf")
TARGETS: Final = "conf/compose/volcache.json"  # JSON has no comments.
MAX: Final = 100  # The addresses of the composition are .11 to .110.
_MODEL: Final = re.compile(r"( *)#(each|once) (.*\n)")
_PLACE: Final = re.compile(r"@([a-z]+)@")


def scaled(text: str, number: int) -> str:
    """Return a file for another number of instances."""
    lines: list[str] = []
    models: list[str] = []
    numbers = range(0)
    for line in text.splitlines(keepends=True):
        if match := _MODEL.fullmatch(line):
            numbers = range(1, number + 1) if match[2] == "each" else range(1)
            models.append(match[1] + match[3])
        elif models and line.strip() != "#end":
            continue  # It was made for the number before.
        elif models:
            lines += [_filled(model, n, number) for n in numbers for model in models]
            models = []
        lines.append(line)
    return "".join(lines)


def _filled(model: str, n: int, number: int) -> str:
    """Return a line for an instance, the first of which has number 1."""
    values = {
        "number": n,
        "address": 10 + n,
        "instances": number,
        # As nginx/volcache/instances.conf says.
        "connections": max(128, 768 // number),
    }
    return _PLACE.sub(lambda match: str(values[match[1]]), model)


def targets(number: int) -> str:
    """Return the list of instances for the Prometheus of the composition."""
    rows = [
        {
            "targets": [f"disk{n}:1234"],
            "labels": {"machine": "compose", "disk": f"disk{n}"},
        }
        for n in range(1, number + 1)
    ]
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def main() -> int:
    """Rewrite the files; return the exit code."""
    digits = sys.argv[1] if len(sys.argv) == 2 else ""  # noqa: PLR2004
    number = int(digits) if re.fullmatch("[1-9][0-9]{0,2}", digits) else 0
    if not 1 <= number <= MAX:
        sys.stderr.write(f"usage: tools/scale.py 1..{MAX}\n")
        return 2
    for name in FILES:
        path = PROJECT / name
        path.write_text(scaled(path.read_text(), number))
    (PROJECT / TARGETS).write_text(targets(number))
    return 0


if __name__ == "__main__":
    sys.exit(main())
