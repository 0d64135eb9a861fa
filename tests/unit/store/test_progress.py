"""The lines of LOCK: anything but a line that was written is no line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.extent import examples
from support.tables import each_row
from volcache.store.format import SEQ_MAX
from volcache.store.progress import Progress, decode_progress, encode_progress

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


def test_line_is_as_documented() -> None:
    """Every number has a fixed width."""
    assert encode_progress(EXAMPLE) == LINE
    assert decode_progress(LINE) == [EXAMPLE]


@pytest.mark.property
@settings(max_examples=examples(300), deadline=None)
@given(
    st.builds(
        Progress,
        store_id=st.integers(0, 2**64 - 1),
        seq=st.integers(0, SEQ_MAX),
        salt=st.integers(0, 2**64 - 1),
        end=st.integers(0, 10**13 - 1),
        time_us=st.integers(0, 2**64 - 1),
        boot=st.integers(0, 2**32 - 1),
    ),
    st.integers(1, 2**22),
)
def test_what_is_written_is_read(progress: Progress, process_id: int) -> None:
    """Behind the line of the process id; each line has the same length."""
    line = encode_progress(progress)

    assert len(line) == len(LINE)
    assert decode_progress(b"%d\n" % process_id + line) == [progress]


@each_row("order", [(0, 1), (1, 0)])
def test_lines_of_two_volumes_are_returned_newest_first(order: tuple[int, int]) -> None:
    """Each ring has an active volume, and they may stand in any order."""
    newer = EXAMPLE._replace(seq=1300, salt=5, end=64)
    both = [EXAMPLE, newer]
    data = b"17\n" + b"".join(encode_progress(both[at]) for at in order)

    assert decode_progress(data) == [newer, EXAMPLE]
    # With one active volume both lines are the same.
    assert decode_progress(b"17\n" + LINE + LINE) == [EXAMPLE]


def test_of_a_damaged_and_an_intact_line_the_intact_one_is_returned() -> None:
    """Wherever the damage is, and in either line."""
    other = EXAMPLE._replace(seq=1235)
    lines = encode_progress(other)
    for at in range(len(LINE)):
        damaged = LINE[:at] + bytes([LINE[at] ^ 1]) + LINE[at + 1 :]
        assert decode_progress(b"17\n" + damaged + lines) == [other], at
        assert decode_progress(b"17\n" + lines + damaged) == [other], at
        assert decode_progress(LINE[at + 1 :]) == [], at


def test_line_torn_while_it_was_overwritten_is_noticed() -> None:
    """The first bytes are those of the new line, the others of the old one."""
    other = encode_progress(
        EXAMPLE._replace(seq=1235, salt=1, end=44, time_us=EXAMPLE.time_us + 7)
    )
    for at in range(len(LINE)):
        torn = other[:at] + LINE[at:]
        if torn not in {LINE, other}:
            assert decode_progress(torn) == []


@each_row(
    "data",
    [
        *(b"", b"17\n", b"17\nvolcache lock 2\n", b"\0" * 500),
        LINE.replace(b"lock 2", b"lock 3"),
    ],
)
def test_lock_without_a_line_says_nothing(data: bytes) -> None:
    """Such as that of a process that was killed at its first start, or a newer one."""
    assert decode_progress(data) == []
