"""The C library is told to keep freed memory."""

import subprocess
import sys

# Each round frees what lies at the end of the heap, which glibc gives back by default.
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
    """Count the new pages a fresh process needs to take and free 2 MB a hundred times."""
    command = (sys.executable, "-c", _ROUNDS.format(prepare=prepare))
    return int(subprocess.run(command, check=True, capture_output=True).stdout)


def test_freed_memory_is_used_again() -> None:
    """Without it each value of 64 KiB would cost its pages anew."""
    assert page_faults(_KEEP) < 100 < page_faults("")
