"""gate.py: the limits of connections, and the start without a gate."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from volcache.cache import Cache
from volcache.http.app import App, RequestLimits
from volcache.server import gate
from volcache.server.gate import (
    Timeouts,
    connections_max,
    open_gate,
    raise_descriptor_limit,
)
from volcache.store import Store

TIMEOUTS = Timeouts(head=1, idle=1, transfer=1)


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


def test_refused_limit_is_logged(
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


def test_connections_leave_descriptors_for_files(
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


def test_missing_gate_is_logged_in_one_line(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason; the instance starts without it."""
    caplog.set_level(logging.WARNING)
    app = App(Cache(store), RequestLimits(key_size=99, value_size=100))
    other = ImportError("bjoern was built for gate version 7")
    for link, make, reason in (
        (0, Mock(), "bjoern was built without it"),
        (1, Mock(side_effect=other), str(other)),
    ):
        caplog.clear()
        monkeypatch.setattr(gate, "Gate", make)
        found = open_gate(
            app,
            link,
            timeouts=TIMEOUTS,
            readers=Mock(),
            connections=8,
            body_memory=1 << 20,
        )
        assert found is None
        assert caplog.messages == [f"gate.missing reason={reason!r}"]
