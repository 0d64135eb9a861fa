"""The events that the code logs: their form, and the table that describes them."""

from __future__ import annotations

import re
from functools import cache

from reference import EVENT, EVENTS, SOURCE, log_calls

CALLS = cache(lambda: list(log_calls()))
# The fields that every line of the JSON format has.
RESERVED = {"time", "level", "logger", "event", "traceback"}


def test_event_has_a_name_and_fields() -> None:
    """`part.what name=value ...`, as both log formats require; no field occurs twice."""
    for event in CALLS():
        assert EVENT.fullmatch(event.template), event
        assert len(set(event.fields)) == len(event.fields), event
        assert not RESERVED & set(event.fields), event


def test_log_call_without_a_literal_event_is_the_helper_only() -> None:
    """It would be missing from the table."""
    texts = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    calls = re.findall(r"\b_logger\.[a-z]+\(|(?<!def )\b_log_some\(", texts)
    assert len(calls) == len(CALLS()) + 1


def test_event_has_the_same_fields_everywhere() -> None:
    """And the same level."""
    forms: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for event in CALLS():
        forms.setdefault(event.name, set()).add((event.level, event.fields))
    assert {name: len(seen) for name, seen in forms.items() if len(seen) > 1} == {}


def test_every_event_has_a_description() -> None:
    """And no other event has one."""
    assert sorted(EVENTS) == sorted({event.name for event in CALLS()})
    for texts in EVENTS.values():
        assert 1 <= len(texts) <= 2
        assert all(text.endswith(".") for text in texts)
