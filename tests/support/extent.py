"""
How much the tests try, from the environment.

`CRASH_EXTENT` is 1 in `make test`, which takes samples, and 0 in `make crash`, which tries
everything. A larger number takes that many times the samples. `SEED` says which samples;
without it, that is the date, so that each day others are tried.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

# The fixture `record_property`: counts what a test has tried, for docs/RELIABILITY.md.
Count = Callable[[str, object], None]

EXTENT: Final = int(os.environ.get("CRASH_EXTENT", "1"))
TODAY: Final = dt.datetime.now(dt.UTC).strftime("%Y%m%d")
# Made known to the workers of pytest-xdist, so that midnight changes nothing.
SEED: Final = int(os.environ.setdefault("SEED", TODAY))


def step(sampled: int) -> int:
    """Return the distance between cases of which one in `sampled` is a sample."""
    return max(1, sampled // EXTENT) if EXTENT else 1


def every(sampled: int, stop: int, *, offset: int = 0) -> range:
    """Return the numbers below `stop` of which one in `sampled` is a sample."""
    distance = step(sampled)
    return range((SEED + offset) % distance, stop, distance)


def examples(number: int) -> int:
    """Return how many examples Hypothesis tries of `number`; a third is a sample."""
    return min(number, number * EXTENT // 3) if EXTENT else number


def sample(cases: list[str], sampled: int) -> set[str]:
    """Return the cases that are tried, of which one in `sampled` is, at least one."""
    number = -(-len(cases) // step(sampled))
    return set(sorted(cases, key=_order)[:number])


def _order(case: str) -> bytes:
    return blake2b(f"{SEED} {case}".encode(), digest_size=8).digest()
