"""The rows of tests/behaviour: text files that say what is sent and what is answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

HTTP_ROWS: Final = Path(__file__).parents[1] / "behaviour" / "http.txt"
# What is between the fields of a line of a request or an answer.
END: Final = re.compile(r";(?! )")
_CHOICE: Final = re.compile(r"\{([^{}*|]*(?:\|[^{}*|]*)+)\}")


class Row(NamedTuple):
    """What happens from the beginning on: lines, each with its mark."""

    name: str
    lines: list[tuple[str, str]]


def expanded(line: str) -> str:
    """Return a line with its repetitions and escapes."""
    line = re.sub(r"\{([^{}]+?)\*(\d+)\}", lambda found: found[1] * int(found[2]), line)
    return line.encode("latin-1").decode("unicode_escape")


def read_rows(path: Path) -> Iterator[Row]:
    """Yield a row for each alternative; the comments of the files say what they are."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    for block in re.split(r"\n\n+", text.strip()):
        name, *lines = block.split("\n")
        pairs = [(line.split(" ")[0], line.partition(" ")[2]) for line in lines]
        rest = [pair for pair in pairs if pair[0] != "@"]
        given = [line for mark, line in pairs if mark == "@"]
        if not any(" => " in line for line in given):
            given = [one for line in given for one in re.split(r" \|(?: |$)", line)]
        for one in given or [""]:
            sent, _, answer = one.partition(" => ")
            values = (("{}", sent), ("{=}", answer), ("{#}", f"{len(expanded(sent))}"))
            filled = [(mark, _replaced(line, values)) for mark, line in rest]
            yield from _chosen(Row(f"{name} [{one}]" if given else name, filled))


def _chosen(row: Row) -> Iterator[Row]:
    """Yield a row for each choice of one word of every {A|B}."""
    text = "\n".join(line for _, line in row.lines)
    choices = list(dict.fromkeys(found[0] for found in _CHOICE.finditer(text)))
    for words in product(*(choice[1:-1].split("|") for choice in choices)):
        pairs = tuple(zip(choices, words, strict=True))
        lines = [(mark, _replaced(line, pairs)) for mark, line in row.lines]
        yield Row(f"{row.name} [{' '.join(words)}]" if words else row.name, lines)


def _replaced(line: str, pairs: tuple[tuple[str, str], ...]) -> str:
    return reduce(lambda text, pair: text.replace(*pair), pairs, line)
