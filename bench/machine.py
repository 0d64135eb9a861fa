"""What the kernel reports of the machine and of processes; control of the page cache."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
MIB: Final = 1 << 20
IDLE_LOAD: Final = 0.5  # One-minute load average above which the machine is busy.


def describe(work: Path) -> dict[str, str]:
    """
    Collect what must be equal for two runs to be comparable.

    Args:
        work: A folder on the file system that is measured.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "memcached": _first_line("memcached", "-V").removeprefix("memcached "),
        "nginx": _first_line("nginx", "-v").removeprefix("nginx version: nginx/"),
        "Redis": _first_line("redis-server", "-v"),
        "LIBEV_, MALLOC_ variables": _tuning(),
        "file system": _file_system(work),
        "commit": commit(),
        "load average": f"{os.getloadavg()[0]:.2f} at the start",
    }


def warnings(work: Path) -> Iterator[str]:
    """List what makes figures taken on this machine unreliable."""
    if os.getloadavg()[0] > IDLE_LOAD:
        yield "the machine is busy: times are too high and their range too wide"
    if (os.cpu_count() or 1) < 2:  # noqa: PLR2004 - the server and its client
        yield "one core: the server and its client share it"
    if _file_system(work) == "tmpfs":
        yield "the files are in memory (tmpfs), not on a disk"


def commit() -> str:
    """Return the commit of the tree, with `-dirty` if files differ from it."""
    line = _first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    return "none" if line.startswith("fatal:") else line


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [
        line.partition(":")[2].strip()
        for line in text.splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def _tuning() -> str:
    """Return the variables that tune libev and malloc; all servers inherit them."""
    names = sorted(n for n in os.environ if n.startswith(("LIBEV_", "MALLOC_")))
    return " ".join(f"{name}={os.environ[name]}" for name in names) or "none"


def _file_system(path: Path) -> str:
    return _first_line("stat", "--file-system", "--format=%T", str(path))


def _first_line(*command: str) -> str:
    """Return the first line a program prints, or why it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"none ({error.strerror})"
    lines = (done.stdout + done.stderr).splitlines()
    return lines[0].strip() if lines else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds used, and bytes sent to the disk, since the processes started."""

    user: float
    system: float
    written: int

    def __sub__(self, earlier: Usage) -> Usage:
        """Return what was used between the two."""
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
    """
    Add up what processes have used so far, all threads included.

    The sum of user and system time is exact to nanoseconds; how it divides into the two
    is estimated by the kernel from ticks of 10 ms.
    """
    user = system = 0.0
    written = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        # The second field, the name, may hold spaces: count from its closing bracket.
        fields = text.rpartition(")")[2].split()
        user_ticks, system_ticks = int(fields[11]), int(fields[12])
        total = time.clock_gettime(_cpu_clock(pid))
        user_share = user_ticks / max(1, user_ticks + system_ticks)
        user += total * user_share
        system += total * (1 - user_share)
        written += _field(pid, "io", "write_bytes")
    return Usage(user=user, system=system, written=written)


def _cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, as `clock_getcpuclockid` computes it."""
    return (~pid << 3) | 2


def memory_bytes(pid: int, name: str = "VmRSS") -> int:
    """Return a size in `/proc/PID/status`; `VmHWM` is the highest `VmRSS` so far."""
    return _field(pid, "status", name) * 1024


def resident_bytes(pids: Iterable[int]) -> int:
    """Add up the resident memory of processes; shared pages count in each of them."""
    return sum(memory_bytes(pid) for pid in pids)


def _field(pid: int, file: str, name: str) -> int:
    """
    Return the number after a name in one of a process's files.

    Raises:
        KeyError: The file has no such line.
    """
    for line in Path(f"/proc/{pid}/{file}").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def pin(pids: Iterable[int], core: int | None) -> None:
    """Keep processes, and the threads they have, on one core; None: on any."""
    count = os.cpu_count() or 1
    cores = range(count) if core is None or core >= count else {core}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)


def pinned_command(core: int | None) -> list[str]:
    """Return what is put before a command that stays on one core; None: on all."""
    is_free = core is None or (os.cpu_count() or 1) <= core
    return [] if is_free else ["taskset", "-c", str(core)]


def compiled(source: Path) -> Path:
    """Return the program of a C source, compiled below build/ if that is older."""
    program = ROOT / "build" / f"bench-{source.stem}"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        command = ["gcc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
        # Others may compile or run it at the same time.
        mine = program.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", mine, source], check=True)
        mine.replace(program)
    return program


def drop_pages(folder: Path) -> None:
    """
    Write everything to the disk and drop the cached pages of the files in a folder.

    Names and inodes stay cached.
    """
    os.sync()  # Once: file by file takes seconds when there are many.
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
