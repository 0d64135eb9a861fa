"""
The figures in the documents are those of the measurements.

`make bench` writes docs/bench/results.md and others, `python -m bench.extra` writes
docs/bench/NAME.md, and both write their tables into the documents. The figures that are
repeated by hand are listed here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import figures as counted
from bench import report
from support.tables import rows

CONTENT: Final = json.loads((report.DOCS / "bench" / "results.json").read_text())
RESULTS: Final = [
    report.Result(**{name: kept[name] for name in ("name", "text", "rounds", "error")})
    for kept in CONTENT["workloads"]
]
README: Final = report.DOCS.parent / "README.md"
PERFORMANCE: Final = report.DOCS / "PERFORMANCE.md"
TUNING: Final = report.DOCS / "TUNING.md"

# In texts, # is a figure, ~ any text in one cell, and … any text.
WILDCARDS: Final = {"#": r"(\d[\d,]*(?:\.\d+)?)", "~": r"[^|\n]*?", "…": r"(?s:.*?)"}

# Text in README.md, with the figures of `COLUMNS`, and the workload.
MEASURED: Final = [
    (
        "answers # GETs of 1 KiB per second…, with # µs of CPU each. ~, nginx needs # µs.",
        "read-1k",
    ),
    ("stores # values per second, with # µs each, and nginx needs # µs.", "write-1k"),
]
COLUMNS: Final = (("volcache", "rate"), ("volcache", "cpu"), ("nginx", "cpu"))
# Text in README.md; text with the same figures in another document.
REPEATED: Final = [
    (
        "with 50,000,000 keys starts with # s of CPU and # MB of memory",
        PERFORMANCE,
        "| started again, index files on the disk | ~ | # |…That is # MB for 50 million",
    ),
    (
        "with 1,000,000 keys starts in # s.",
        report.DOCS / "bench" / "boot.md",
        "| index files on the disk | # (",
    ),
    (
        "an LRU cache has # % more misses, and a FIFO cache # %.",
        TUNING,
        "| LRU, without volumes | 1# %…| `fifo`, 128 volumes | 1# %",
    ),
    (
        "a key takes # to # bytes of memory",
        TUNING,
        "plus # to # bytes per key",
    ),
]


def figures(document: str, text: str) -> list[str]:
    """Return the figures of a text that is once in a document."""
    pattern = "".join(WILDCARDS.get(char, re.escape(char)) for char in text)
    found = list(re.finditer(pattern, document))
    assert len(found) == 1, f"{text!r} is found {len(found)} times"
    return [figure.replace(",", "") for figure in found[0].groups()]


def rounded(figure: str | float, like: str) -> str:
    """Format a figure with as many digits after the point as another one."""
    return f"{float(figure):.{len(like.partition('.')[2])}f}"


def test_report_of_the_last_run_is_in_the_documents(tmp_path: Path) -> None:
    """Tables, plot and JSON as they are committed."""
    content = {name: kept for name, kept in CONTENT.items() if name != "workloads"}
    report.write_report(content, RESULTS, tmp_path)
    for made in tmp_path.iterdir():
        kept = report.DOCS / "bench" / made.name
        assert made.read_text() == kept.read_text(), made.name


def test_tables_of_the_scripts_are_in_the_documents() -> None:
    """As the scripts have printed them; each output is named in a document."""
    documents = [path.read_text() for path in report.DOCS.glob("*.md")]
    assert [report.fill_tables(text) for text in documents] == documents
    for output in (report.DOCS / "bench").glob("*.md"):
        assert any(f"bench/{output.name}" in text for text in documents)


@rows(*MEASURED)
def test_figures_in_the_readme_are_those_of_the_last_run(
    text: str, workload: str
) -> None:
    """Rounded to the digits that README.md shows."""
    shown = figures(README.read_text(), text)
    (result,) = (one for one in RESULTS if one.name == workload)
    spreads = [result.spread(*column) for column in COLUMNS]
    exact = [spread.median for spread in spreads if spread]
    assert shown == [rounded(a, b) for a, b in zip(exact, shown, strict=True)]


@rows(*REPEATED)
def test_figures_in_the_readme_are_those_of_the_other_document(
    text: str, source: Path, source_text: str
) -> None:
    """Rounded to the digits that README.md shows."""
    shown = figures(README.read_text(), text)
    exact = figures(source.read_text(), source_text)
    assert shown == [rounded(a, b) for a, b in zip(exact, shown, strict=True)]


def test_figures_of_the_tests_are_those_that_their_commands_have_counted() -> None:
    """`make crash`, `sanitize` and `mutations` write both files."""
    document = counted.DOCUMENT.read_text()
    assert counted.filled(document) == document
