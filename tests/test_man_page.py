"""The manual page is that of this version, and groff has no complaints."""

from __future__ import annotations

import re

import pytest

import man_page
from support.program import ended
from volcache.cli.main import MODULES
from volcache.settings import SETTINGS


def test_manual_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make reference` writes what is committed, whatever the width of the terminal."""
    monkeypatch.setenv("COLUMNS", "33")
    assert man_page.PAGE.read_text() == man_page.render()


def test_manual_page_is_formatted_without_a_warning() -> None:
    """With each command, each setting, and examples that can be copied."""
    groff = ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", "-P-cbou"]
    done = ended([*groff, man_page.PAGE])
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    for module in MODULES:
        assert re.search(rf"\n   volcache {module.removesuffix('_')}( \w+)?\n", text)
    for setting in SETTINGS:
        assert f"\n       {setting.name} = " in text
    assert "\n         volcache check --json /srv/volcache/1234 | tail -1\n" in text
    assert not re.search("[^\\x00-\\x7f]", text.replace("\u00b5", ""))
