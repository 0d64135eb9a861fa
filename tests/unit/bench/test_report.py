"""The report of the benchmarks."""

from __future__ import annotations

from dataclasses import replace

from bench import report
from bench.report import Result


def rounds(**figures: list[float]) -> list[dict[str, float]]:
    """Return rounds with figures by name."""
    return [
        dict(zip(figures, row, strict=True))
        for row in zip(*figures.values(), strict=True)
    ]


READ = Result(
    name="read-1k",
    text="GET of 1 KiB",
    rounds={
        "volcache": rounds(rate=[90, 110], cpu=[10, 14], user=[4, 6]),
        "floor": rounds(rate=[200, 200], cpu=[5, 7], user=[2, 2]),
    },
)
BROKEN = Result(name="write-1k", text="PUT of 1 KiB", error="it broke\nin two")


def test_a_comparison_shows_the_ratio_of_cpu_with_its_range_and_middle_half() -> None:
    """New divided by old, within each round; that of one round is its range."""
    old, new = rounds(cpu=[4.0], rate=[2.0]), rounds(cpu=[6.0], rate=[1.0])
    for found, line in (
        (
            {"volcache": READ.rounds["volcache"], "base": READ.rounds["floor"]},
            (
                "| read-1k | 12.0 (10.0 to 14.0) | 6.0 (5.0 to 7.0) "
                "| 2.000 (2.000 to 2.000) | 2.000 to 2.000 | 0.500 (0.450 to 0.550) |"
            ),
        ),
        (
            {"volcache": new, "base": old},
            (
                "| read-1k | 6.0 | 4.0 | 1.500 (1.500 to 1.500) | 1.500 to 1.500 "
                "| 0.500 (0.500 to 0.500) |"
            ),
        ),
    ):
        compared = [replace(READ, rounds=found), BROKEN]
        assert report.comparison(compared, "v1").splitlines()[-1] == line
