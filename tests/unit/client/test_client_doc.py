"""The manual of the client agrees with the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import volcache_client
from volcache_client import AsyncClient, CacheError, Client
from volcache_client.options import Options

PAGE = Path(__file__).parents[3] / "docs" / "CLIENT.md"


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table of a section, without its head."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_option_is_in_the_table_with_its_default() -> None:
    """In the order of the code, after the serializer."""
    found = [
        (name.strip("`"), default.strip("`")) for name, default, _ in rows("Options")
    ]
    wanted = []
    for option in fields(Options):
        default = repr(option.default).replace("'", '"')
        wanted.append((option.name, default))
    assert found == [("serializer", "None"), *wanted]


def test_every_method_of_both_clients_is_in_the_table() -> None:
    """And no other."""
    documented = {row[0].strip("`").partition("(")[0] for row in rows("Methods")}
    for client in (Client, AsyncClient):
        public = {name for name in dir(client) if not name.startswith("_")}
        assert public == documented


def test_every_error_is_in_the_table() -> None:
    """And whether it is an outage."""
    table = {re.findall(r"\w+", row[0])[0]: row[2] for row in rows("Errors")}
    exported = {
        name: getattr(volcache_client, name) for name in volcache_client.__all__
    }
    errors = {
        name: kind
        for name, kind in exported.items()
        if isinstance(kind, type) and issubclass(kind, CacheError)
    }
    assert set(table) == set(errors) - {"CacheError"}
    for name, text in table.items():
        if text:
            assert errors[name].is_outage == (text == "yes"), name
