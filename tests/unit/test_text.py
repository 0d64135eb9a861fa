"""Counts, sizes and times as people read them, and client input that is escaped."""

from __future__ import annotations

import string
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcache.text import counted, duration, escape_header, escape_path, size, span

PRINTABLE = set(string.ascii_letters + string.digits + string.punctuation)
LATIN_1 = st.text(st.characters(max_codepoint=0xFF))


def test_counted_is_singular_for_one_only() -> None:
    """0 is plural, and so is 11; a report has commas, a line for programs none."""
    texts = {0: "0 files", 1: "1 file", 2: "2 files", 11: "11 files"}
    assert [counted(count, "file") for count in texts] == [*texts.values()]
    assert counted(1234, "live key") == "1234 live keys"
    assert counted(1234, "key", ",") == "1,234 keys"


def test_durations_have_two_digits() -> None:
    """In the largest unit that fits."""
    durations = {5e-8: "50 ns", 9.3e-5: "93 µs", 0.0012: "1.2 ms", 0.9999: "1.0 s"}
    assert [duration(seconds) for seconds in durations] == [*durations.values()]


def test_sizes_and_spans_round_into_the_next_unit() -> None:
    """1023.9 KiB is 1.0 MiB; an exbibyte is 1024 PiB."""
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", (1 << 20) - 50: "1.0 MiB"}
    sizes[1 << 60] = "1024.0 PiB"
    assert [size(number) for number in sizes] == [*sizes.values()]
    spans = {59.9: "59 s", 61: "1 min 1 s", 3600: "1 h 0 min", 90000: "1 d 1 h"}
    assert [span(number) for number in spans] == [*spans.values()]


# --- Client input in log lines -----------------------------------------------------


@pytest.mark.property
@given(LATIN_1)
def test_escaped_path_is_one_word_and_can_be_decoded(path: str) -> None:
    """No space, quote or control character; decoding gives the bytes of the request."""
    shown = escape_path(path, 10_000)
    assert set(shown) <= PRINTABLE - set('"\\ ')
    assert unquote_to_bytes(shown) == path.encode("latin-1")


@pytest.mark.property
@given(st.text())
def test_escaped_header_cannot_end_its_field(text: str) -> None:
    """Printable, without a quote or backslash of the client."""
    shown = escape_header(text, 10_000)
    assert set(shown) <= PRINTABLE | {" "}
    assert '"' not in shown
    assert shown.count("\\") == shown.count("\\x")


def test_header_is_escaped_as_in_nginx() -> None:
    """Programs that parse nginx's logs can parse ours."""
    for text, shown in {
        "curl/7.88.1 (x; y)": "curl/7.88.1 (x; y)",
        'a" 200 "b': "a\\x22 200 \\x22b",
        "a\\": "a\\x5C",
        "a\r\nb\x1b[2J\x7f": "a\\x0D\\x0Ab\\x1B[2J\\x7F",
        "\xe9": "\\xE9",
    }.items():
        assert escape_header(text, 100) == shown
