"""What several tests of the web part begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_cache import FakeCache
from support.stores import FakeClock, open_store
from support.wsgi_client import Client
from volcache.store import Store


@pytest.fixture
def client() -> Client:
    """Return a client of an application with an empty cache."""
    return Client(FakeCache())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A small store at a time that stands still."""
    opened = open_store(tmp_path, clock=FakeClock())
    yield opened
    opened.close()


@pytest.fixture
def fifo_store(tmp_path: Path) -> Iterator[Store]:
    """The same, with one ring of volumes."""
    opened = open_store(tmp_path / "fifo", clock=FakeClock(), eviction="fifo")
    yield opened
    opened.close()
