"""What is written for users says what the code does."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from volcache.config import SETTINGS, load_config

if TYPE_CHECKING:
    from volcache.settings import Setting

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "conf" / "volcache.toml"


def comment_above(setting: Setting) -> str:
    """Give the comment that stands right above a setting, as one line."""
    lines = SAMPLE.read_text().splitlines()
    start = end = lines.index(
        next(line for line in lines if line.startswith(f"{setting.name} = "))
    )
    while lines[start - 1].startswith("# "):
        start -= 1
    return " ".join(line.removeprefix("# ") for line in lines[start:end])


def test_sample_shows_every_setting_at_its_default() -> None:
    """conf/volcache.toml has exactly the settings there are, in their order."""
    shown = tomllib.loads(SAMPLE.read_text())
    defaults = [
        (s.name, list(s.default) if isinstance(s.default, tuple) else s.default)
        for s in SETTINGS
    ]
    assert list(shown.items()) == defaults


def test_sample_is_taken() -> None:
    """The sample starts a service like no file at all."""
    assert load_config(SAMPLE, {}) == load_config(None, {})


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_sample_says_meaning_range_and_cost(setting: Setting) -> None:
    """Each setting is explained in the words of the code, and what it costs."""
    comment = comment_above(setting)
    assert comment.startswith(f"{setting.text} Allowed: {setting.allowed}")
    assert " Cost: " in comment
