"""What integration tests share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from support.fetched import fetched_program
from support.instances import operator_of, watch_tiered
from support.service_manager import ServiceManager
from support.stores import fill_volume, open_store


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return one browser for all tests of a module: its loop would disturb others."""
    from support.browser import a_browser  # noqa: PLC0415 - Takes long to import.

    with a_browser() as running:
        yield running


@pytest.fixture(scope="module")
def promtool() -> Callable[..., str]:
    """Return a call of promtool that must succeed and returns its output."""
    found = fetched_program("promtool")

    def call(*arguments: str | Path, text: str = "") -> str:
        done = subprocess.run(
            [found, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said

    return call


@pytest.fixture
def manager() -> Iterator[ServiceManager]:
    """Yield a service manager."""
    with ServiceManager() as manager:
        yield manager


@pytest.fixture
def metrics(tmp_path: Path) -> str:
    """Return the metrics of an instance with all its parts."""
    store = open_store(tmp_path)
    store.stats.scrub.rate = 1
    fill_volume(store)
    status = watch_tiered(store)
    status.requests.answers["GET", "200 OK", "DISK"].observe(0, 1000)
    text = operator_of(status).ask("GET", "/-/metrics").body.decode()
    store.close()
    return text
