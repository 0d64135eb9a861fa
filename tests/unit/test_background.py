"""background.py, and the threads that use it: an error does not end them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Final, TypeVar

import pytest

from support.stores import fill_volume, open_fifo
from support.tiers import make_keys, make_tier
from support.waiting import wait_until
from volcache import background
from volcache.background import Background
from volcache.hot.servers import Server
from volcache.log_writer import LogWriter
from volcache.store import PeriodicSync, Store
from volcache.store.scrub import Scrub

SOURCES: Final = Path(background.__file__).parent
T = TypeVar("T")
# Each of these threads does one thing, and passes on whatever that raises.
ONCE: Final = {
    "embedded/cache.py",
    "fleet/remote.py",
    "server/front.py",
}


def raise_first(times: int, then: Callable[[], T]) -> Callable[..., T]:
    """Return a function that raises so many times, and then does something."""
    left = times

    def call(*_: object, **__: object) -> T:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ZeroDivisionError
        return then()

    return call


def failures_of(name: str) -> Callable[[], int]:
    """Return a function that counts the failures of a thread from now on."""
    before = background.failures[name]
    return lambda: background.failures[name] - before


def test_work_that_raises_is_counted_logged_and_done_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread tells since when it has been failing; not every failure is logged."""
    ended = threading.Event()
    since: list[float] = []
    work = raise_first(3, ended.set)

    def note() -> object:
        since.append(thread.failing_since)
        return work()

    count = failures_of("a test")
    thread = Background("a test", note, ended.is_set)
    thread.start()
    thread.join()

    assert count() == 3
    assert (thread.failing_since, since[0]) == (0, 0)
    assert since[1] == since[2] == since[3] > 0
    lines = [line for line in caplog.records if line.levelno == logging.ERROR]
    assert [line.getMessage() for line in lines] == [
        f"thread.failed name={'a test'} count={number}" for number in (1, 2)
    ]
    assert all(line.exc_info for line in lines)


def test_threads_that_go_on_are_all_background_threads() -> None:
    """No other module starts a thread, except for one call."""
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if re.search(r"\bThread\(", path.read_text())
    }
    assert found - {"background.py"} == ONCE


def test_sync_that_raises_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they all raise, the watchdog is told so."""
    store = open_fifo(tmp_path)
    count, synced, failing = failures_of("sync"), threading.Event(), True

    def sync(_: Store) -> None:
        if failing:
            raise ZeroDivisionError
        synced.set()

    monkeypatch.setattr(Store, "sync", sync)
    syncer = PeriodicSync(store, 0.001)
    wait_until(lambda: count() > 1, "two failures")
    assert syncer.is_failing
    assert syncer.stalled_seconds() > 0
    failing = False
    wait_until(synced.is_set, "a sync")
    wait_until(lambda: syncer.stalled_seconds() == 0, "the end of the failures")
    syncer.stop()
    monkeypatch.undo()
    store.close()


def test_scrub_that_raises_is_followed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pass verifies all volumes."""
    store = open_fifo(tmp_path)
    fill_volume(store)
    count, verified = failures_of("scrub"), threading.Event()
    monkeypatch.setattr(Scrub, "_verify_volume", raise_first(1, verified.set))
    scrub = store.scrub(1 << 30, period=0.001)
    wait_until(verified.is_set, "a volume that is verified")
    scrub.stop()
    assert count() == 1
    store.close()


def test_lines_that_could_not_be_joined_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when there is no memory for them."""
    count = failures_of("lines")
    taken = iter([b"line\n"])
    lines = SimpleNamespace(take=lambda: next(taken, b""), dropped=0)
    file = LogWriter(str(tmp_path / "log"), lines)
    monkeypatch.setattr(LogWriter, "_follow_path", raise_first(1, bool))
    file.flush()
    wait_until(lambda: count() == 1, "a failure")
    wait_until(lambda: (tmp_path / "log").read_text() == "line\n", "the line")
    file.close()


def test_probe_that_raises_keeps_no_other_server_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is probed in its turn."""
    count, probed, bad = failures_of("hot"), [0], "127.0.0.1:1"

    def probe(server: Server) -> None:
        if is_started and server.address == bad:
            raise ZeroDivisionError
        probed[0] += server.address != bad

    is_started = False
    monkeypatch.setattr(Server, "probe", probe)
    tier = make_tier([bad, "127.0.0.1:2"], make_keys())
    is_started = True
    before = probed[0]
    wait_until(lambda: count() > 1 and probed[0] > before + 1, "probes of both")
    tier.close()
