"""Arbitrary bytes as the files of a mount point."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.extent import examples
from support.histories import make_disk, open_simulated
from support.index_files import encode_block
from support.records import encode_record
from support.stores import scan_keys
from volcache.errors import StoreError
from volcache.store.format import (
    Place,
    Ring,
    VolumeHeader,
    VolumeUse,
    encode_volume_header,
)
from volcache.store.index_format import (
    IndexName,
    encode_index_header,
)
from volcache.store.manifest import (
    ListedVolume,
    Manifest,
    encode_manifest,
)

pytestmark = pytest.mark.property

STORE_ID = 7
USE = VolumeUse(volume=0, seq=1, ring=Ring.MAIN, salt=5)
RECORD = encode_record(
    Place(USE.salt, USE.volume, 64), 5, 0, b"t", b"", b"", b"k", 0, 0
)
USES = st.builds(
    VolumeUse, st.just(0), st.integers(1, 3), st.just(Ring.MAIN), st.integers(5, 6)
)

NEARLY_RECORDS = st.builds(
    lambda data, at, junk: data[:at] + junk + data[at + len(junk) :],
    st.just(RECORD),
    st.integers(0, len(RECORD)),
    st.binary(max_size=12),
)
ENTRIES = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=9), st.integers(0, 4000), st.integers(0, 99)
    )
)
BLOCKS = st.builds(
    lambda entries, end, sealed: encode_block(entries, end, sealed=sealed)[0],
    ENTRIES,
    st.integers(0, 10**7),
    st.booleans(),
)
INDEX_FILES = st.builds(
    lambda use, store_id, blocks: (
        encode_index_header(IndexName(use, store_id))[0] + b"".join(blocks)
    ),
    USES,
    st.sampled_from([STORE_ID, 8]),
    st.lists(st.one_of(BLOCKS, st.binary(max_size=30)), max_size=4),
)
VOLUMES = st.builds(
    lambda use, store_id, rest: (
        encode_volume_header(VolumeHeader(use, store_id, 1, 5, 1, 0)) + b"".join(rest)
    ),
    USES,
    st.sampled_from([STORE_ID, 8]),
    st.lists(st.one_of(NEARLY_RECORDS, st.binary(max_size=80)), max_size=6),
)
METAS = st.builds(
    lambda uses, mounts: encode_manifest(
        Manifest(STORE_ID, mounts, 5, 0, tuple(map(ListedVolume, uses)))
    ),
    st.lists(
        st.builds(
            VolumeUse,
            st.integers(0, 70000),
            st.integers(1, 3),
            st.just(Ring.MAIN),
            st.integers(5, 6),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 3),
)


@settings(max_examples=examples(300))
@given(
    files=st.dictionaries(
        st.sampled_from(
            ["data/0", "data/1", "data/9", "data/70000", "index/0", "index/1"]
        ),
        st.one_of(VOLUMES, INDEX_FILES, st.binary(max_size=400)),
    ),
    meta=st.one_of(st.none(), METAS, st.binary(max_size=60)),
)
def test_start_on_any_directory_succeeds_or_is_refused(
    files: dict[str, bytes], meta: bytes | None
) -> None:
    """It never crashes; a store that opens returns valid records and can be written."""
    fs = make_disk(files if meta is None else {**files, "META.txt": meta})
    try:
        store = open_simulated(fs)
    except StoreError:
        assert fs.descriptors == 0
        return
    for key in (key for batch in scan_keys(store) for key in batch):
        record = store.get(key)
        assert record is None or (key, record.value) == (b"k", b"")
    store.put(b"new", b"value")
    again = open_simulated(fs.after_kill())
    record = again.get(b"new")
    assert record is not None
    assert record.value == b"value"
