"""What every test gets."""

from __future__ import annotations

import os

import pytest

from volcache.config import ENVIRONMENT_PREFIX


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests change nothing, here or in servers."""
    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)
