"""Traces are made as the arguments say, and the same arguments make the same trace."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path

import pytest

from bench import hit_ratio, traces

REQUESTS = 20_000


def made(path: Path, *arguments: str) -> list[str]:
    """Return the lines of a trace."""
    traces.main([str(path), "--requests", str(REQUESTS), "--keys", "500", *arguments])
    return path.read_text(encoding="ascii").splitlines()


def test_the_shares_are_exact(tmp_path: Path) -> None:
    """Each kind of request has its number of lines; keys of one hit are never repeated."""
    lines = made(tmp_path / "t", "--one-hit-share", "0.2", "--write-first-share", "0.3")
    kinds = Counter(line.removeprefix("+")[0] for line in lines)
    assert kinds == {"o": REQUESTS * 0.2, "w": REQUESTS * 0.3, "k": REQUESTS * 0.5}
    assert len({line for line in lines if line[0] == "o"}) == kinds["o"]


def test_popularity_falls_as_the_exponent_says(tmp_path: Path) -> None:
    """The ratio of the first key and the one of rank 10, within the noise."""
    for exponent in (0.8, 1.1):
        lines = made(tmp_path / "t", "--zipf", str(exponent))
        counts = [count for _, count in Counter(lines).most_common()]
        assert counts[0] / counts[9] == pytest.approx(10**exponent, rel=0.2)
    counts = [
        count for _, count in Counter(made(tmp_path / "t", "--zipf", "0")).items()
    ]
    assert max(counts) / min(counts) < 4


def test_scans_request_keys_in_order(tmp_path: Path) -> None:
    """With nothing else, each request is for the next key until the scan ends."""
    lines = made(tmp_path / "t", "--scan-share", "1", "--scan-length", "100")
    numbers = [int(line[1:]) for line in lines]
    for start in range(0, REQUESTS, 100):
        first = numbers[start]
        scan = [(first + i) % 500 for i in range(100)]
        assert numbers[start : start + 100] == scan


def test_files_are_read_after_they_were_stored(tmp_path: Path) -> None:
    """As often as said on average, and within the number of PUTs that was said."""
    options = ["--write-first-share", "1", "--reads", "3", "--read-within", "50"]
    stored: list[str] = []
    reads = 0
    for line in made(tmp_path / "t", *options):
        if line[0] == "+":
            stored.append(line[1:])
        else:
            assert line in stored[-51:]
            reads += 1
    assert reads == len(stored) * 3


def test_a_key_has_one_size(tmp_path: Path) -> None:
    """Of the mean that was asked for."""
    lines = made(tmp_path / "t", "--one-hit-share", "1", "--mean-size", "5000")
    sizes = [int(line.split()[1]) for line in lines]
    assert sum(sizes) / len(sizes) == pytest.approx(5000, rel=0.05)
    lines = made(tmp_path / "u", "--mean-size", "5000")
    assert len(set(lines)) == len({line.split()[0] for line in lines})


def test_the_same_arguments_make_the_same_trace(tmp_path: Path) -> None:
    """Of all kinds of requests, also compressed; another seed makes another one."""
    arguments = ["--one-hit-share", "0.2", "--scan-share", "0.1"]
    arguments += ["--write-first-share", "0.1", "--mean-size", "1000"]
    lines = made(tmp_path / "a", *arguments)
    assert len(lines) == REQUESTS
    assert made(tmp_path / "b", *arguments, "--seed", "2") != lines
    path = tmp_path / "t.xz"
    size = ["--requests", str(REQUESTS), "--keys", "500"]
    traces.main([str(path), *size, *arguments])
    with lzma.open(path, "rt", encoding="ascii") as file:
        assert file.read().splitlines() == lines
    keys = [line.lstrip("+").split()[0] for line in lines]
    assert [key.decode() for key in hit_ratio.read_trace(path).keys] == keys
