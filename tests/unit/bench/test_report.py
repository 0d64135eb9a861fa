"""The report of the benchmarks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench import report
from bench.report import BEGIN, END, Result

CONTENT = {
    "machine": {"processor": "one"},
    "warnings": ["busy"],
    "seconds": 1,
    "rounds": 2,
    "took": 5,
}


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
THREE_ROUNDS = Result(
    name="read",
    text="GET",
    rounds={
        "volcache": rounds(cpu=[10, 30, 20]),
        "floor": rounds(cpu=[5, 10, 20]),
        "idle": [{"rate": 1.0}, {"cpu": 0.0}, {"rate": 2.0}],
    },
)


def test_a_ratio_is_taken_within_each_round() -> None:
    """The median of the quotients is not the quotient of the medians."""
    ratio = THREE_ROUNDS.ratio("floor", "cpu")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.0, 3.0)
    # What was not measured has no ratio and no median; zero is no divisor.
    assert THREE_ROUNDS.ratio("idle", "cpu") is None
    assert THREE_ROUNDS.ratio("nginx", "cpu") is None
    assert THREE_ROUNDS.spread("volcache", "rate") is None
    # Measures are in the order of columns.
    assert THREE_ROUNDS.measures() == ["rate", "cpu"]
    assert BROKEN.measures() == []


def test_a_workload_that_failed_has_its_error_and_no_figures() -> None:
    """The other tables are those of the documents, which are compared."""
    text = report.report_text(CONTENT, [BROKEN, READ])
    assert text.startswith("- processor: one\n- **warning**: busy\n")
    assert "No figures: it broke\n" in text
    assert len(report.summary([BROKEN, READ]).splitlines()) == 3
    assert BROKEN.name not in "".join(report.plot_lines([BROKEN, READ]))


def test_only_the_text_between_the_markers_is_replaced(tmp_path: Path) -> None:
    """A second time gives the same file; one with other markers is left alone."""
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        report.fill_markers(path, "new")
        assert path.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert report.has_markers(path)
    for text in (f"{END} {BEGIN}", f"{BEGIN} {BEGIN} {END}", BEGIN, ""):
        path.write_text(text, encoding="utf-8")
        assert not report.has_markers(path)
    assert not report.has_markers(tmp_path / "none.md")
    assert report.has_markers(report.DOCS / "BENCHMARKS.md")
    assert report.summary_files()


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
