"""docs/PYTHON.md: its examples work, print what they say, and its tables are complete."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import REGISTRY  # noqa: TID251 - As applications do.

import volcache_client
from support.pages import blocks
from support.process import ServerProcess
from volcache.embedded import opening
from volcache_client import CacheError
from volcache_client.options import Options

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE: Final = Path(__file__).parents[2] / "docs" / "PYTHON.md"
PRINTED: Final = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)


@pytest.fixture
def names(
    server_with: Callable[..., ServerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, Any]]:
    """Run all examples in their order; yield what they have defined."""
    monkeypatch.chdir(tmp_path)
    Path("today.log").write_bytes(b"line\n" * 50_000)
    collectors = set(REGISTRY._collector_to_names)
    address = f"127.0.0.1:{server_with().port}"
    found: dict[str, Any] = {
        "draw": lambda name: b"picture of " + name.encode(),
        "render": lambda name: {"title": name},
    }
    for block in blocks(PAGE):
        text = block.text.replace("127.0.0.1:1234", address)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, PAGE.name, "exec"), found)  # noqa: S102 - Ours.
        if expected := PRINTED.findall(block.text):
            assert printed.getvalue().splitlines() == expected
    yield found
    for collector in set(REGISTRY._collector_to_names) - collectors:
        REGISTRY.unregister(collector)
    found["client"].close()


def test_examples_of_the_page_have_the_results_it_says(names: dict[str, Any]) -> None:
    """Also the functions that they define."""
    client = names["client"]
    assert names["thumbnail"]("cat") == client.get("thumbs/cat") == b"picture of cat"
    assert asyncio.run(names["page"]("home")) == {"title": "home"}
    assert client.get("pages/home") == b'{"title":"home"}'
    assert client.stat("logs/today").size == 250_000
    assert names["area"](2) == b"2"
    shown = [sample for family in REGISTRY.collect() for sample in family.samples]
    assert "thumbnails" in {sample.labels.get("client") for sample in shown}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table of a section, without its head."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0].splitlines()[2:]  # type: ignore[index]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def options(heading: str) -> list[tuple[str, str]]:
    """Return names and defaults of options."""
    return [(name.strip("`"), default.strip("`")) for name, default, _ in rows(heading)]


def test_option_of_the_client_is_in_a_table_with_its_default() -> None:
    """In the order of the code."""
    wanted = [
        (one.name, repr(one.default).replace("'", '"')) for one in fields(Options)
    ]
    assert options("Clients") == [("serializer", "None"), *wanted]
    _, *given = inspect.signature(opening.open_cache).parameters.values()
    assert options("EmbeddedCache") == [
        (one.name, repr(one.default).replace("'", '"').replace("inf", "math.inf"))
        for one in given
    ]


def test_error_of_the_client_is_in_the_table() -> None:
    """And whether it is an outage."""
    table = {re.findall(r"\w+", row[0])[0]: row[2] for row in rows("Errors")}
    errors = {name: getattr(volcache_client, name) for name in volcache_client.__all__}
    assert table.keys() == {
        name
        for name, kind in errors.items()
        if isinstance(kind, type) and issubclass(kind, CacheError)
    } - {"CacheError"}
    for name, text in table.items():
        if text:
            assert errors[name].is_outage == (text == "yes"), name
