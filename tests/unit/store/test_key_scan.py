"""key_scan.py: all keys of a running store, whatever changes meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from support.stores import (
    FakeClock,
    fill_volume,
    open_fifo,
    open_store,
    reopen,
    scan_keys,
)
from volcache.store import Store

Batches = Callable[[Store], Iterator[list[bytes]]]


def continued(store: Store) -> Iterator[list[bytes]]:
    """Yield the keys of scans each of which continues the one before."""
    scan = store.key_scan()
    yield scan.read(most=50)
    while scan.cursor:
        scan = store.key_scan(scan.cursor)
        yield scan.read(most=50)


@pytest.fixture(params=[scan_keys, continued])
def batches(request: pytest.FixtureRequest) -> Batches:
    """Return the keys of a store, some at a time, by one scan or by many."""
    found: Batches = request.param
    return found


def fill(store: Store, count: int) -> list[bytes]:
    """Store some values; return their keys, in this order."""
    keys = [b"key/%d" % number for number in range(count)]
    for key in keys:
        store.put(key, key * 10)
    return keys


def open_large(directory: Path) -> Store:
    """Open a store of more than one piece in each volume, in which nothing is evicted."""
    return open_store(directory, volume_size=1 << 18, volume_num=16)


def test_scan_returns_every_key_once(tmp_path: Path, batches: Batches) -> None:
    """Not those that were replaced, deleted, purged or have expired."""

    def scan(store: Store) -> list[bytes]:
        return list(chain.from_iterable(batches(store)))

    clock = FakeClock()
    store = open_large(tmp_path)
    assert scan(store) == []
    keys = fill(store, 5000)
    for key in keys[::7]:
        store.put(key, b"new")
    for key in keys[::11]:
        store.delete(key)
    found = scan(store)
    assert sorted(found) == sorted(set(keys) - set(keys[::11]))
    assert len(set(found)) == len(found)
    store.purge(b"key/1")
    left = [key for key in found if not key.startswith(b"key/1")]
    assert sorted(scan(store)) == sorted(left)
    store.close()
    store = open_store(tmp_path / "expiry", clock=clock)
    store.put(b"a", b"1", expires_ms=clock() + 1000)
    store.put(b"b", b"1")
    assert scan(store) == [b"a", b"b"]
    clock.advance(2)
    assert scan(store) == [b"b"]
    store.flush()
    assert scan(store) == []
    store.close()


def test_scan_after_a_crash_and_behind_damage_returns_all_others(
    tmp_path: Path, batches: Batches
) -> None:
    """A record whose header is damaged is left out, and no other."""
    store = open_large(tmp_path)
    keys = fill(store, 1000)
    store = reopen(store, tmp_path, volume_size=1 << 18, volume_num=16)
    assert sorted(chain.from_iterable(batches(store))) == sorted(keys)
    position = store.stat(b"key/500")
    assert position is not None
    with (tmp_path / "data" / str(position.volume)).open("r+b") as file:
        file.seek(position.offset)
        file.write(bytes(40))
    left = set(keys) - {b"key/500"}
    assert sorted(chain.from_iterable(batches(store))) == sorted(left)
    store.close()


def test_scan_with_keys_stored_again_returns_each_once(
    tmp_path: Path, batches: Batches
) -> None:
    """A scan that stores each key that it returns ends, with each of them once."""
    store = open_large(tmp_path)
    keys = fill(store, 3000)
    rest = batches(store)
    first = next(rest)
    assert 0 < len(first) < len(keys)
    for key in keys:
        store.put(key, b"new")
    assert sorted(chain(first, *rest)) == sorted(keys)
    seen = Counter[bytes]()
    for key in chain.from_iterable(batches(store)):
        store.put(key, b"newer")
        seen[key] += 1
    assert seen == Counter(keys)
    store.close()


@pytest.mark.parametrize("volumes", [8, 16])
def test_scan_while_volumes_are_reclaimed_returns_what_stays(
    tmp_path: Path, volumes: int, batches: Batches
) -> None:
    """Its record is copied out of a volume that was not read yet."""
    store = open_store(tmp_path, volume_num=volumes)
    used = [b"used/%d" % number for number in range(5)]
    for key in used:
        store.put(key, bytes(100))
    for turn in range(20):
        found = list[bytes]()
        count = 0
        for batch in batches(store):
            found += batch
            for key in used:
                assert store.get(key) is not None or store.put(key, bytes(100))
            # More than a turn of the ring in the course of a scan.
            for number in range(10):
                store.put(b"new/%d/%d/%d" % (turn, count, number), bytes(1000))
            count += 1
        there = [key for key in used if store.get(key) is not None]
        missing = set(there) - set(found)
        assert not missing or count >= 8 * volumes, (turn, count, missing)
    store.close()


def test_scan_with_a_flush_meanwhile_ends(tmp_path: Path, batches: Batches) -> None:
    """With what is stored since."""
    store = open_fifo(tmp_path, volume_num=8)
    fill_volume(store)
    rest = batches(store)
    first = next(rest)
    assert first
    store.flush()
    store.put(b"after", b"1")
    assert list(chain.from_iterable(rest)) == [b"after"]
    store.close()
