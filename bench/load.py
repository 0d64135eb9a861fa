"""
Load on an HTTP server by wrk.

wrk keeps a fixed number of connections busy with one request at a time; what it sends
is in the scripts `wrk_*.lua`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from latency import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCH: Final = Path(__file__).resolve().parent
FIGURES: Final = re.compile(r"^figures (\{.*\})$", re.MULTILINE)
MICROSECONDS: Final = 1_000_000


class LoadError(RuntimeError):
    """Some requests went wrong, so that the figures mean nothing."""


def wrk_path() -> str:
    """
    Find wrk.

    Raises:
        LoadError: It is not installed.
    """
    path = shutil.which("wrk")
    if path is None:
        raise LoadError("wrk is not installed; on Debian: apt-get install wrk")
    return path


def run_wrk(
    url: str,
    *,
    connections: int,
    seconds: float,
    script: str,
    arguments: Sequence[str] = (),
    misses: bool = False,
) -> Run:
    """
    Run wrk with one thread.

    Args:
        url: The server; the script makes the paths.
        connections: How many are kept busy.
        seconds: How long, rounded to whole seconds, at least one.
        script: The name of a Lua script in this folder.
        arguments: The script's arguments.
        misses: Whether every answer is to be an error, instead of none.

    Raises:
        LoadError: A socket error, a time-out or a status that was not asked for.
    """
    whole_seconds = max(1, round(seconds))
    command = [wrk_path(), "-t1", f"-c{connections}", f"-d{whole_seconds}s"]
    command += ["-s", str(BENCH / script), url, "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return read_figures(done.stdout, misses=misses, source=" ".join(command))


def read_figures(output: str, *, misses: bool, source: str) -> Run:
    """
    Read the line that the scripts print at the end.

    Raises:
        LoadError: There is none, or it says that something went wrong.
    """
    found = FIGURES.search(output)
    figures: dict[str, int] = json.loads(found[1]) if found else {}
    requests = figures.get("requests", 0)
    errors = requests if misses else 0
    if not requests or figures["failed"] or figures["status"] != errors:
        raise LoadError(f"{source} reported:\n{output}")
    return Run(
        requests=requests,
        seconds=figures["micros"] / MICROSECONDS,
        p50=figures["p50"] / 1000,
        p99=figures["p99"] / 1000,
        p999=figures["p999"] / 1000,
        max=figures["max"] / 1000,
    )
