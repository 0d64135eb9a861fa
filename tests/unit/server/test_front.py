"""front.py: the limits of connections."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from volcache.server.front import connections_max, raise_descriptor_limit


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    """Restore the limits of descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptor_limit_is_raised_to_the_one_that_is_allowed(
    limits: tuple[int, int],
) -> None:
    """Without privileges."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1], limits[1])


def test_descriptor_limit_that_is_refused_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance starts with the one it has."""

    def refuse(*_: object) -> None:
        raise OSError(1, "no")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_descriptor_limit()
    monkeypatch.undo()
    assert caplog.messages == [
        "descriptors.limited limit=256 allowed=512 error='[Errno 1] no'"
    ]


def test_connections_max_leaves_descriptors_for_files(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are open, and some more; however low the limit is, some are possible."""
    used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limits[1]))
    assert 1000 - used - 80 < connections_max() < 1000 - used - 50
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, limits[1]))
    assert connections_max() == 8
    # Containers have no limit.
    infinity = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinity, infinity))
    assert connections_max() == 1 << 20
