"""
One part of all tests, as `PART=2/8` says; the parts take about equally long.

How long tests take in full is in docs/bench/tests.json: seconds by test, for each of its
cases. `make crash` writes it, and it takes effect when all parts are done.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FIGURES: Final = Path(__file__).parents[2] / "docs" / "bench" / "tests.json"
# Of a test that is not in the file, because it takes less than ten seconds.
SECONDS: Final = 2


def given_part() -> tuple[int, int]:
    """
    Return the number of the part that is run, from 1, and how many there are.

    Raises:
        ValueError: `PART` is not a part.
    """
    text = os.environ.get("PART") or "1/1"
    found = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        message = f"PART={text} is no part; allowed is NUMBER/PARTS, such as PART=1/8"
        raise ValueError(message)
    return int(found[1]), int(found[2])


def seconds_by_test() -> dict[str, int]:
    """Return how long the cases of the longest tests take."""
    kept = json.loads(FIGURES.read_text())
    seconds: dict[str, int] = kept["crash"].get("seconds", {})
    return seconds


def seconds_of(case: str, seconds: dict[str, int]) -> int:
    """Return how long a case of a test takes."""
    return seconds.get(case.partition("[")[0], SECONDS)


def part_of(
    cases: Sequence[str], seconds: dict[str, int], number: int, parts: int
) -> set[int]:
    """
    Return the indices of the cases of a part, of which some may have the same name.

    Each goes to the shortest part so far, the longest first.
    """
    lengths, chosen = [0] * parts, set()
    pairs = enumerate(cases)
    for at, case in sorted(
        pairs, key=lambda pair: (-seconds_of(pair[1], seconds), pair)
    ):
        shortest = lengths.index(min(lengths))
        lengths[shortest] += seconds_of(case, seconds)
        if shortest == number - 1:
            chosen.add(at)
    return chosen
