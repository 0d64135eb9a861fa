"""What applies to every test."""

from __future__ import annotations

import os

import pytest

from volcache.config import ENVIRONMENT_PREFIX, PURE_VARIABLE


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """With several workers, run the long tests first, so that all end together."""
    if hasattr(config, "workerinput"):  # In a worker of pytest-xdist.
        items.sort(key=_is_short)


def _is_short(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("slow", "property"))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of whoever runs the tests, also for the servers they start."""
    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name != PURE_VARIABLE:
            monkeypatch.delenv(name)
