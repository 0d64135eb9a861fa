"""What the figures were taken on, and what about it may spoil them."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

IDLE_LOAD: Final = 0.5  # One-minute load average above which the machine is busy.
ROOT: Final = Path(__file__).resolve().parents[1]


def first_line(*command: str) -> str:
    """Return the first line a program prints, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"none ({error.strerror})"
    lines = (done.stdout + done.stderr).splitlines()
    return lines[0].strip() if lines else "unknown"


def commit() -> str:
    """Return the commit that is measured, and whether the tree differs from it."""
    line = first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    return "none" if line.startswith("fatal:") else line


def processor() -> str:
    """Return the processor's name as the kernel has it."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [
        line.partition(":")[2].strip()
        for line in text.splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def tuning() -> str:
    """Return the variables that tune libev and malloc; every server inherits them."""
    names = sorted(n for n in os.environ if n.startswith(("LIBEV_", "MALLOC_")))
    return " ".join(f"{name}={os.environ[name]}" for name in names) or "none"


def file_system(path: Path) -> str:
    """Return the type of the file system a path lies on."""
    return first_line("stat", "--file-system", "--format=%T", str(path))


def describe(work: Path) -> dict[str, str]:
    """
    Collect what two runs must have in common to be compared.

    Args:
        work: A folder on the file system that is used.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "bjoern": version("bjoern"),
        "google-crc32c": version("google-crc32c"),
        "memcached": first_line("memcached", "-V").removeprefix("memcached "),
        "nginx": first_line("nginx", "-v").removeprefix("nginx version: nginx/"),
        "wrk": first_line("wrk", "-v").partition(" Copyright")[0],
        "LIBEV_, MALLOC_ variables": tuning(),
        "file system": file_system(work),
        "commit": commit(),
        "load average": f"{os.getloadavg()[0]:.2f} at the start",
    }


def warnings(work: Path) -> Iterator[str]:
    """Say what spoils the figures here."""
    if os.getloadavg()[0] > IDLE_LOAD:
        yield "the machine is busy with something else; figures will be high"
    if (os.cpu_count() or 1) < 2:  # noqa: PLR2004 - the server and its client
        yield "one core: the server and its client share it"
    if file_system(work) == "tmpfs":
        yield "the files are in memory (tmpfs), not on a disk"
