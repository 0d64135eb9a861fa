"""What several tests of the web part begin with."""

from __future__ import annotations

import pytest

from support.fake_cache import FakeCache
from support.wsgi_client import Client


@pytest.fixture
def client() -> Client:
    """Return a client of an application with an empty cache."""
    return Client(FakeCache())
