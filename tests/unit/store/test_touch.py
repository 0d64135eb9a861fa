"""`Store.touch`: another expiry of the same version of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.stores import (
    FakeClock,
    kill,
    open_fifo,
    open_store,
)
from volcache.store import Record, Store

LATER_MS = FakeClock().now_ms + 60_000
FIELDS: dict[str, Any] = {
    "content_type": b"a/b",
    "content_encoding": b"gzip",
    "cache_control": b"private",
    "flags": 4_000_000_000,
}


def touch(store: Store, key: bytes, expires_ms: int) -> Record:
    """Touch what is stored."""
    with store.lock:
        record = store.get(key)
        assert record is not None
        return store.touch(key, record, expires_ms)


@pytest.mark.parametrize("length", [0, 300, 20_000, 1_100_000])
def test_touch_changes_the_expiry_only(tmp_path: Path, length: int) -> None:
    """And is found by get and stat; the next put is a newer version."""
    store = open_store(tmp_path, volume_size=4 << 20, clock=FakeClock())
    put = store.put(b"k", b"v" * length, **FIELDS)
    touched = touch(store, b"k", LATER_MS)
    place: dict[str, Any] = {"volume": touched.volume}
    place["offset"] = put.offset + put.size
    assert touched == put._replace(expires_ms=LATER_MS, **place)
    assert store.get(b"k") == touched
    assert store.stat(b"k") == touched._replace(value=b"")
    assert store.count == 1
    assert store.put(b"k", b"v").stored_us > put.stored_us
    store.close()


def test_touch_record_without_its_value_is_refused(tmp_path: Path) -> None:
    """Such as that of `stat`; nothing has changed."""
    store = open_store(tmp_path)
    put = store.put(b"k", b"value")
    with pytest.raises(ValueError, match="5 bytes, not 0"):
        store.touch(b"k", put._replace(value=b""), LATER_MS)
    assert store.get(b"k") == put
    store.close()


def test_start_with_a_damaged_touched_record_is_a_miss(
    tmp_path: Path,
) -> None:
    """The value before is the same, but it expires at another time."""
    store = open_fifo(tmp_path, clock=FakeClock())
    store.put(b"k", b"v" * 300)
    touched = touch(store, b"k", LATER_MS)
    kill(store)
    path = tmp_path / "data" / str(touched.volume)
    data = bytearray(path.read_bytes())
    data[touched.offset + touched.size - 1] ^= 1
    path.write_bytes(data)
    store = open_fifo(tmp_path, clock=FakeClock())
    assert store.get(b"k") is None
    assert store.recovery.damaged == 1
    store.close()
