"""Two rings of volumes: where values are put, and when volumes are reclaimed."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from support.histories import MOUNT_POINT
from support.rings import lose_an_entry
from support.simulated import SimulatedFileSystem
from support.stores import kill, manifest_of, open_store, ring_of, value_of
from volcache.errors import StoreIOError
from volcache.store import Store
from volcache.store.index import Disposition

VOLUME_NUM: Final = 8
VALUE: Final = b"." * 900


def open_rings(directory: Path | str, **options: Any) -> Store:
    """Open a store of eight volumes; 16 records fit one."""
    return open_store(directory, **{"volume_num": VOLUME_NUM} | options)


def keys_named(prefix: bytes, count: int) -> list[bytes]:
    """Return keys of seven bytes."""
    return [b"%b%06d" % (prefix, number) for number in range(count)]


def put_all(store: Store, keys: Iterable[bytes]) -> None:
    """Put values that were not asked for."""
    for key in keys:
        store.put(key, VALUE)


def ask_and_put(store: Store, keys: Iterable[bytes]) -> None:
    """Put values as a client does after a miss."""
    for key in keys:
        if store.get(key) is None:
            store.put(key, VALUE)


# --- Where a value is put ----------------------------------------------------------


@pytest.mark.parametrize("ask", ["get", "stat"])
def test_put_after_a_miss_goes_to_probation(tmp_path: Path, ask: str) -> None:
    """By a get or a stat that was a miss; after that put, not again."""
    store = open_rings(tmp_path)
    getattr(store, ask)(b"asked")
    store.put(b"asked", VALUE)
    store.put(b"other", VALUE)

    assert ring_of(store, b"asked") == "probation"
    assert ring_of(store, b"other") == "main"
    store.flush()
    store.put(b"asked", VALUE)
    assert ring_of(store, b"asked") == "main"
    store.close()


# --- Reclaiming --------------------------------------------------------------------


@pytest.mark.slow
def test_put_during_a_reclaim_copies_a_bounded_amount(tmp_path: Path) -> None:
    """
    Copies are spread over many puts; none copies more than 4 MiB and a record.

    Every record of ring main is read before it is reclaimed: that is the most work.
    """
    value = bytes(64 * 1024)
    store = open_rings(tmp_path, volume_size=8 << 20, reinsert_reads=1)
    keys = keys_named(b"m", 750)  # They fill six volumes.
    for key in keys:
        store.put(key, value)
    most, before, steps = 0, 0, 0
    for number in range(300):
        for key in keys[number % 7 :: 7]:
            store.get(key)
        store.put(b"n%06d" % number, value)
        now = store.stats.disposition.copied_bytes
        most, before, steps = max(most, now - before), now, steps + (now > before)

    assert before > 8 << 20
    assert steps > 20
    assert most <= (4 << 20) + len(value) + 100
    store.close()


# --- Entries lost for want of memory -----------------------------------------------


def test_start_seals_the_volume_to_be_reclaimed_first(tmp_path: Path) -> None:
    """No later start looks for records behind its end."""
    store = open_rings(tmp_path)
    ask_and_put(store, keys_named(b"p", 20))
    lose_an_entry(store)
    store.put(b"displaced", VALUE)
    first = manifest_of(tmp_path).probation_first
    kill(store)
    store = open_rings(tmp_path)

    volumes = {one.use.seq: one for one in manifest_of(tmp_path).volumes}
    assert not volumes[first].is_open
    store.close()


def test_put_after_a_lost_entry_reclaims_probation_first(tmp_path: Path) -> None:
    """META.txt says so before a value is put whose ring is not known."""
    store = open_rings(tmp_path)
    ask_and_put(store, keys_named(b"p", 20))
    put_all(store, keys_named(b"m", 20))
    newest = max(v.seq for v in store.usage().volumes if v.ring == "probation")
    oldest_main = min(v.seq for v in store.usage().volumes if v.ring == "main")
    assert manifest_of(tmp_path).probation_first < newest

    lose_an_entry(store)
    store.put(b"displaced", VALUE)

    assert manifest_of(tmp_path).probation_first == newest
    number = 0
    while store.usage().eviction.reclaiming < 0:
        store.put(b"n%06d" % number, VALUE)
        number += 1
    usage = store.usage()
    assert usage.volumes[usage.eviction.reclaiming].ring == "probation"
    assert any(volume.seq == oldest_main for volume in usage.volumes)
    store.close()


def test_put_while_a_lost_entry_cannot_be_noted_is_refused() -> None:
    """The old value stays, and the next put succeeds."""
    disk = SimulatedFileSystem()
    store = open_rings(MOUNT_POINT, fs=disk)
    ask_and_put(store, keys_named(b"p", 3))
    disk.failing["rename"] = errno.EIO
    lose_an_entry(store)
    with pytest.raises(StoreIOError, match=r"replace META\.txt"):
        store.put(b"p000001", b"refused")

    disk.failing.clear()
    assert value_of(store.get(b"p000001")) == VALUE
    store.put(b"p000001", b"new")
    assert value_of(store.get(b"p000001")) == b"new"


# --- One ring ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"eviction": "fifo"}, {"volume_num": 3}, {"volume_num": 2}]
)
def test_put_with_one_ring_copies_nothing(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """All volumes are used, and the oldest is evicted although it is read."""
    store = open_rings(tmp_path, **options)
    for key in keys_named(b"k", 300):
        ask_and_put(store, [b"used", key])

    usage = store.usage()
    assert usage.eviction.policy == "fifo"
    assert {volume.ring for volume in usage.volumes} == {"main"}
    assert usage.eviction.disposition == Disposition()
    assert usage.eviction.write_amplification == 1
    store.close()
