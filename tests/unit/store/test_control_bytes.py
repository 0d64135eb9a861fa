"""
A stored type, encoding or directive with a control byte makes its record damaged.

Answers have these fields as headers, so a line end in one of them would begin another. The
server stores none; whoever may write to the disk or to memcached can make such a record.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.stores import kill, open_store

CONTROL_BYTES = {*range(0x20), 0x7F}
SIZES: dict[str, Any] = {"volume_size": 2**20}


@pytest.mark.parametrize("field", ["content_type", "content_encoding", "cache_control"])
def test_record_with_a_control_byte_is_damaged(tmp_path: Path, field: str) -> None:
    """
    By get, stat and a start, which serves no older value; a copy of it is not used.

    Without other bytes before and behind it, too.
    """
    store = open_store(tmp_path, **SIZES)
    intact = {b"%d %d" % (n, byte) for n in range(2) for byte in range(256)}
    for byte in range(256):
        for number, text in enumerate((b"a%cb", b"%c")):
            key = b"%d %d" % (number, byte)
            fields: dict[str, Any] = {field: text % byte}
            store.put(key, b"old")
            store.put(key, b"value", **fields)
            copy = store.read_raw(key)
            assert copy is not None
            is_intact = byte not in CONTROL_BYTES
            assert (store.validate(key, copy) is not None) == is_intact
            if not is_intact:
                intact.remove(key)
    store.put(b"behind", b"v")
    for is_restarted in (False, True):
        if is_restarted:
            kill(store)
            shutil.rmtree(tmp_path / "index")  # So that all records are scanned.
            store = open_store(tmp_path, **SIZES)
            found = store.recovery.damaged, store.recovery.unknown
            assert found == (2 * len(CONTROL_BYTES), 0)
        for key in (b"%d %d" % (n, byte) for n in range(2) for byte in range(256)):
            read = (store.get, store.stat)[key.startswith(b"1")]
            assert (read(key) is not None) == (key in intact), key
        assert store.get(b"behind") is not None
        assert store.stats.damaged_records == 2 * len(CONTROL_BYTES)
    store.close()
