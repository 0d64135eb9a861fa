"""What applies to every test."""

from __future__ import annotations

import os
from typing import Final

import pytest

from volcache.config import ENVIRONMENT_PREFIX

# Fixtures that start servers for many tests, which therefore run in one worker.
_SHARED: Final = {"browser", "cluster", "ports"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """With several workers, run long tests first and share servers."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        for name in sorted(_SHARED.intersection(getattr(item, "fixturenames", ()))):
            item.add_marker(pytest.mark.xdist_group(name))
    if hasattr(config, "workerinput"):
        items.sort(key=_is_short)


def _is_short(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("slow", "property"))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of whoever runs the tests, also for the servers they start."""
    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)
