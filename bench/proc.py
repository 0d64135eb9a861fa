"""What the kernel says of processes: CPU time, memory, bytes written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What processes have used in all: CPU seconds, and bytes sent to the disk."""

    user: float
    system: float
    written: int

    def __sub__(self, earlier: Usage) -> Usage:
        """Return what was used since."""
        return Usage(
            user=self.user - earlier.user,
            system=self.system - earlier.system,
            written=self.written - earlier.written,
        )


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, such as the workers of nginx."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            found += family(int(child))
    return found


def usage(pids: Iterable[int]) -> Usage:
    """Add up what processes with all their threads have used so far."""
    user = system = written = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        # The second field, the name, may hold spaces: count from its closing bracket.
        fields = text.rpartition(")")[2].split()
        user += int(fields[11])
        system += int(fields[12])
        written += _field(pid, "io", "write_bytes")
    return Usage(
        user=user / TICKS_PER_SECOND,
        system=system / TICKS_PER_SECOND,
        written=written,
    )


def resident_bytes(pids: Iterable[int]) -> int:
    """Add up the memory that processes hold, shared pages as often as they are held."""
    return sum(_field(pid, "status", "VmRSS") * 1024 for pid in pids)


def _field(pid: int, file: str, name: str) -> int:
    """Return the number behind a name in one of a process's files."""
    for line in Path(f"/proc/{pid}/{file}").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)
