"""
Writes a trace of requests for `hit_ratio.py`: text, or .xz if the name ends with it.

There are four kinds of requests, mixed at random. Shares are of all lines of the trace:

- GETs of popular keys, `kN`: what the shares below leave. The key of rank N of --keys is
  requested in proportion to 1 / N to the power of --zipf.
- one hit: GETs of keys `oN`, each requested once.
- scans: GETs of the popular keys in the order of their numbers, --scan-length at a time,
  from a random one. Their number does not depend on their popularity.
- written first: PUTs `+wN`, and GETs of the same keys, --reads on average for each, at most
  --read-within such PUTs later.

With --mean-size, each key has a size, log-normal with the deviation --sigma of the
logarithm. The same arguments write the same trace.

    .venv/bin/python bench/traces.py OUT --requests 1000000 --one-hit-share 0.2 --seed 2
"""

from __future__ import annotations

import argparse
import lzma
import math
import random
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Dice = random.Random


def popular(options: argparse.Namespace, dice: Dice) -> Iterator[str]:
    """Request keys by their popularity, without an end."""
    # The most popular keys are not next to each other, or scans would find them together.
    names = [f"k{number}" for number in range(options.keys)]
    dice.shuffle(names)
    weights = accumulate(rank**-options.zipf for rank in range(1, options.keys + 1))
    cumulative = list(weights)
    while True:
        yield from dice.choices(names, cum_weights=cumulative, k=10_000)


def one_hits() -> Iterator[str]:
    """Request each key once, without an end."""
    number = 0
    while True:
        yield f"o{number}"
        number += 1


def scans(options: argparse.Namespace, dice: Dice) -> Iterator[str]:
    """Request popular keys in the order of their numbers, without an end."""
    while True:
        first = dice.randrange(options.keys)
        for number in range(first, first + options.scan_length):
            yield f"k{number % options.keys}"


def written_first(options: argparse.Namespace, dice: Dice, count: int) -> list[str]:
    """Store files and read them: `count` requests, as if there were no others."""
    files = min(count, math.ceil(count / (1 + options.reads)))
    events = [(float(number), f"+w{number}") for number in range(files)]
    for _ in range(count - files):
        number = dice.randrange(files)
        after = 1 + dice.random() * (options.read_within - 1)
        events.append((number + after, f"w{number}"))
    return [request for _, request in sorted(events)]


def requests(options: argparse.Namespace) -> Iterator[str]:
    """Mix the requests."""
    dice = random.Random(options.seed)  # noqa: S311 - To be repeated.
    shares = {
        "one hit": options.one_hit_share,
        "scan": options.scan_share,
        "written first": options.write_first_share,
    }
    counts = {kind: round(share * options.requests) for kind, share in shares.items()}
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    kinds = kinds[: options.requests]
    kinds += ["popular"] * (options.requests - len(kinds))
    dice.shuffle(kinds)
    first = written_first(options, dice, kinds.count("written first"))
    sources = {
        "one hit": one_hits(),
        "popular": popular(options, dice),
        "scan": scans(options, dice),
        "written first": iter(first),
    }
    return (next(sources[kind]) for kind in kinds)


def with_sizes(
    lines: Iterator[str], mean: float, sigma: float, seed: int
) -> Iterator[str]:
    """Add a size to each request: the same for all requests of a key, at least 1."""
    dice = random.Random(seed)  # noqa: S311 - To be repeated.
    sizes: dict[str, int] = {}
    middle = (
        math.log(mean) - sigma**2 / 2
    )  # of the logarithm; the mean is then as given
    for line in lines:
        key = line.removeprefix("+")
        size = sizes.get(key)
        if size is None:
            size = sizes[key] = max(1, round(dice.lognormvariate(middle, sigma)))
        yield f"{line} {size}"


def write(path: Path, lines: Iterator[str]) -> None:
    """Write a trace."""
    with lzma.open(path, "wb") if path.suffix == ".xz" else path.open("wb") as file:
        while block := list(islice(lines, 10_000)):
            file.write("".join(f"{line}\n" for line in block).encode("ascii"))


# --- The command ---------------------------------------------------------------------


def positive(text: str) -> int:
    """Return a number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def share(text: str) -> float:
    """Return a number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError
    return number


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="the file that is written")
    add("--requests", type=positive, default=1_000_000, help="lines (1,000,000)")
    add("--keys", type=positive, default=100_000, help="popular keys (100,000)")
    add("--zipf", type=float, default=0.9, help="exponent of the popularity (0.9)")
    add(
        "--one-hit-share",
        type=share,
        default=0.0,
        help="requests of keys used once (0)",
    )
    add("--scan-share", type=share, default=0.0, help="requests of scans (0)")
    add("--scan-length", type=positive, default=1000, help="keys of a scan (1,000)")
    add("--write-first-share", type=share, default=0.0, help="PUTs and their GETs (0)")
    add("--reads", type=float, default=1.5, help="GETs for each of these PUTs (1.5)")
    add("--read-within", type=positive, default=10_000, help="PUTs (10,000)")
    add("--mean-size", type=positive, help="bytes of a value (no sizes)")
    add("--sigma", type=float, default=1.0, help="of the sizes' logarithm (1)")
    add("--seed", type=int, default=1, help="another one writes another trace (1)")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a trace."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    shares = options.one_hit_share + options.scan_share + options.write_first_share
    if shares > 1:
        parser.error("the shares are more than 1 in all")
    lines = requests(options)
    if options.mean_size:
        lines = with_sizes(lines, options.mean_size, options.sigma, options.seed)
    try:
        write(options.out, lines)
    except OSError as error:
        raise SystemExit(f"the trace cannot be written: {error}") from None


if __name__ == "__main__":
    main()
