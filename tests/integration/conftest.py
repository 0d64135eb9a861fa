"""What integration tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return one browser for all tests of a module: its loop would disturb others."""
    from support.browser import a_browser  # noqa: PLC0415 - Takes long to import.

    with a_browser() as running:
        yield running
