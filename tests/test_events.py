"""docs/OPERATIONS.md lists the events that the code logs, no more and no fewer."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from support.events import EVENT, Event, logged_events
from volcache.logs import JsonFormatter

OPERATIONS = Path(__file__).parents[1] / "docs" / "OPERATIONS.md"
EVENTS = logged_events()
# What every line of the JSON format has, whatever the event.
RESERVED = {"time", "level", "logger", "event", "traceback"}


def listed_events() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return level and fields of each event in the tables of the section on events."""
    text = OPERATIONS.read_text().split("\n### Events\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| ([^|]*) \|", text, re.MULTILINE)
    return {
        name: (level, tuple(re.findall(r"`(\w+)`", fields)))
        for name, level, fields in rows
    }


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.where)
def test_event_has_the_form_both_formats_need(event: Event) -> None:
    """`part.what name=value ...`: names in the text, a value for each, none twice."""
    assert EVENT.fullmatch(event.template)
    assert len(set(event.fields)) == len(event.fields)
    assert not RESERVED & set(event.fields)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.where)
def test_json_has_the_fields_of_the_event(event: Event) -> None:
    """Each call gives an object with its event and its fields, whatever the values."""
    kinds = re.findall(r"%[0-9.]*([a-z])", event.template)
    values = tuple("text" if kind in "rs" else 1 for kind in kinds)
    record = logging.LogRecord(
        "volcache", logging.INFO, "file.py", 1, event.template, values, exc_info=None
    )
    fields = json.loads(JsonFormatter().format(record))
    assert tuple(fields) == ("time", "level", "logger", "event", *event.fields)
    assert fields["event"] == event.name


def test_one_event_has_one_form() -> None:
    """Wherever an event is logged, it has the same level and fields."""
    forms: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for event in EVENTS:
        forms.setdefault(event.name, set()).add((event.level, event.fields))
    assert {name: len(seen) for name, seen in forms.items() if len(seen) > 1} == {}


def test_documented_events_are_those_of_the_code() -> None:
    """Name, level and fields of each are in the documentation, and no other's."""
    assert listed_events() == {
        event.name: (event.level, event.fields) for event in EVENTS
    }
