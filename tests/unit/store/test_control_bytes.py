"""
A stored type, encoding or directive with a control byte makes its record damaged.

Answers have these fields as headers, so a line end in one of them would begin another. The
server stores none; whoever may write to the disk or to memcached can make such a record.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stores import kill, open_store, reopen
from volcache.store import Store

CONTROL_BYTES = [*range(0x20), 0x7F]
FIELDS = ["content_type", "content_encoding", "cache_control"]
SPLIT = b"a\r\nSet-Cookie: b"


def put_forged(store: Store, key: bytes, field: str, text: bytes) -> None:
    """Store a value with a field that no request can store."""
    store.put(key, b"old")
    store.put(key, b"value", **{field: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", FIELDS)
def test_a_forged_record_is_a_miss_and_is_counted(tmp_path: Path, field: str) -> None:
    """By get and by stat, for every control byte; other bytes are not damage."""
    store = open_store(tmp_path, volume_size=2**20)
    for byte in range(256):
        is_intact = byte not in CONTROL_BYTES
        put_forged(store, b"%d\n" % byte, field, b"a%cb" % byte)
        put_forged(store, b"%d head" % byte, field, b"%c" % byte)
        assert (store.get(b"%d\n" % byte) is not None) == is_intact
        assert (store.stat(b"%d head" % byte) is not None) == is_intact
    assert store.stats.damaged_records == 2 * len(CONTROL_BYTES)
    store.close()


@pytest.mark.parametrize("field", FIELDS)
def test_a_start_finds_it_damaged(tmp_path: Path, field: str) -> None:
    """It has no index entry; its older value is not served, and the next record is."""
    store = open_store(tmp_path)
    put_forged(store, b"forged", field, SPLIT)
    store.put(b"behind", b"v")
    kill(store)
    store = open_store(tmp_path)

    assert (store.recovery.damaged, store.recovery.unknown) == (1, 0)
    assert store.get(b"forged") is None
    assert store.get(b"behind") is not None
    store = reopen(store, tmp_path)
    assert store.get(b"forged") is None
    store.close()


def test_a_forged_copy_of_memcached_is_not_used(tmp_path: Path) -> None:
    """Its bytes are right but for the field."""
    store = open_store(tmp_path)
    put_forged(store, b"k", "content_encoding", SPLIT)
    copy = store.read_raw(b"k")

    assert copy is not None
    assert store.validate(b"k", copy) is None
    store.close()
