"""
Run the scripts whose tables the documents show, and write both.

The output is kept in docs/bench/NAME.md, with the machine, the date and the commit.

    .venv/bin/python -m bench.extra [NAME...]
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from bench.machine import ROOT
from bench.report import DOCS, fill_documents

SCRIPTS: Final[dict[str, tuple[str, ...]]] = {
    "boot": ("--volume-size", "167772160"),
    "client_cost": ("--rounds", "5"),
    "check_speed": ("--megabytes", "256"),
    "data_plane": (),
    "eviction_cost": (),
    "hung_instance": (),
    "manifest": (),
    "memory": (),
    "scrape_cost": (),
    "scrub_cost": ("--rates", "10,100", "--seconds", "1"),
}


def main() -> None:
    """Run all scripts, or those that are named."""
    for name in sys.argv[1:] or SCRIPTS:
        command = [sys.executable, "-m", f"bench.extra.{name}", *SCRIPTS[name]]
        print(" ".join(command[1:]), flush=True)
        done = subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        (DOCS / "bench" / f"{name}.md").write_text(done.stdout, encoding="utf-8")
        fill_documents()


if __name__ == "__main__":
    main()
