"""
Run what makes the tables that the documents show, and write both.

The output is kept in docs/bench/NAME.md, with the machine, the date and the commit.

    .venv/bin/python -m bench.extra [NAME...]
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from bench.machine import ROOT
from bench.report import DOCS, fill_documents

_CASES: Final = ("bench.run", "--only")
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "boot": ("bench.extra.boot", "--volume-size", "167772160"),
    "client_cost": ("bench.extra.client_cost", "--rounds", "5"),
    "check_speed": ("bench.extra.check_speed", "--megabytes", "256"),
    "data_plane": (*_CASES, "memcached-hangs,cold,two-clients"),
    "eviction_cost": ("bench.extra.eviction_cost",),
    "hung_instance": ("bench.extra.hung_instance",),
    "memory": ("bench.extra.memory",),
    "scrape_cost": (*_CASES, "scrape"),
    "scrub_cost": (*_CASES, "scrub"),
}


def main() -> None:
    """Run all scripts, or those that are named."""
    for name in sys.argv[1:] or COMMANDS:
        command = [sys.executable, "-m", *COMMANDS[name]]
        print(" ".join(command[1:]), flush=True)
        done = subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        (DOCS / "bench" / f"{name}.md").write_text(done.stdout, encoding="utf-8")
        fill_documents()


if __name__ == "__main__":
    main()
