"""embedded/session.py: threads, signals and the end; `test_processes.py` has the rest."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from support.embedded import Cache, open_small, owner_of
from support.process import SOURCE
from support.program import Ended, ended
from support.waiting import wait_until
from volcache_client.errors import ClientUsageError, StorageError

THREADS: Final = 8
INTERRUPTIONS: Final = 30


def operate(
    cache: Cache, own: dict[bytes, bytes], key: bytes, value: bytes, which: int
) -> None:
    """Do the same with a cache and a dict."""
    match which:
        case 0:
            cache[key] = own[key] = value
        case 1:
            assert cache.pop(key, None) == own.pop(key, None)
        case 2:
            assert (cache.add(key, value) is None) == (key in own)
            own.setdefault(key, value)
        case 3:
            assert cache.setdefault(key, value) == own.setdefault(key, value)
        case 4:
            assert (key in cache) == (key in own)
        case _:
            assert cache.get(key) == own.get(key)


@pytest.mark.slow
def test_calls_of_8_threads_return_what_each_would_get_alone(
    tmp_path: Path,
) -> None:
    """Changes, reads and iterations; nothing is evicted."""

    def use(number: int) -> dict[bytes, bytes]:
        chance, own = Random(number), dict[bytes, bytes]()  # noqa: S311 - Repeatable.
        for count in range(500):
            key = b"%d/%d" % (number, chance.randrange(20))
            value = b"%s=%d;" % (key, count) + bytes(chance.randrange(3000))
            operate(cache, own, key, value, chance.randrange(6))
            if count % 200 == 0:
                found = dict(cache.items())
                assert all(found[key].startswith(key + b"=") for key in found)
                assert {key: found[key] for key in own} == own
        return own

    expected: dict[bytes, bytes] = {}
    with open_small(tmp_path, capacity="256MiB", sync_mode="periodic") as cache:
        with ThreadPoolExecutor(THREADS) as pool:
            for own in pool.map(use, range(THREADS)):
                expected |= own
        assert cache.stats().damaged == 0
    with open_small(tmp_path, capacity="256MiB") as cache:
        assert dict(cache.items()) == expected


def test_exclusive_blocks_changes_of_other_threads(tmp_path: Path) -> None:
    """It may be nested, and does not keep them from reading."""

    def add(_: int) -> None:
        for _ in range(30):
            with cache.exclusive(), cache.exclusive():
                cache["counter"] = b"%d" % (int(cache["counter"]) + 1)

    with open_small(tmp_path) as cache:
        cache["counter"] = b"0"
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(add, range(THREADS)))
        assert cache["counter"] == b"%d" % (30 * THREADS)
        with cache.exclusive():
            with pytest.raises(ClientUsageError, match=r"close\(\) within exclusive"):
                cache.close()
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(cache.get, "counter").result() is not None


@pytest.mark.slow
def test_close_waits_for_calls_of_other_threads(tmp_path: Path) -> None:
    """They are complete, or refused; none meets a closed file."""
    stored: dict[int, int] = {}

    def use(number: int) -> None:
        for count in range(10**6):
            try:
                cache[f"{number}"] = b"%d" % count
                stored[number] = count
                assert cache.get(f"{number}") == b"%d" % count
                assert f"{number}" in cache
                assert list(cache)
            except ClientUsageError:
                return

    for _ in range(3):
        cache = open_small(tmp_path)
        stored.clear()
        with ThreadPoolExecutor(THREADS) as pool:
            users = [pool.submit(use, number) for number in range(THREADS)]
            wait_until(lambda: len(stored) == THREADS, "all threads")
            cache.close()
            for user in users:
                user.result()
        with open_small(tmp_path) as again:
            found = {int(key): int(value) for key, value in again.items()}
        assert found == stored


def run_program(path: Path, text: str) -> Ended:
    """Run a program with a cache until it ends."""
    head = (
        "import os, sys, volcache\n"
        "cache = volcache.open(sys.argv[1], capacity='8MiB', sync_interval=3600)\n"
    )
    words = [sys.executable, "-W", "error", "-c", head + text, str(path)]
    return ended(words, {"PYTHONPATH": str(SOURCE)})


@pytest.mark.slow
def test_returned_write_survives_a_kill(tmp_path: Path) -> None:
    """Without a sync or a close, as the kernel has it."""
    text = "cache['a'] = b'1'\ncache['b'] = b'2'\ncache.delete('b')\n"
    done = run_program(tmp_path, text + "os.kill(os.getpid(), 9)\n")
    assert done.returncode == -signal.SIGKILL
    with open_small(tmp_path) as cache:
        assert (cache.get("a"), cache.get("b"), cache.stats().damaged) == (
            b"1",
            None,
            0,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "cache['a'] = b'1'\n",
        "cache['a'] = b'1'\nsys.exit(0)\n",
        "cache['a'] = b'1'\ndel cache\n",
        "cache['a'] = b'1'\nhold = [cache]\nhold.append(hold)\ndel cache, hold\n",
        "import threading\nthreading.Thread(target=cache.set, args=('a', b'1')).start()\n",
        (
            "sys.kept = [cache, volcache.open(sys.argv[1])]\n"
            "sys.kept[1]['a'] = b'1'\nsys.kept.append(sys.kept)\n"
        ),
    ],
    ids=["end", "exit", "last reference", "cycle", "thread", "guest"],
)
def test_cache_that_is_not_closed_is_closed_at_exit(tmp_path: Path, text: str) -> None:
    """As by `close`: the next start has nothing to recover."""
    done = run_program(tmp_path, text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert is_closed(tmp_path)
    with open_small(tmp_path) as cache:
        assert cache["a"] == b"1"


def is_closed(directory: Path) -> bool:
    """Whether the directory was closed by a process that had it open."""
    return " open" not in (directory / "META.txt").read_text()


@pytest.mark.slow
def test_cache_without_references_releases_its_directory(tmp_path: Path) -> None:
    """Soon: a thread closes it."""
    for mode in ("periodic", "none"):
        cache = open_small(tmp_path, sync_mode=mode)
        cache["a"] = b"1"
        del cache
        gc.collect()
        wait_until(lambda: is_closed(tmp_path), "a close")
    with open_small(tmp_path) as again:
        assert again["a"] == b"1"


class StopError(BaseException):
    """What the handler of the signal raises."""


class Interruption:
    """A signal whose handler raises `StopError`, while `is_armed`."""

    def __init__(self) -> None:
        """Take over the handler."""
        self.is_armed = False
        self._before = signal.signal(signal.SIGALRM, self._stop)

    def _stop(self, _number: int, _frame: object) -> None:
        if self.is_armed:
            self.is_armed = False
            raise StopError

    def is_met(self, call: Callable[[], object], seconds: float) -> bool:
        """Make a call that the signal may interrupt after a time; return whether it did."""
        gc.disable()  # What a handler raises in a callback of the collector is lost.
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            self.is_armed = True
            call()
            self.is_armed = False
        except StopError:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            gc.enable()
        return False

    def end(self) -> None:
        """Restore the handler."""
        signal.signal(signal.SIGALRM, self._before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_write_interrupted_by_a_signal_is_whole_or_not_made(
    tmp_path: Path, seed: int
) -> None:
    """At any step, as by Ctrl-C; and no older value comes back, now or later."""
    chance = Random(seed)  # noqa: S311
    allowed: dict[bytes, set[bytes | None]] = {}
    interrupted, interruption = 0, Interruption()
    options = {"capacity": "4MiB", "sync_mode": ("none", "periodic")[seed % 2]}
    cache = open_small(tmp_path, **options)
    for number in itertools.count():
        if interrupted >= INTERRUPTIONS:
            break
        key = b"%d" % chance.randrange(50)
        call: Callable[[], object]
        value: bytes | None = b"%d:" % number + bytes(chance.randrange(20_000))
        call = partial(cache.set, key, value or b"")
        if chance.random() < 0.4:
            value, call = None, partial(cache.delete, key)
        is_complete = not interruption.is_met(call, chance.random() * 0.0003 + 1e-6)
        before = allowed.get(key, {None})
        allowed[key] = {value} if is_complete else {*before, value}
        interrupted += not is_complete
        found = cache.get(key)
        assert found is None or found in allowed[key]
        if number % 50 == 49:
            cache.close()
            cache = open_small(tmp_path, **options)
            for name, values in allowed.items():
                found = cache.get(name)
                assert found is None or found in values
    cache.close()
    interruption.end()


def test_sync_on_a_disk_that_refuses_raises_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its text."""
    with open_small(tmp_path) as cache:
        cache["a"] = b"1"
        store = owner_of(cache).store
        with monkeypatch.context() as patch:

            def refuse(_fd: int) -> None:
                raise OSError(5, "Input/output error")

            patch.setattr(store._directory.fs, "sync", refuse, raising=True)
            with pytest.raises(StorageError, match="Input/output error"):
                cache.sync()
        assert cache["a"] == b"1"


def test_periodic_sync_runs_until_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thread, until the cache is closed."""
    with open_small(tmp_path, sync_mode="periodic", sync_interval=0.01) as cache:
        store = owner_of(cache).store
        synced: list[None] = []
        sync = store.sync

        def note() -> None:
            sync()
            synced.append(None)

        monkeypatch.setattr(store, "sync", note)
        wait_until(lambda: len(synced) > 2, "some syncs")
        syncer = owner_of(cache)._syncer
    assert syncer is not None
    assert not syncer._thread.is_alive()
