"""
Streams of commands: an instance replies as a real memcached 1.6 does.

`CRASH_EXTENT=1000` tries 150,000 streams, for an hour or two; see `support.extent`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from support.extent import EXTENT
from support.memcache_twins import STREAMS, Step, Twins
from support.memcached import MemcachedProcess

pytestmark = [pytest.mark.property, pytest.mark.integration]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """
    Both sides.

    The threads of memcached that sort items keep them in use for a while: a number in use
    is replaced, not changed in place, and has other spaces behind it.
    """
    with (
        MemcachedProcess("-o", "no_lru_maintainer,no_lru_crawler") as memcached,
        Twins(tmp_path_factory.mktemp("twins"), memcached.port) as opened,
    ):
        yield opened


@settings(max_examples=150 * EXTENT or 3000)
@given(STREAMS)
def test_replies_are_those_of_memcached(
    twins: Twins, stream: tuple[list[Step], list[int]]
) -> None:
    """All commands, on few keys, with odd arguments, in any pieces."""
    twins.run(*stream)
