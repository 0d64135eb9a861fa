"""memory.py: the memory of the machine or container; malloc.py: freed memory is kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from volcache.memory import BODY_MEMORY_MIN, default_body_memory, memory_bytes


@pytest.mark.parametrize(
    ("line", "file", "content", "limit"),
    [
        ("0::/a/b", "sys/fs/cgroup/a/memory.max", "1000000", 1_000_000),
        ("0::/a/b", "sys/fs/cgroup/a/b/memory.max", "max", None),
        ("0::/../a", "sys/fs/cgroup/memory.max", "2000000", 2_000_000),
        (
            "5:memory:/a",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "3000000",
            3_000_000,
        ),
        ("5:memory:/a", "sys/fs/cgroup/memory/memory.limit_in_bytes", "x", None),
    ],
)
def test_the_limit_of_a_control_group_counts(
    tmp_path: Path, line: str, file: str, content: str, limit: int | None
) -> None:
    """Its own, or that of one above it; in both versions."""
    machine = memory_bytes(tmp_path)
    for name, text in (("proc/self/cgroup", f"1:cpu:/\n{line}\n"), (file, content)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert memory_bytes(tmp_path) == (limit or machine)


def test_body_memory_by_default_is_at_least_64_mib() -> None:
    """Or a quarter."""
    assert default_body_memory() >= BODY_MEMORY_MIN


# Each round frees memory at the end of the heap, which glibc returns by default.
_ROUNDS = """
import resource
{prepare}
def round():
    return len([bytes(100_000) for _ in range(20)])
round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_KEEP = "from volcache.malloc import keep_freed_memory; assert keep_freed_memory()"


def page_faults(prepare: str) -> int:
    """Return the page faults of a process that allocates and frees 2 MB 100 times."""
    command = (sys.executable, "-c", _ROUNDS.format(prepare=prepare))
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.mark.slow
def test_freed_memory_is_reused() -> None:
    """By default glibc returns it to the system."""
    assert page_faults(_KEEP) < 100 < page_faults("")
