"""malloc.py: freed memory is kept."""

import subprocess
import sys

import pytest

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
