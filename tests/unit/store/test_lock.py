"""The lines of LOCK."""

from __future__ import annotations

from volcache.store.manifest import Progress, decode_progress, encode_progress

EXAMPLE = Progress(
    store_id=0x5F0C64D3C1F0A7BE,
    seq=1234,
    salt=0x9C1E0B7A44D2F083,
    end=987_654,
    time_us=1_795_251_600_000_000,
    boot=0x77D0C2AA,
)
LINE = (
    b"volcache lock 2 store 5f0c64d3c1f0a7be seq 000000000001234"
    b" salt 9c1e0b7a44d2f083 end 0000000987654 time 00001795251600000000"
    b" boot 77d0c2aa 88c59929\n"
)
NEWER = EXAMPLE._replace(seq=1300, salt=5, end=64)


def test_line_is_as_documented() -> None:
    """
    Every number has a fixed width; with one active volume there are two such lines.

    They are returned newest first.
    """
    assert encode_progress(EXAMPLE) == LINE
    assert decode_progress(b"17\n" + LINE + LINE) == [EXAMPLE]
    assert decode_progress(LINE.replace(b"lock 2", b"lock 3")) == []
    newer = encode_progress(NEWER)
    for lines in (LINE + newer, newer + LINE):
        assert decode_progress(b"17\n" + lines) == [NEWER, EXAMPLE]
