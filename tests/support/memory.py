"""A process in which the C code of the store gets no memory now and then."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("memory.c")
_TESTS: Final = _SOURCE.parent.parent


def run_short_of_memory(folder: Path, module: str, *arguments: object) -> str:
    """Run a module of the tests in a process that `failing` works in; return its output."""
    library = folder / "memory.so"
    options = ("-shared", "-fPIC", "-O1", "-o", library, _SOURCE)
    subprocess.run(("gcc", *options), check=True)
    path = os.pathsep.join([str(_TESTS), *sys.path])  # The same sources.
    done = subprocess.run(
        (sys.executable, "-m", module, *map(str, arguments)),
        env=os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def failures() -> int:
    """Return how many allocations have failed in this process."""
    return int(ctypes.CDLL(None).failed_allocations())


@contextmanager
def failing(of_1000: int, seed: int) -> Iterator[None]:
    """Let a share of the allocations of the core fail within; 0: none, in any process."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "fail_allocations"):
        assert not of_1000
        yield
        return
    before = ctypes.c_uint.in_dll(library, "failing_share").value
    library.fail_allocations(ctypes.c_uint(of_1000), ctypes.c_uint64(seed))
    try:
        yield
    finally:
        library.fail_allocations(ctypes.c_uint(before), ctypes.c_uint64(seed + 1))
