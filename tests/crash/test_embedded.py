"""Kill a process that writes to an embedded cache, open it again and compare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.embedded import open_small
from support.process import SOURCE

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KEYS: Final = 40
WRITES: Final = 150
KILLS: Final = 4
# Operation `number` deletes or stores one key; its number is printed when it is done.
PROGRAM: Final = """
import sys, volcache
path, mode, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
cache = volcache.open(path, capacity="8MiB", sync_mode=mode, sync_interval=0.01)
while True:
    number += 1
    key = str(number % 40)
    if number % 7:
        cache[key] = b"%d." % number * (number * 37 % 5000)
    else:
        cache.delete(key)
    print(number, flush=True)
"""


def expected(number: int) -> bytes | None:
    """Return what an operation leaves."""
    return b"%d." % number * (number * 37 % 5000) if number % 7 else None


def kill_after(path: Path, mode: str, number: int, writes: int) -> int:
    """Kill a process after some writes; return the number of the last acknowledged one."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), mode, str(number)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(SOURCE)},
    ) as process:
        assert process.stdout is not None
        for _ in range(writes):
            number = int(process.stdout.readline())
        process.kill()
        for line in process.stdout:
            if line.endswith(b"\n"):
                number = int(line)
    return number


@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
def test_kill_9_loses_no_write_that_has_returned(tmp_path: Path, mode: str) -> None:
    """Puts and deletes; the one under way is made whole or not at all."""
    last = 0
    for kill in range(KILLS):
        last = kill_after(tmp_path, mode, last, WRITES + 13 * kill)
        with open_small(tmp_path) as cache:
            for number in range(max(1, last - KEYS + 1), last + 1):
                allowed = [expected(number)]
                if number == last + 1 - KEYS:
                    allowed.append(expected(last + 1))
                assert cache.get(str(number % KEYS)) in allowed, number
            assert cache.stats().damaged == 0
            assert set(cache.keys()) == {
                key for key in map(b"%d".__mod__, range(KEYS)) if key in cache
            }
