"""
How much the crash and property tests try, from the environment.

`CRASH_EXTENT` is 1 in `make test`, which takes samples, and 0 in `make crash`, which tries
everything. A larger number takes that many times the samples. `CRASH_SEED` seeds the
choice where it is random.
"""

from __future__ import annotations

import os
from typing import Final

EXTENT: Final = int(os.environ.get("CRASH_EXTENT", "1"))
SEED: Final = int(os.environ.get("CRASH_SEED", "1"))


def step(sampled: int) -> int:
    """Return the distance between cases of which one in `sampled` is a sample."""
    return max(1, sampled // EXTENT) if EXTENT else 1


def examples(number: int) -> int:
    """Return how many examples Hypothesis tries of `number`; a third is a sample."""
    return min(number, number * EXTENT // 3) if EXTENT else number
